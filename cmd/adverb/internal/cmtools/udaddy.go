package cmtools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

const udaddyUsage = `	[-s server_address]
	[-b bind_address]
	[-f address_format]
	    name, ip, ipv6, or gid
	[-P port_space]
	    udp or ipoib
	[-c connections]
	[-C message_count]
	[-S message_size]
	[-t type_of_service]
	[-p port_space - 0x111 for UDP (default), 0x2 for IPOIB]
`

// Udaddy is the command udaddy.
var Udaddy = &cli.Command{
	Name:    "udaddy",
	Classic: []string{"udaddy"},
	Short:   "Find a peer by the connection manager and exchange datagrams",
	Flags: append(cm.FlagsOf("sbfcCSt"),
		cli.Flag{Short: 'P', Long: "port-space", Arg: "<space>", Help: "udp (default); ipoib is refused", Values: cli.OneOf("udp")},
		datagramFlag,
		cli.Flag{Long: "port", Arg: "<port>", Help: "port of the server (default 7174)", Ours: true},
	),
	Forms: []cli.Form{
		{Args: "", Does: "serve one client"},
		{Args: "-s <host>", Does: "be the client of the server at <host>"},
	},
	Usage: cm.Usage(udaddyUsage),
	More: `Two terminals of one machine:
  PROG
  PROG -s localhost
Both ends need the same -c, -C and -S. The other end may be the C program. Nothing repeats
what the network loses: both ends then wait until Ctrl-C. A client that sends nothing loses its
place among -c to one that comes later.
`,
	Run: runUdaddy,
}

func parseUdaddy(inv *cli.Invocation) (f cm.Flags, code int, ok bool) {
	f = cm.Flags{Connections: 1, Count: 10, Size: 100, TOS: -1, Port: "7174", Space: rdmacm.PortSpaceUDP}
	operands, code, ok, refused := parse(inv, &f, func(name, arg string) (known bool, err error) {
		switch name {
		case "port-space":
			switch {
			case clib.HasPrefix(arg, "ipoib"):
				f.Space = portSpaceIPoIB
			case !clib.HasPrefix(arg, "udp"):
				inv.Errorf("Warning: unknown port space format\n")
			}
		case "port-space-number":
			f.Space = rdmacm.PortSpace(clib.Int(arg))
		case "port":
			f.Port = arg
		default:
			return false, nil
		}
		return true, nil
	})
	if !ok {
		return f, code, false
	}
	cm.IgnoreOperands(inv, operands)
	if refused = cmp.Or(refused, checkDatagrams(f.Space)); refused != nil {
		return f, inv.Fail(refused, ""), false
	}
	return f, code, true
}

// udaddy is a run of the program.
type udaddy struct {
	common
}

func runUdaddy(inv *cli.Invocation) int {
	f, code, ok := parseUdaddy(inv)
	if !ok {
		return code
	}
	u := &udaddy{newCommon(inv, "udaddy", &f)}
	u.prepare = u.prepareDatagrams
	u.connectParam, u.acceptParam = &rdmacm.ConnParam{}, &rdmacm.ConnParam{}
	if f.Server == "" {
		return u.main(false, u.serve)
	}
	return u.main(true, u.dial)
}

func (u *udaddy) dial() error {
	if err := u.call(u.handle); err != nil {
		return err
	}
	if u.count > 0 {
		return u.clientTransfer()
	}
	return nil
}

// clientTransfer sends the messages first, and then receives the answers.
func (u *udaddy) clientTransfer() error {
	u.inv.Printf("initiating data transfers\n")
	if err := u.sendAll(0, 0); err != nil {
		return err
	}
	u.inv.Printf("receiving data transfers\n")
	if err := u.collectAll((*node).receives); err != nil {
		return err
	}
	u.inv.Printf("data transfers complete\n")
	return nil
}

func (u *udaddy) handle(ev rdmacm.Event) error {
	switch ev.Type {
	case rdmacm.EventConnectRequest:
		return u.requested(ev.ID)
	case rdmacm.EventEstablished:
		return u.found(ev.ID.Context.(*node), &ev.UD)
	}
	return u.calling(ev)
}

// Anybody can ask for a QP by one datagram, and never send to it. So a client of a server has its place among -c for good
// once a message has come, and genuine ones send at once. Before, a client of another host may take the place, and after
// silentTime any.
const silentTime = 3 * time.Second

func (u *udaddy) serve() error {
	l, err := u.listen()
	if err != nil {
		return err
	}
	defer func() { u.inv.Explain(l.Close()) }()
	// After a failure the C program goes on with the clients that are connected, and reports success.
	failed := u.events(&u.connectsLeft, u.handle)
	if u.inv.Ctx.Err() != nil {
		return failed
	}
	if u.count > 0 {
		if err := u.serverTransfer(); err != nil {
			return err
		}
	}
	if failed == nil {
		failed = u.surplus
	}
	return failed
}

// serverTransfer receives the messages, and then sends the answers.
func (u *udaddy) serverTransfer() error {
	u.inv.Printf("receiving data transfers\n")
	if err := u.receiveAll(); err != nil {
		return err
	}
	u.inv.Printf("sending replies\n")
	if err := u.sendAll(verbs.SendSignaled, 0); err != nil {
		return err
	}
	if err := u.collectAll((*node).receives); err != nil {
		return err
	}
	u.inv.Printf("data transfers complete\n")
	return nil
}

// receiveAll waits for -C messages of each client. A server learns from the first one where its client is.
func (u *udaddy) receiveAll() error {
	var asked asked
	ctx, stop := u.watch(asked.add)
	defer func() {
		stop()
		for _, ev := range asked.take() {
			u.turnAway(ev.ID)
		}
	}()
	for i := range u.nodes {
		n := &u.nodes[i]
		for n.connected && n.received < u.count {
			turn, done := asked.turn(ctx)
			k, err := u.poll(turn, n.recvCQ)
			done()
			if err == nil {
				err = u.came(n, k)
			}
			if err != nil && !errors.Is(err, errAsked) {
				return err
			}
			for _, ev := range asked.take() {
				if err := u.takeIn(ev.ID); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// came takes note of k messages of a client.
func (u *udaddy) came(n *node, k int) error {
	n.received += k
	if n.ah == nil && k > 0 {
		return u.answer(n, &u.wcs[0])
	}
	return nil
}

// takeIn gives a client the place of one that has sent nothing, or refuses it.
func (u *udaddy) takeIn(id *rdmacm.ID) error {
	for i := range u.nodes { // of some, messages may have come by now
		n := &u.nodes[i]
		if !n.connected || n.received > 0 {
			continue
		}
		k, err := n.recvCQ.Poll(u.wcs[:])
		if err != nil {
			return u.complain(cm.StatusFailed, err, "%s: failed polling CQ: %d", u.prog, cm.StatusFailed)
		}
		if k > 0 {
			if err := u.came(n, k); err != nil {
				return err
			}
		}
	}
	loser := u.silentFor(id.RemoteAddr().Addr())
	if loser == nil {
		u.turnAway(id)
		return nil
	}
	u.inv.Explain(fmt.Errorf("the client at %v has asked and sent nothing: the one at %v gets its place", loser.id.RemoteAddr(), id.RemoteAddr()))
	u.inv.Explain(loser.close())
	*loser = node{}
	if err := u.requested(id); err != nil {
		u.surplus = err
	}
	return nil
}

// silentFor returns the client that gives its place to one at an address: of those that may have to, the one that has been
// silent for longest. It returns nil if there is none.
func (u *udaddy) silentFor(addr netip.Addr) (longest *node) {
	for i := range u.nodes {
		n := &u.nodes[i]
		if !n.connected || n.received > 0 || n.id.RemoteAddr().Addr() == addr && time.Since(n.since) < silentTime {
			continue
		}
		if longest == nil || n.since.Before(longest.since) {
			longest = n
		}
	}
	return longest
}

// turnAway refuses a client beyond -c.
func (u *udaddy) turnAway(id *rdmacm.ID) {
	u.inv.Explain(cm.ErrTooMany)
	u.surplus = u.refuse(id, cm.Failed(cm.StatusNoMemory))
	u.inv.Explain(id.Close())
}

func (u *udaddy) requested(id *rdmacm.ID) error {
	n, err := u.accept(id)
	if n == nil || err != nil {
		return err
	}
	u.connectsLeft--
	n.connected, n.since = true, time.Now()
	return nil
}

// asked are the requests that come while the server waits for messages.
type asked struct {
	mu     sync.Mutex
	events []rdmacm.Event
	wake   context.CancelCauseFunc // of the wait
}

var errAsked = errors.New("another client asks")

func (a *asked) add(ev rdmacm.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, ev)
	if a.wake != nil {
		a.wake(errAsked)
	}
}

// turn returns a context that ends when somebody asks, or has asked.
func (a *asked) turn(ctx context.Context) (turn context.Context, done func()) {
	turn, cancel := context.WithCancelCause(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wake = cancel; len(a.events) > 0 {
		cancel(errAsked)
	}
	return turn, func() { cancel(nil) }
}

func (a *asked) take() []rdmacm.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	events := a.events
	a.events = nil
	return events
}

// answer makes the address handle for replies to the sender of a message.
func (u *udaddy) answer(n *node, wc *verbs.WC) (err error) {
	const line = "udaddy: failed to create reply AH"
	if n.ah, err = n.pd.CreateAHFromWC(n.id.Port(), wc, n.mr.Bytes()); err != nil {
		return u.complain(cm.StatusFailed, err, line)
	}
	attr, _, err := n.id.QP().Query()
	if err != nil {
		return u.complain(cm.StatusFailed, err, line)
	}
	n.remoteQPN, n.remoteQKey = verbs.QPN(wc.Imm), attr.QKey
	return nil
}

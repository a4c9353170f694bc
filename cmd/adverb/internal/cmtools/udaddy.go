package cmtools

import (
	"fmt"
	"math"

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
		cli.Flag{Short: 'p', Long: "port-space-number", Arg: "<num>", Help: "0x111, which is udp; 0x2, ipoib, is refused", Values: cli.OneOf("0x111"), Check: clib.Within(0, math.MaxUint16)},
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

// portSpaceIPoIB is RDMA_PS_IPOIB.
const portSpaceIPoIB = 0x0002

// datagramSpace returns the port space of a number. It refuses those whose IDs have no UD QPs here.
func datagramSpace(number int) (rdmacm.PortSpace, error) {
	switch number {
	case int(rdmacm.PortSpaceUDP):
		return rdmacm.PortSpaceUDP, nil
	case portSpaceIPoIB:
		return 0, fmt.Errorf("port space 0x2 (IPoIB): RoCE has no IPoIB; use udp, 0x111")
	}
	return 0, fmt.Errorf("port space %#x: datagrams have udp, 0x111", number)
}

func parseUdaddy(inv *cli.Invocation) (f cm.Flags, code int, ok bool) {
	f = cm.Flags{Connections: 1, Count: 10, Size: 100, TOS: -1, Port: "7174"}
	space := int(rdmacm.PortSpaceUDP)
	var refused error
	var operands []string
	operands, code, ok = inv.Parse(cli.ExitError, func(name, arg string) bool {
		switch name {
		case "port-space":
			switch {
			case clib.HasPrefix(arg, "ipoib"):
				space = portSpaceIPoIB
			case !clib.HasPrefix(arg, "udp"):
				inv.Errorf("Warning: unknown port space format\n")
			}
		case "port-space-number":
			space = clib.Int(arg)
		case "port":
			f.Port = arg
		default:
			if err := f.Set(inv, name, arg); err != nil {
				refused = err
			}
		}
		return true
	})
	if !ok {
		return f, code, false
	}
	cm.IgnoreOperands(inv, operands)
	var err error
	if f.Space, err = datagramSpace(space); err != nil && refused == nil {
		refused = err
	}
	if refused != nil {
		return f, inv.Fail(refused, ""), false
	}
	return f, code, true
}

// udaddy is a run of the program.
type udaddy struct {
	common
	flags cm.Flags
}

func runUdaddy(inv *cli.Invocation) int {
	f, code, ok := parseUdaddy(inv)
	if !ok {
		return code
	}
	u := &udaddy{common{inv: inv, prog: "udaddy", space: f.Space, count: f.Count, size: f.Size}, f}
	if f.Server == "" {
		return u.main(f.Device, f.Connections, false, u.serve)
	}
	return u.main(f.Device, f.Connections, true, u.dial)
}

func (u *udaddy) dial() error {
	u.inv.Printf("udaddy: starting client\n")
	src, dst, err := u.flags.Addresses(u.inv.Ctx)
	if err != nil {
		return u.lookupFailed(err)
	}
	u.inv.Printf("udaddy: connecting\n")
	for i := range u.nodes {
		if err := u.nodes[i].id.ResolveAddr(src, dst); err != nil {
			return u.perror(err, "failure getting addr")
		}
	}
	if err := u.events(&u.connectsLeft, u.handle); err != nil {
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
	for i := range u.nodes {
		if err := u.postSends(&u.nodes[i], 0, 0); err != nil {
			return err
		}
	}
	u.inv.Printf("receiving data transfers\n")
	if err := u.collectAll(); err != nil {
		return err
	}
	u.inv.Printf("data transfers complete\n")
	return nil
}

// collectAll waits for -C completions of each connection.
func (u *udaddy) collectAll() error {
	ctx, stop := u.watch(nil)
	defer stop()
	for i := range u.nodes {
		if n := &u.nodes[i]; n.connected {
			if err := u.collect(ctx, n.recvCQ, u.count); err != nil {
				return err
			}
		}
	}
	return nil
}

func (u *udaddy) handle(ev rdmacm.Event) error {
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		return u.addrResolved(ev.ID)
	case rdmacm.EventRouteResolved:
		return u.routeResolved(ev.ID.Context.(*node))
	case rdmacm.EventConnectRequest:
		return u.requested(ev.ID)
	case rdmacm.EventEstablished:
		return u.found(ev.ID.Context.(*node), &ev.UD)
	case rdmacm.EventAddrError, rdmacm.EventRouteError, rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		return u.failedEvent(ev)
	}
	return nil
}

func (u *udaddy) addrResolved(id *rdmacm.ID) error {
	if u.flags.TOS >= 0 {
		if err := id.SetTOS(uint8(u.flags.TOS)); err != nil {
			u.perror(err, "set TOS option failed")
		}
	}
	if err := id.ResolveRoute(); err != nil {
		u.connectsLeft--
		return u.perror(err, "resolve route failed")
	}
	return nil
}

func (u *udaddy) routeResolved(n *node) error {
	err := u.prepare(n)
	if err == nil {
		if cerr := n.id.Connect(&rdmacm.ConnParam{}); cerr != nil {
			err = u.perror(cerr, "failure connecting")
		}
	}
	if err != nil {
		u.connectsLeft--
	}
	return err
}

// prepare makes a node ready to receive.
func (u *udaddy) prepare(n *node) error {
	if err := u.fits(n); err != nil {
		return err
	}
	if err := u.setup(n, verbs.GRHSize); err != nil {
		return err
	}
	return u.postRecvs(n)
}

// found takes the address of the server's QP, which the connection manager has found.
func (u *udaddy) found(n *node, ud *rdmacm.UDParam) (err error) {
	u.connectsLeft--
	n.remoteQPN, n.remoteQKey = ud.QPN, ud.QKey
	if n.ah, err = n.pd.CreateAH(ud.AH); err != nil {
		return u.complain(cm.StatusFailed, err, "udaddy: failure creating address handle")
	}
	n.connected = true
	return nil
}

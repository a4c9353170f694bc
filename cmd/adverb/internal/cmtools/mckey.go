package cmtools

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

const mckeyUsage = `	-m multicast_address
	[-M unmapped_multicast_address]
	 replaces -m and requires -b
	[-s(ender)]
	[-b bind_address]
	[-c connections]
	[-C message_count]
	[-S message_size]
	[-p port_space - 0x111 for UDP (default), 0x2 for IPOIB]
	[-o join as a send-only full-member]
	[-l join without multicast loopback]
`

// Mckey is the command mckey.
var Mckey = &cli.Command{
	Name:    "mckey",
	Classic: []string{"mckey"},
	Short:   "Join a multicast group by the connection manager, and send to it or receive",
	Flags: append([]cli.Flag{
		{Short: 'm', Long: "group", Arg: "<addr>", Help: "IP multicast address"},
		{Short: 'M', Long: "mgid", Arg: "<gid>", Help: "the same as GID, such as ::ffff:239.1.2.3; needs -b"},
		{Short: 's', Long: "sender", Help: "send (default receive)"},
		{Short: 'o', Long: "send-only", Help: "join for sending only: the host asks for none of the group's messages"},
		{Short: 'l', Long: "no-loopback", Help: "keep messages from this host's own receivers: refused"},
		datagramFlag,
		{Long: "settle", Arg: "<time>", Help: "wait for the network to learn of the members (default 3s)", Ours: true},
	}, cm.FlagsOf("bcCS")...),
	Forms: []cli.Form{
		{Args: "-m <addr>", Does: "receive what is sent to the group"},
		{Args: "-m <addr> -s", Does: "send to the group"},
	},
	Usage: cm.Usage(mckeyUsage),
	More: `Two terminals of one machine, the second within three seconds of the first or later:
  PROG -m 239.1.2.3 -b 127.0.0.1
  PROG -m 239.1.2.3 -b 127.0.0.1 -s
Without -b the host's route to the group chooses the address. A receiver waits for -C messages
at each of its -c QPs, which all get all that is sent. The other end may be the C program.
Nothing repeats what the network loses: a receiver then waits until Ctrl-C.
`,
	Run: runMckey,
}

// mckeySettle is how long the C program waits for switches before it sends.
const mckeySettle = 3 * time.Second

type mckeyFlags struct {
	cm.Flags
	group      string // -m, -M
	unmapped   bool   // -M
	sender     bool
	sendOnly   bool
	noLoopback bool
	settle     time.Duration
}

var (
	errMckeyNoGroup  = errors.New("give the group's address by -m")
	errMckeySendOnly = errors.New("-o: a member that joined for sending only receives nothing, so give -s too")
	errMckeyLoopback = verbs.Errorf(verbs.ErrUnsupported, "-l: devices here cannot keep messages from receivers on their own host (QP_CREATE_BLOCK_SELF_MCAST_LB)")
)

func parseMckey(inv *cli.Invocation) (f mckeyFlags, code int, ok bool) {
	f = mckeyFlags{Flags: cm.Flags{Connections: 1, Count: 10, Size: 100, Space: rdmacm.PortSpaceUDP}, settle: mckeySettle}
	_, code, ok, refused := parse(inv, &f.Flags, func(name, arg string) (known bool, err error) {
		switch name {
		case "group":
			f.group = arg
		case "mgid":
			f.group, f.unmapped = arg, true
		case "sender":
			f.sender = true
		case "send-only":
			f.sendOnly = true
		case "no-loopback":
			f.noLoopback = true
		case "port-space-number":
			f.Space = rdmacm.PortSpace(clib.Int(arg))
		case "settle":
			f.settle, err = time.ParseDuration(arg)
		default:
			return false, nil
		}
		return true, err
	})
	if !ok {
		return f, code, false
	}
	if f.unmapped && f.Bind == "" {
		inv.Printf("unmapped multicast address requires binding to source address\n")
		return f, cli.ExitError, false
	}
	refused = cmp.Or(refused, checkDatagrams(f.Space))
	if f.sendOnly && !f.sender {
		refused = cmp.Or(refused, errMckeySendOnly)
	}
	if refused != nil {
		return f, inv.Fail(refused, ""), false
	}
	return f, code, true
}

// mckey is a run of the program.
type mckey struct {
	common
	own   mckeyFlags
	group netip.Addr
}

func runMckey(inv *cli.Invocation) int {
	f, code, ok := parseMckey(inv)
	if !ok {
		return code
	}
	m := &mckey{common: newCommon(inv, "mckey", &f.Flags), own: f}
	return m.main(true, m.run)
}

func (m *mckey) run() error {
	role := "server"
	if m.own.sender {
		role = "client"
	}
	m.inv.Printf("mckey: starting %s\n", role)
	src, err := m.addresses()
	if err != nil {
		return err
	}
	m.inv.Printf("mckey: joining\n")
	err = m.joinAll(src)
	if err == nil {
		err = m.transfer()
	}
	// The C program returns the status of leaving, and forgets what failed before.
	for i := range m.nodes {
		if n := &m.nodes[i]; n.connected {
			if lerr := n.id.LeaveMulticast(m.group); lerr != nil && err == nil {
				err = m.perror(lerr, "failure leaving")
			}
		}
	}
	return err
}

// addresses looks up the group and this end's own address, which may be the zero value.
func (m *mckey) addresses() (src netip.AddrPort, err error) {
	f := &m.own
	if f.Bind != "" {
		a, err := m.lookup(f.Bind)
		if err != nil {
			return src, err
		}
		src = netip.AddrPortFrom(a, 0)
	}
	if f.group == "" {
		return src, m.badAddress(&cm.LookupError{Code: cm.EAINoName, Cause: errMckeyNoGroup})
	}
	if f.unmapped {
		gid, err := verbs.ParseGID(f.group)
		if err != nil {
			return src, m.badAddress(&cm.LookupError{Code: cm.EAINoName, Cause: err})
		}
		m.group = gid.Addr() // a GID of RoCE v2 is an IP address
		return src, nil
	}
	m.group, err = m.lookup(f.group)
	return src, err
}

func (m *mckey) lookup(host string) (netip.Addr, error) {
	a, err := cm.Lookup(m.inv.Ctx, host, false, netip.Addr{})
	if e, ok := errors.AsType[*cm.LookupError](err); ok {
		return a, m.badAddress(e)
	}
	return a, err
}

func (m *mckey) badAddress(e *cm.LookupError) error {
	return m.complain(e.Code, e, "getaddrinfo failed (%s) - invalid hostname or IP address", e.Text())
}

// joinAll joins the group by all nodes, and waits until they are members.
func (m *mckey) joinAll(src netip.AddrPort) error {
	for i := range m.nodes {
		n := &m.nodes[i]
		if src.IsValid() {
			if err := n.id.BindAddr(src); err != nil {
				return m.perror(err, "addr bind failure")
			}
		}
		if m.own.unmapped {
			if err := m.join(n); err != nil {
				return err
			}
		} else if err := n.id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(m.group, 0)); err != nil {
			return m.perror(err, "resolve addr failure")
		}
	}
	return m.events(&m.connectsLeft, m.handle)
}

func (m *mckey) handle(ev rdmacm.Event) error {
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		return m.join(ev.ID.Context.(*node))
	case rdmacm.EventMulticastJoin:
		m.inv.Printf("mckey: joined dgid: %v mlid 0x%x sl %d\n", ev.UD.AH.DGID, ev.UD.AH.DLID, ev.UD.AH.SL) // RoCE has no LIDs
		return m.found(ev.ID.Context.(*node), &ev.UD)
	}
	return m.calling(ev)
}

func (m *mckey) join(n *node) error {
	err := m.askToJoin(n)
	if err != nil {
		m.connectsLeft--
	}
	return err
}

// askToJoin makes a node ready and asks for its membership. A QP that exists when its ID joins is
// attached to the group. A node that only sends gets its QP afterwards, so its QP is not attached.
func (m *mckey) askToJoin(n *node) error {
	if err := m.fits(n); err != nil {
		return err
	}
	if m.own.noLoopback {
		return m.perror(errMckeyLoopback, "unable to create QP")
	}
	if m.own.sendOnly {
		if err := m.joinGroup(n); err != nil {
			return err
		}
		return m.setup(n, verbs.GRHSize)
	}
	if err := m.setup(n, verbs.GRHSize); err != nil {
		return err
	}
	if !m.own.sender {
		if err := m.postRecvs(n); err != nil {
			return err
		}
	}
	return m.joinGroup(n)
}

func (m *mckey) joinGroup(n *node) error {
	if err := n.id.JoinMulticast(m.group); err != nil {
		return m.perror(err, "failure joining")
	}
	return nil
}

// transfer sends or receives. It first waits until the network knows the members.
func (m *mckey) transfer() error {
	ctx, cancel := context.WithCancel(m.inv.Ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.watchGroup(ctx)
	}()
	defer func() { cancel(); <-done }()
	select {
	case <-time.After(m.own.settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	if m.count == 0 {
		return nil
	}
	var err error
	if m.own.sender {
		m.inv.Printf("initiating data transfers\n")
		err = m.send()
	} else {
		m.inv.Printf("receiving data transfers\n")
		err = m.collectEach(m.inv.Ctx, (*node).receives, m.count)
	}
	if err == nil {
		m.inv.Printf("data transfers complete\n")
	}
	return err
}

// watchGroup prints what happens to the membership during the transfer.
func (m *mckey) watchGroup(ctx context.Context) {
	for {
		ev, err := m.ch.Next(ctx)
		if err != nil {
			return
		}
		switch ev.Type {
		case rdmacm.EventMulticastError, rdmacm.EventAddrChange:
			m.inv.Printf("mckey: event: %v, status: %d\n", ev.Type, ev.Status)
			m.inv.Explain(ev.Err)
		}
	}
}

// send sends all messages. The C program then leaves the group at once. Here the completion of the
// last message says that all messages have gone out.
func (m *mckey) send() error {
	if err := m.sendAll(0, verbs.SendSignaled); err != nil {
		return err
	}
	return m.collectEach(m.inv.Ctx, (*node).sends, 1)
}

package main

import (
	"context"
	"errors"
	"net/netip"
	"time"

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

var mckeyCmd = &command{
	name:    "mckey",
	classic: "mckey",
	short:   "Join a multicast group by the connection manager, and send to it or receive",
	options: append([]option{
		{short: 'm', long: "group", arg: "<addr>", help: "IP multicast address"},
		{short: 'M', long: "mgid", arg: "<gid>", help: "the same as GID, such as ::ffff:239.1.2.3; needs -b"},
		{short: 's', long: "sender", help: "send (default receive)"},
		{short: 'o', long: "send-only", help: "join for sending only: the host asks for none of the group's messages"},
		{short: 'l', long: "no-loopback", help: "keep messages from this host's own receivers: refused"},
		{short: 'p', long: "port-space-number", arg: "<num>", help: "0x111, which is udp; 0x2, ipoib, is refused"},
		{long: "settle", arg: "<time>", help: "wait for the network to learn of the members (default 3s)", ours: true},
	}, cmOptions("bcCS")...),
	usage: cmUsage(mckeyUsage, "-m <addr>     receive what is sent to the group", "-m <addr> -s  send to the group"),
	more: `Two terminals of one machine, the second within three seconds of the first or later:
  PROG -m 239.1.2.3 -b 127.0.0.1
  PROG -m 239.1.2.3 -b 127.0.0.1 -s
Without -b the host's route to the group chooses the address. A receiver waits for -C messages
at each of its -c QPs, which all get all that is sent. The other end may be the C program.
Nothing repeats what the network loses: a receiver then waits until Ctrl-C.
`,
	run: runMckey,
}

// mckeySettle is how long the C program waits for switches before it sends.
const mckeySettle = 3 * time.Second

type mckeyFlags struct {
	cmFlags
	group      string // -m, -M
	unmapped   bool   // -M
	sender     bool
	sendOnly   bool
	noLoopback bool
	settle     time.Duration
}

var (
	errMckeyNoGroup  = errors.New("give the group's address by -m")
	errMckeySendOnly = errors.New("-o: who joins for sending only receives nothing, so it goes with -s")
	errMckeyLoopback = verbs.Errorf(verbs.ErrUnsupported, "-l: devices here cannot keep messages from receivers on their own host (QP_CREATE_BLOCK_SELF_MCAST_LB)")
)

func parseMckey(inv *invocation) (f mckeyFlags, code int, ok bool) {
	f = mckeyFlags{cmFlags: cmFlags{connections: 1, count: 10, size: 100}, settle: mckeySettle}
	space := int(rdmacm.PortSpaceUDP)
	var refused error
	_, code, ok = inv.parse(exitError, func(name, arg string) bool {
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
			space = optInt(arg)
		case "settle":
			var err error
			if f.settle, err = time.ParseDuration(arg); err != nil {
				refused = err
			}
		default:
			if err := f.set(inv, name, arg); err != nil {
				refused = err
			}
		}
		return true
	})
	if !ok {
		return f, code, false
	}
	if f.unmapped && f.bind == "" {
		inv.printf("unmapped multicast address requires binding to source address\n")
		return f, exitError, false
	}
	var err error
	if f.space, err = cmDatagramSpace(space); err != nil && refused == nil {
		refused = err
	}
	if f.sendOnly && !f.sender && refused == nil {
		refused = errMckeySendOnly
	}
	if refused != nil {
		return f, inv.fail(refused, ""), false
	}
	return f, code, true
}

// mckey is a run of the program.
type mckey struct {
	cmRun
	flags mckeyFlags
	group netip.Addr
}

func runMckey(inv *invocation) int {
	f, code, ok := parseMckey(inv)
	if !ok {
		return code
	}
	m := &mckey{cmRun: cmRun{inv: inv, prog: "mckey", space: f.space, count: f.count, size: f.size}, flags: f}
	return m.main(f.device, f.connections, true, m.run)
}

func (m *mckey) run() error {
	role := "server"
	if m.flags.sender {
		role = "client"
	}
	m.inv.printf("mckey: starting %s\n", role)
	src, err := m.addresses()
	if err != nil {
		return err
	}
	m.inv.printf("mckey: joining\n")
	err = m.joinAll(src)
	if err == nil {
		err = m.transfer()
	}
	// The C program's status is that of leaving, whatever came before.
	for i := range m.nodes {
		if n := &m.nodes[i]; n.connected {
			if lerr := n.id.LeaveMulticast(m.group); lerr != nil && err == nil {
				err = m.perror(lerr, "failure leaving")
			}
		}
	}
	return err
}

// addresses looks up the group and the own address, which may be the zero value.
func (m *mckey) addresses() (src netip.AddrPort, err error) {
	f := &m.flags
	if f.bind != "" {
		a, err := m.lookup(f.bind)
		if err != nil {
			return src, err
		}
		src = netip.AddrPortFrom(a, 0)
	}
	if f.group == "" {
		return src, m.badAddress(&cmLookupError{eaiNoName, errMckeyNoGroup})
	}
	if f.unmapped {
		gid, err := verbs.ParseGID(f.group)
		if err != nil {
			return src, m.badAddress(&cmLookupError{eaiNoName, err})
		}
		m.group = gid.Addr() // a GID of RoCE v2 is an IP address
		return src, nil
	}
	m.group, err = m.lookup(f.group)
	return src, err
}

func (m *mckey) lookup(host string) (netip.Addr, error) {
	a, err := cmLookup(m.inv.ctx, host, false, netip.Addr{})
	if e, ok := errors.AsType[*cmLookupError](err); ok {
		return a, m.badAddress(e)
	}
	return a, err
}

func (m *mckey) badAddress(e *cmLookupError) error {
	return m.complain(e.code, e, "getaddrinfo failed (%s) - invalid hostname or IP address", e.text())
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
		if m.flags.unmapped {
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
		return m.join(ev.ID.Context.(*cmNode))
	case rdmacm.EventMulticastJoin:
		return m.joined(ev.ID.Context.(*cmNode), &ev.UD)
	case rdmacm.EventAddrError, rdmacm.EventRouteError, rdmacm.EventMulticastError:
		return m.failedEvent(ev)
	}
	return nil
}

func (m *mckey) join(n *cmNode) error {
	err := m.prepare(n)
	if err != nil {
		m.connectsLeft--
	}
	return err
}

// prepare makes a node ready and asks for its membership. A QP that is there when its ID joins is
// attached to the group; one that only sends comes later and is not.
func (m *mckey) prepare(n *cmNode) error {
	if err := m.fits(n); err != nil {
		return err
	}
	if m.flags.noLoopback {
		return m.perror(errMckeyLoopback, "unable to create QP")
	}
	if m.flags.sendOnly {
		if err := m.askToJoin(n); err != nil {
			return err
		}
		return m.setup(n, verbs.GRHSize)
	}
	if err := m.setup(n, verbs.GRHSize); err != nil {
		return err
	}
	if !m.flags.sender {
		if err := m.postRecvs(n); err != nil {
			return err
		}
	}
	return m.askToJoin(n)
}

func (m *mckey) askToJoin(n *cmNode) error {
	if err := n.id.JoinMulticast(m.group); err != nil {
		return m.perror(err, "failure joining")
	}
	return nil
}

// joined is told how to send to the group.
func (m *mckey) joined(n *cmNode, ud *rdmacm.UDParam) (err error) {
	m.inv.printf("mckey: joined dgid: %v mlid 0x%x sl %d\n", ud.AH.DGID, 0, ud.AH.SL) // RoCE has no LIDs
	m.connectsLeft--
	n.remoteQPN, n.remoteQKey = ud.QPN, ud.QKey
	if n.ah, err = n.pd.CreateAH(ud.AH); err != nil {
		return m.complain(cmStatusFailed, err, "mckey: failure creating address handle")
	}
	n.connected = true
	return nil
}

// transfer sends or receives, when all are members and the network knows it.
func (m *mckey) transfer() error {
	ctx, cancel := context.WithCancel(m.inv.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.watchGroup(ctx)
	}()
	defer func() { cancel(); <-done }()
	select {
	case <-time.After(m.flags.settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	if m.count == 0 {
		return nil
	}
	var err error
	if m.flags.sender {
		m.inv.printf("initiating data transfers\n")
		err = m.send()
	} else {
		m.inv.printf("receiving data transfers\n")
		err = m.receive()
	}
	if err == nil {
		m.inv.printf("data transfers complete\n")
	}
	return err
}

// watchGroup prints what happens to the membership meanwhile.
func (m *mckey) watchGroup(ctx context.Context) {
	for {
		ev, err := m.ch.Next(ctx)
		if err != nil {
			return
		}
		switch ev.Type {
		case rdmacm.EventMulticastError, rdmacm.EventAddrChange:
			m.inv.printf("mckey: event: %v, status: %d\n", ev.Type, ev.Status)
			m.inv.explain(ev.Err)
		}
	}
}

// send sends all messages. The C program leaves at once; here the last one's completion says that
// all have left.
func (m *mckey) send() error {
	for i := range m.nodes {
		if err := m.postSends(&m.nodes[i], 0, verbs.SendSignaled); err != nil {
			return err
		}
	}
	for i := range m.nodes {
		if err := m.collect(m.inv.ctx, m.nodes[i].sendCQ, 1, nil); err != nil {
			return err
		}
	}
	return nil
}

func (m *mckey) receive() error {
	for i := range m.nodes {
		if err := m.collect(m.inv.ctx, m.nodes[i].recvCQ, m.count, nil); err != nil {
			return err
		}
	}
	return nil
}

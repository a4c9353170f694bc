package main

import (
	"fmt"

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

var udaddyCmd = &command{
	name:    "udaddy",
	classic: "udaddy",
	short:   "Find a peer by the connection manager and exchange datagrams",
	options: append(cmOptions("sbfcCSt"),
		option{short: 'P', long: "port-space", arg: "<space>", help: "udp (default); ipoib is refused"},
		option{short: 'p', long: "port-space-number", arg: "<num>", help: "0x111, which is udp; 0x2, ipoib, is refused"},
		option{long: "port", arg: "<port>", help: "port of the server (default 7174)", ours: true},
	),
	usage: cmUsage(udaddyUsage, "           serve one client", "-s <host>  be the client of the server at <host>"),
	more: `Two terminals of one machine:
  PROG
  PROG -s localhost
Both ends need the same -c, -C and -S. The other end may be the C program. Nothing repeats
what the network loses: both ends then wait until Ctrl-C.
`,
	run: runUdaddy,
}

// portSpaceIPoIB is RDMA_PS_IPOIB.
const portSpaceIPoIB = 0x0002

// cmDatagramSpace refuses port spaces whose IDs have no UD QPs here.
func cmDatagramSpace(number int) (rdmacm.PortSpace, error) {
	switch number {
	case int(rdmacm.PortSpaceUDP):
		return rdmacm.PortSpaceUDP, nil
	case portSpaceIPoIB:
		return 0, fmt.Errorf("port space 0x2 (IPoIB): RoCE has no IPoIB; use udp, 0x111")
	}
	return 0, fmt.Errorf("port space %#x: datagrams have udp, 0x111", number)
}

func parseUdaddy(inv *invocation) (f cmFlags, code int, ok bool) {
	f = cmFlags{connections: 1, count: 10, size: 100, tos: -1, port: "7174"}
	space := int(rdmacm.PortSpaceUDP)
	var refused error
	_, code, ok = inv.parse(exitError, func(name, arg string) bool {
		switch name {
		case "port-space":
			switch {
			case cmHasPrefix(arg, "ipoib"):
				space = portSpaceIPoIB
			case !cmHasPrefix(arg, "udp"):
				inv.errorf("Warning: unknown port space format\n")
			}
		case "port-space-number":
			space = optInt(arg)
		case "port":
			f.port = arg
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
	var err error
	if f.space, err = cmDatagramSpace(space); err != nil && refused == nil {
		refused = err
	}
	if refused != nil {
		return f, inv.fail(refused, ""), false
	}
	return f, code, true
}

// udaddy is a run of the program.
type udaddy struct {
	cmRun
	flags cmFlags
}

func runUdaddy(inv *invocation) int {
	f, code, ok := parseUdaddy(inv)
	if !ok {
		return code
	}
	u := &udaddy{cmRun{inv: inv, prog: "udaddy", space: f.space, count: f.count, size: f.size}, f}
	if f.server == "" {
		return u.main(f.device, f.connections, false, u.serve)
	}
	return u.main(f.device, f.connections, true, u.dial)
}

func (u *udaddy) serve() error {
	l, err := u.listen(&u.flags)
	if err != nil {
		return err
	}
	defer func() { u.inv.explain(l.Close()) }()
	// The C program goes on with those that are connected, and says that all is well.
	failed := u.events(&u.connectsLeft, u.handle)
	if u.inv.ctx.Err() != nil {
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

// serverTransfer answers.
func (u *udaddy) serverTransfer() error {
	u.inv.printf("receiving data transfers\n")
	if err := u.collectAll(); err != nil {
		return err
	}
	u.inv.printf("sending replies\n")
	for i := range u.nodes {
		if err := u.postSends(&u.nodes[i], verbs.SendSignaled, 0); err != nil {
			return err
		}
	}
	if err := u.collectAll(); err != nil {
		return err
	}
	u.inv.printf("data transfers complete\n")
	return nil
}

func (u *udaddy) dial() error {
	u.inv.printf("udaddy: starting client\n")
	src, dst, err := u.flags.addresses(u.inv.ctx)
	if err != nil {
		return u.lookupFailed(err)
	}
	u.inv.printf("udaddy: connecting\n")
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

// clientTransfer sends first.
func (u *udaddy) clientTransfer() error {
	u.inv.printf("initiating data transfers\n")
	for i := range u.nodes {
		if err := u.postSends(&u.nodes[i], 0, 0); err != nil {
			return err
		}
	}
	u.inv.printf("receiving data transfers\n")
	if err := u.collectAll(); err != nil {
		return err
	}
	u.inv.printf("data transfers complete\n")
	return nil
}

// collectAll waits for -C completions of each connection. A server learns from the first where
// its client is.
func (u *udaddy) collectAll() error {
	ctx, stop := u.watch()
	defer stop()
	for i := range u.nodes {
		n := &u.nodes[i]
		if !n.connected {
			continue
		}
		err := u.collect(ctx, n.recvCQ, u.count, func(wc *verbs.WC) error {
			if n.ah == nil {
				return u.answer(n, wc)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// answer addresses the replies to the sender of a message.
func (u *udaddy) answer(n *cmNode, wc *verbs.WC) (err error) {
	const line = "udaddy: failed to create reply AH"
	if n.ah, err = n.pd.CreateAHFromWC(n.id.Port(), wc, n.mr.Bytes()); err != nil {
		return u.complain(cmStatusFailed, err, line)
	}
	attr, _, err := n.id.QP().Query()
	if err != nil {
		return u.complain(cmStatusFailed, err, line)
	}
	n.remoteQPN, n.remoteQKey = verbs.QPN(wc.Imm), attr.QKey
	return nil
}

func (u *udaddy) handle(ev rdmacm.Event) error {
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		return u.addrResolved(ev.ID)
	case rdmacm.EventRouteResolved:
		return u.routeResolved(ev.ID.Context.(*cmNode))
	case rdmacm.EventConnectRequest:
		return u.requested(ev.ID)
	case rdmacm.EventEstablished:
		return u.found(ev.ID.Context.(*cmNode), &ev.UD)
	case rdmacm.EventAddrError, rdmacm.EventRouteError, rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		return u.failedEvent(ev)
	}
	return nil
}

func (u *udaddy) addrResolved(id *rdmacm.ID) error {
	if u.flags.tos >= 0 {
		if err := id.SetTOS(uint8(u.flags.tos)); err != nil {
			u.perror(err, "set TOS option failed")
		}
	}
	if err := id.ResolveRoute(); err != nil {
		u.connectsLeft--
		return u.perror(err, "resolve route failed")
	}
	return nil
}

func (u *udaddy) routeResolved(n *cmNode) error {
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
func (u *udaddy) prepare(n *cmNode) error {
	if err := u.fits(n); err != nil {
		return err
	}
	if err := u.setup(n, verbs.GRHSize); err != nil {
		return err
	}
	return u.postRecvs(n)
}

func (u *udaddy) requested(id *rdmacm.ID) error {
	n := u.admit(id)
	if n == nil {
		return nil
	}
	u.connectsLeft--
	err := u.prepare(n)
	if err == nil {
		if aerr := id.Accept(&rdmacm.ConnParam{}); aerr != nil {
			err = u.perror(aerr, "failure accepting")
		}
	}
	if err != nil {
		return u.refuse(id, err)
	}
	n.connected = true
	return nil
}

// found is told where the server's QP is.
func (u *udaddy) found(n *cmNode, ud *rdmacm.UDParam) (err error) {
	u.connectsLeft--
	n.remoteQPN, n.remoteQKey = ud.QPN, ud.QKey
	if n.ah, err = n.pd.CreateAH(ud.AH); err != nil {
		return u.complain(cmStatusFailed, err, "udaddy: failure creating address handle")
	}
	n.connected = true
	return nil
}

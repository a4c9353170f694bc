package main

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

const cmatoseUsage = `	[-s server_address]
	[-b bind_address]
	[-f address_format]
	    name, ip, ipv6, or gid
	[-P port_space]
	    tcp or ib
	[-c connections]
	[-C message_count]
	[-S message_size]
	[-t type_of_service]
	[-p port_number]
	[-m(igrate)]
	[-a ack_timeout]
`

var cmatoseCmd = &command{
	name:    "cmatose",
	classic: "ucmatose",
	also:    "cmatose",
	short:   "Connect by the connection manager and exchange messages",
	options: append(cmOptions("sbfcCSt"),
		option{short: 'P', long: "port-space", arg: "<space>", help: "tcp (default) or ib"},
		option{short: 'p', long: "port", arg: "<port>", help: "port of the server (default 7471)"},
		option{short: 'm', long: "migrate", help: "move to another event channel before disconnecting"},
		option{short: 'a', long: "ack-timeout", arg: "<code>", help: "wait 4.096 us * 2^<code> for an acknowledgement"},
	),
	usage: cmUsage(cmatoseUsage, "           serve one client", "-s <host>  be the client of the server at <host>"),
	more: `Two terminals of one machine:
  PROG
  PROG -s localhost
The server sends -C messages over each connection, the client answers with as many, and the
server disconnects. Both ends need the same -c, -C and -S. The other end may be the C program.
Without -b a server has all IPv4 addresses; a <host> that has IPv4 and IPv6 is called by IPv4.
`,
	run: runCmatose,
}

// cmatoseFlags are the options of cmatose.
type cmatoseFlags struct {
	cmFlags
	migrate    bool
	ackTimeout int // code; -1: not set
}

func parseCmatose(inv *invocation) (f cmatoseFlags, code int, ok bool) {
	f = cmatoseFlags{cmFlags: cmFlags{connections: 1, count: 10, size: 100, tos: -1, port: "7471", space: rdmacm.PortSpaceTCP}, ackTimeout: -1}
	var refused error
	_, code, ok = inv.parse(exitError, func(name, arg string) bool {
		switch name {
		case "port-space":
			switch {
			case cmHasPrefix(arg, "ib"):
				f.space = rdmacm.PortSpaceIB
			case !cmHasPrefix(arg, "tcp"):
				inv.errorf("Warning: unknown port space format\n")
			}
		case "port":
			f.port = arg
		case "migrate":
			f.migrate = true
		case "ack-timeout":
			f.ackTimeout = int(uint8(strtol(arg)))
		default:
			if err := f.set(inv, name, arg); err != nil {
				refused = err
			}
		}
		return true
	})
	if ok && refused != nil {
		return f, inv.fail(refused, ""), false
	}
	return f, code, ok
}

// cmatose is a run of the program.
type cmatose struct {
	cmRun
	flags  cmatoseFlags
	failed bool // what is connected from now on is disconnected
}

func runCmatose(inv *invocation) int {
	f, code, ok := parseCmatose(inv)
	if !ok {
		return code
	}
	c := &cmatose{cmRun{inv: inv, prog: "cmatose", space: f.space, count: f.count, size: f.size}, f, false}
	if f.server == "" {
		return c.main(f.device, f.connections, false, c.serve)
	}
	return c.main(f.device, f.connections, true, c.dial)
}

func (c *cmatose) serve() (err error) {
	l, err := c.listen(&c.flags.cmFlags)
	if err != nil {
		return err
	}
	defer func() { c.inv.explain(l.Close()) }()
	if err := c.events(&c.connectsLeft, c.handle); err != nil {
		return err
	}
	if err := c.serverTransfer(); err != nil {
		return err
	}
	if c.flags.migrate {
		if err := c.migrate(l); err != nil {
			return err
		}
	}
	c.inv.printf("cmatose: disconnecting\n")
	c.disconnect()
	err = c.events(&c.disconnectsLeft, c.handle)
	if c.inv.ctx.Err() == nil {
		c.inv.printf("disconnected\n")
	}
	if err == nil {
		err = c.surplus
	}
	return err
}

// serverTransfer sends first.
func (c *cmatose) serverTransfer() error {
	if c.count == 0 {
		return nil
	}
	c.inv.printf("initiating data transfers\n")
	if err := c.sendAll(); err != nil {
		return err
	}
	c.inv.printf("completing sends\n")
	if err := c.collectAll(func(n *cmNode) *verbs.CQ { return n.sendCQ }); err != nil {
		return err
	}
	c.inv.printf("receiving data transfers\n")
	if err := c.collectAll(func(n *cmNode) *verbs.CQ { return n.recvCQ }); err != nil {
		return err
	}
	c.inv.printf("data transfers complete\n")
	return nil
}

func (c *cmatose) dial() error {
	c.inv.printf("cmatose: starting client\n")
	src, dst, err := c.flags.addresses(c.inv.ctx)
	if err != nil {
		return c.lookupFailed(err)
	}
	c.inv.printf("cmatose: connecting\n")
	err = c.connect(src, dst)
	if err == nil {
		err = c.clientTransfer()
	}
	if err == nil && c.flags.migrate {
		if err := c.migrate(nil); err != nil {
			return err
		}
	}
	if err != nil {
		// The C program waits for the server to disconnect, which waits for more connections.
		c.failed = true
		c.disconnect()
	}
	if late := c.events(&c.disconnectsLeft, c.handle); late != nil {
		return late
	}
	return err
}

func (c *cmatose) connect(src, dst netip.AddrPort) error {
	for i := range c.nodes {
		if err := c.nodes[i].id.ResolveAddr(src, dst); err != nil {
			return c.perror(err, "failure getting addr")
		}
	}
	return c.events(&c.connectsLeft, c.handle)
}

// clientTransfer answers.
func (c *cmatose) clientTransfer() error {
	if c.count == 0 {
		return nil
	}
	c.inv.printf("receiving data transfers\n")
	if err := c.collectAll(func(n *cmNode) *verbs.CQ { return n.recvCQ }); err != nil {
		return err
	}
	c.inv.printf("sending replies\n")
	if err := c.sendAll(); err != nil {
		return err
	}
	c.inv.printf("data transfers complete\n")
	return nil
}

func (c *cmatose) sendAll() error {
	for i := range c.nodes {
		if err := c.postSends(&c.nodes[i], 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// collectAll waits for a completion of each message of each connection.
func (c *cmatose) collectAll(cq func(*cmNode) *verbs.CQ) error {
	ctx, stop := c.watch()
	defer stop()
	for i := range c.nodes {
		if n := &c.nodes[i]; n.connected {
			if err := c.collect(ctx, cq(n), c.count, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// disconnect ends all connections.
func (c *cmatose) disconnect() {
	for i := range c.nodes {
		if n := &c.nodes[i]; n.connected {
			n.connected = false
			_ = n.id.Disconnect() // the peer may have done so already
		}
	}
}

// migrate moves all IDs to a new event channel.
func (c *cmatose) migrate(listener *rdmacm.ID) error {
	c.inv.printf("migrating to new event channel\n")
	ch := c.newChannel()
	ids := make([]*rdmacm.ID, 0, len(c.nodes)+1)
	if listener != nil {
		ids = append(ids, listener)
	}
	for i := range c.nodes {
		ids = append(ids, c.nodes[i].id)
	}
	for _, id := range ids {
		if err := id.Migrate(ch); err != nil {
			return c.perror(err, "failure migrating to channel")
		}
	}
	if err := c.ch.Close(); err != nil {
		return c.perror(err, "failure migrating to channel")
	}
	c.ch = ch
	return nil
}

func (c *cmatose) handle(ev rdmacm.Event) error {
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		return c.addrResolved(ev.ID)
	case rdmacm.EventRouteResolved:
		return c.routeResolved(ev.ID.Context.(*cmNode))
	case rdmacm.EventConnectRequest:
		return c.requested(ev.ID)
	case rdmacm.EventEstablished:
		ev.ID.Context.(*cmNode).connected = true
		c.connectsLeft--
		c.disconnectsLeft++
		if c.failed {
			c.disconnect()
		}
	case rdmacm.EventAddrError, rdmacm.EventRouteError, rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		return c.failedEvent(ev)
	case rdmacm.EventDisconnected:
		_ = ev.ID.Disconnect() // nothing is left to do where this end was the first
		c.disconnectsLeft--
	}
	return nil
}

func (c *cmatose) addrResolved(id *rdmacm.ID) error {
	if c.flags.tos >= 0 {
		if err := id.SetTOS(uint8(c.flags.tos)); err != nil {
			c.perror(err, "set TOS option failed")
		}
	}
	c.setACKTimeout(id)
	if err := id.ResolveRoute(); err != nil {
		c.connectsLeft--
		return c.perror(err, "resolve route failed")
	}
	return nil
}

func (c *cmatose) setACKTimeout(id *rdmacm.ID) {
	if c.flags.ackTimeout < 0 {
		return
	}
	if err := id.SetACKTimeout(uint8(c.flags.ackTimeout)); err != nil {
		c.perror(err, "set ack timeout option failed")
	}
}

func (c *cmatose) routeResolved(n *cmNode) error {
	err := c.setup(n, 0)
	if err == nil {
		err = c.postRecvs(n)
	}
	if err == nil {
		// No RNR retry: the receives are posted. The server's first message may come at once.
		if cerr := n.id.Connect(&rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 5}); cerr != nil {
			err = c.perror(cerr, "failure connecting")
		}
	}
	if err != nil {
		c.connectsLeft--
	}
	return err
}

func (c *cmatose) requested(id *rdmacm.ID) error {
	n := c.admit(id)
	if n == nil {
		return nil
	}
	err := c.setup(n, 0)
	if err == nil {
		c.setACKTimeout(id)
		err = c.postRecvs(n)
	}
	if err == nil {
		if aerr := id.Accept(nil); aerr != nil {
			err = c.perror(aerr, "failure accepting")
		}
	}
	if err != nil {
		c.connectsLeft--
		return c.refuse(id, err)
	}
	return nil
}

package cmtools

import (
	"context"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
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

// Cmatose is the command cmatose.
var Cmatose = &cli.Command{
	Name:    "cmatose",
	Classic: []string{"ucmatose", "cmatose"},
	Short:   "Connect by the connection manager and exchange messages",
	Flags: append(cm.FlagsOf("sbfcCSt"),
		cli.Flag{Short: 'P', Long: "port-space", Arg: "<space>", Help: "tcp (default) or ib", Values: cli.OneOf("tcp", "ib")},
		cli.Flag{Short: 'p', Long: "port", Arg: "<port>", Help: "port of the server (default 7471)"},
		cli.Flag{Short: 'm', Long: "migrate", Help: "move to another event channel before disconnecting"},
		cli.Flag{Short: 'a', Long: "ack-timeout", Arg: "<code>", Help: "wait 4.096 us * 2^<code> for an acknowledgement", Check: clib.Within(0, 31)},
		cm.PSKFlag,
	),
	Forms: []cli.Form{
		{Args: "", Does: "serve one client"},
		{Args: "-s <host>", Does: "be the client of the server at <host>"},
	},
	Usage: cm.Usage(cmatoseUsage),
	More: `Two terminals of one machine:
  PROG
  PROG -s localhost
The server sends -C messages over each connection, the client answers with as many, and the
server disconnects. Both ends need the same -c, -C and -S. The other end may be the C program.
Without -b a server has all IPv4 addresses; a <host> that has IPv4 and IPv6 is called by IPv4.
`,
	Run: runCmatose,
}

// cmatoseFlags are the flags of cmatose.
type cmatoseFlags struct {
	cm.Flags
	migrate    bool
	ackTimeout int // code; -1: not set
	security   *rdmacm.Security
}

func parseCmatose(inv *cli.Invocation) (f cmatoseFlags, code int, ok bool) {
	f = cmatoseFlags{Flags: cm.Flags{Connections: 1, Count: 10, Size: 100, TOS: -1, Port: "7471", Space: rdmacm.PortSpaceTCP}, ackTimeout: -1}
	operands, code, ok, refused := parse(inv, &f.Flags, func(name, arg string) (known bool, err error) {
		switch name {
		case "port-space":
			switch {
			case clib.HasPrefix(arg, "ib"):
				f.Space = rdmacm.PortSpaceIB
			case !clib.HasPrefix(arg, "tcp"):
				inv.Errorf("Warning: unknown port space format\n")
			}
		case "port":
			f.Port = arg
		case "migrate":
			f.migrate = true
		case "ack-timeout":
			f.ackTimeout = int(uint8(clib.Strtol(arg)))
		case "psk":
			f.security, err = cm.ReadPSK(arg)
		default:
			return false, nil
		}
		return true, err
	})
	if ok {
		cm.IgnoreOperands(inv, operands)
	}
	if ok && refused != nil {
		return f, inv.Fail(refused, ""), false
	}
	return f, code, ok
}

// cmatose is a run of the program.
type cmatose struct {
	common
	own    cmatoseFlags
	failed bool // a connection that is established from now on is ended at once
}

func runCmatose(inv *cli.Invocation) int {
	f, code, ok := parseCmatose(inv)
	if !ok {
		return code
	}
	c := &cmatose{common: newCommon(inv, "cmatose", &f.Flags), own: f}
	c.security = f.security
	c.prepare, c.options = c.ready, c.setACKTimeout
	// No RNR retry: the receives are posted. The server's first message may come at once.
	c.connectParam = &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 5}
	if f.Server == "" {
		return c.main(false, c.serve)
	}
	return c.main(true, c.dial)
}

func (c *cmatose) serve() (err error) {
	l, err := c.listen()
	if err != nil {
		return err
	}
	defer func() { c.inv.Explain(l.Close()) }()
	if err := c.events(&c.connectsLeft, c.handle); err != nil {
		return err
	}
	if err := c.serverTransfer(); err != nil {
		return err
	}
	if c.own.migrate {
		if err := c.migrate(l); err != nil {
			return err
		}
	}
	c.inv.Printf("cmatose: disconnecting\n")
	c.disconnect()
	err = c.events(&c.disconnectsLeft, c.handle)
	if c.inv.Ctx.Err() == nil {
		c.inv.Printf("disconnected\n")
	}
	if err == nil {
		err = c.surplus
	}
	return err
}

// serverTransfer sends the messages first, and then receives the answers.
func (c *cmatose) serverTransfer() error {
	if c.count == 0 {
		return nil
	}
	c.inv.Printf("initiating data transfers\n")
	if err := c.sendAll(0, 0); err != nil {
		return err
	}
	c.inv.Printf("completing sends\n")
	if err := c.collectAll((*node).sends); err != nil {
		return err
	}
	c.inv.Printf("receiving data transfers\n")
	if err := c.collectAll((*node).receives); err != nil {
		return err
	}
	c.inv.Printf("data transfers complete\n")
	return nil
}

func (c *cmatose) dial() error {
	err := c.call(c.handle)
	if err == nil {
		err = c.clientTransfer()
	}
	if err == nil && c.own.migrate {
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

// clientTransfer receives the messages, and then sends the answers.
func (c *cmatose) clientTransfer() error {
	if c.count == 0 {
		return nil
	}
	c.inv.Printf("receiving data transfers\n")
	if err := c.collectAll((*node).receives); err != nil {
		return err
	}
	c.inv.Printf("sending replies\n")
	if err := c.sendAll(0, 0); err != nil {
		return err
	}
	c.inv.Printf("data transfers complete\n")
	return c.awaitReplies()
}

// eventTime is how long the event of a disconnect may come after the flush that it leads to.
const eventTime = time.Second

// awaitReplies waits until the server has all answers. The C program goes on to wait for the server to
// disconnect, even if an answer has failed; then the server waits for that answer as well, for ever.
func (c *cmatose) awaitReplies() error {
	ctx, stop := c.watch(nil)
	defer stop()
	for i := range c.nodes {
		n := &c.nodes[i]
		for done := 0; n.connected && done < c.count; {
			got, err := device.Wait(ctx, n.sendCQ, c.wcs[:])
			if failed := c.firstFailure(got); failed != nil {
				return failed
			}
			flushed := got > 0 && c.wcs[got-1].Status == verbs.WCFlushErr
			if flushed { // the event that the connection has ended may be next
				select {
				case <-ctx.Done():
				case <-time.After(eventTime):
					return c.replyFailed(c.wcs[got-1].Err())
				}
			}
			switch {
			case context.Cause(ctx) == errPeerLeft:
				return c.ended()
			case flushed:
				return ctx.Err()
			case err != nil:
				return err
			}
			done += got
		}
	}
	return nil
}

// ended returns why a connection has ended before all answers were acknowledged: nil if the server has
// disconnected, since it has them, or does not want them.
func (c *cmatose) ended() error {
	for i := range c.nodes {
		for cq := c.nodes[i].sendCQ; cq != nil; {
			n, err := cq.Poll(c.wcs[:])
			if n == 0 || err != nil {
				break
			}
			if err := c.firstFailure(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// firstFailure reports the first of the last completions that has failed by itself: flushed ones tell
// nothing.
func (c *cmatose) firstFailure(completions int) error {
	for i := range completions {
		if err := c.wcs[i].Err(); err != nil && c.wcs[i].Status != verbs.WCFlushErr {
			return c.replyFailed(err)
		}
	}
	return nil
}

func (c *cmatose) replyFailed(err error) error {
	return c.complain(cm.StatusFailed, err, "%s: failed polling CQ: %d", c.prog, cm.StatusFailed)
}

// disconnect ends all connections.
func (c *cmatose) disconnect() {
	for i := range c.nodes {
		if n := &c.nodes[i]; n.connected {
			n.connected = false
			_ = n.id.Disconnect() // fails if the peer was first
		}
	}
}

// migrate moves all IDs to a new event channel.
func (c *cmatose) migrate(listener *rdmacm.ID) error {
	c.inv.Printf("migrating to new event channel\n")
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
	case rdmacm.EventConnectRequest:
		_, err := c.accept(ev.ID)
		return err
	case rdmacm.EventEstablished:
		ev.ID.Context.(*node).connected = true
		c.connectsLeft--
		c.disconnectsLeft++
		if c.failed {
			c.disconnect()
		}
		return nil
	case rdmacm.EventDisconnected:
		_ = ev.ID.Disconnect() // fails if this end was first
		c.disconnectsLeft--
		return nil
	}
	return c.calling(ev)
}

func (c *cmatose) setACKTimeout(id *rdmacm.ID) {
	if c.own.ackTimeout < 0 {
		return
	}
	if err := id.SetACKTimeout(uint8(c.own.ackTimeout)); err != nil {
		c.perror(err, "set ack timeout option failed")
	}
}

// ready makes a node with a device ready to receive.
func (c *cmatose) ready(n *node) error {
	if err := c.setup(n, 0); err != nil {
		return err
	}
	return c.postRecvs(n)
}

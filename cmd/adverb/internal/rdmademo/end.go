package rdmademo

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rwdemo"
	"github.com/adverb-rdma/adverb/rdmacm"
)

// backlog is how many connection requests may wait. In the C program it is 10.
const backlog = 128

// connect is the client.
func (d *demo) connect(f *cm.Feed, server netip.AddrPort) error {
	id, err := rdmacm.NewID(d.ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return d.failed(err, "rdma_create_id(ec, &conn, NULL, RDMA_PS_TCP)")
	}
	id.Context = f
	if err := id.SetSecurity(d.security); err != nil {
		return d.failed(err, "rdma_set_option(conn)")
	}
	c := d.newConn(id, f)
	defer c.close()
	c.client = true
	if err := id.ResolveAddr(netip.AddrPort{}, server); err != nil {
		return d.failed(err, "rdma_resolve_addr(conn, NULL, addr->ai_addr, TIMEOUT_IN_MS)")
	}
	return c.run()
}

// serve is the server.
func (d *demo) serve(f *cm.Feed) error {
	listener, err := rdmacm.NewID(d.ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return d.failed(err, "rdma_create_id(ec, &listener, NULL, RDMA_PS_TCP)")
	}
	listener.Context = f
	if err := listener.SetSecurity(d.security); err != nil {
		return d.failed(err, "rdma_set_option(listener)")
	}
	defer func() { d.Explain(listener.Close()) }()
	// A listener on :: takes clients that come by IPv4 as well.
	if err := listener.BindAddr(netip.AddrPortFrom(netip.IPv6Unspecified(), d.port)); err != nil {
		return d.failed(err, "rdma_bind_addr(listener, (struct sockaddr *)&addr)")
	}
	if err := listener.Listen(backlog); err != nil {
		return d.failed(err, "rdma_listen(listener, 10)")
	}
	d.Printf("listening on port %d.\n", listener.LocalAddr().Port())
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		_, ev, err := f.Wait()
		switch {
		case err != nil:
			return err
		case ev.Type != rdmacm.EventConnectRequest:
			return d.die(ev.Err, "on_event: unknown event.\n")
		}
		id := ev.ID
		if d.once {
			return d.answer(id)
		}
		conns.Go(func() { d.answer(id) }) // its failure is not the server's
	}
}

// answer serves a client.
func (d *demo) answer(id *rdmacm.ID) error {
	c := d.newConn(id, id.Context.(*cm.Feed))
	defer c.close()
	d.Printf("received connection request.\n")
	if err := c.setup(); err != nil {
		d.Explain(id.Reject(nil))
		return err
	}
	c.writeText()
	if err := id.Accept(connParam()); err != nil {
		return d.failed(err, "rdma_accept(id, &cm_params)")
	}
	return c.run()
}

// handleEvent handles an event of the ID. It returns true when the connection has ended.
func (c *conn) handleEvent(ev *rdmacm.Event) (bool, error) {
	switch {
	case c.client && ev.Type == rdmacm.EventAddrResolved:
		c.Printf("address resolved.\n")
		if err := c.setup(); err != nil {
			return true, err
		}
		c.writeText()
		if err := c.id.ResolveRoute(); err != nil {
			return true, c.failed(err, "rdma_resolve_route(id, TIMEOUT_IN_MS)")
		}
		return false, nil
	case c.client && ev.Type == rdmacm.EventRouteResolved:
		c.Printf("route resolved.\n")
		if err := c.id.Connect(connParam()); err != nil {
			return true, c.failed(err, "rdma_connect(id, &cm_params)")
		}
		return false, nil
	case ev.Type == rdmacm.EventEstablished:
		c.connected = true
		c.feed.Probe(c.qp)
		if c.client || c.recvState >= mrReceived {
			return false, c.sendMR()
		}
		return false, nil
	case ev.Type == rdmacm.EventDisconnected:
		if !c.disconnecting && (!c.through() || c.sendState+c.overtaken != doneSent) {
			return true, c.die(errCut, badCompletion)
		}
		if !c.disconnecting {
			c.Printf("%s", strings.Repeat(sendCompleted, c.overtaken))
			c.printText()
		}
		c.goodbye()
		return true, nil
	case ev.Type == rdmacm.EventTimewaitExit:
		return false, nil
	}
	if c.client {
		c.Errorf("on_event: %d\n", ev.Type)
	}
	cause := ev.Err
	if cause == nil {
		cause = fmt.Errorf("event %v", ev.Type)
	}
	return true, c.die(cause, "on_event: unknown event.\n")
}

// errCut is the cause that the C programs do not tell. They see only the flushed work requests of a disconnect.
var errCut = errors.New("the peer disconnected before both ends were done")

func (c *conn) goodbye() {
	if c.client {
		c.Printf("disconnected.\n")
	} else {
		c.Printf("peer disconnected.\n")
	}
}

// connParam is the ends' agreement: one READ at a time. The C programs leave the numbers of retries at 0, so that one
// lost packet ends the run.
func connParam() *rdmacm.ConnParam {
	return &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
}

// writeText puts this end's text where the peer is to get it from.
func (c *conn) writeText() {
	copy(c.mode.Own(c.local, c.remote).Bytes(), rwdemo.Text(c.client)) // the rest is zeros
}

// peerText returns the text that came from the peer.
func (c *conn) peerText() []byte { return clib.Printable(c.mode.Peers(c.local, c.remote).Bytes()) }

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// rdmaDemoBacklog is how many requests may wait. In the C program it is 10.
const rdmaDemoBacklog = 128

// connect is the client.
func (d *rdmaDemo) connect(f *feed, server netip.AddrPort) error {
	id, err := rdmacm.NewID(d.ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return d.failed(err, "rdma_create_id(ec, &conn, NULL, RDMA_PS_TCP)")
	}
	id.Context = f
	c := d.newConn(id, f)
	defer c.close()
	c.client = true
	if err := id.ResolveAddr(netip.AddrPort{}, server); err != nil {
		return d.failed(err, "rdma_resolve_addr(conn, NULL, addr->ai_addr, TIMEOUT_IN_MS)")
	}
	return c.run()
}

// serve is the server.
func (d *rdmaDemo) serve(f *feed) error {
	listener, err := rdmacm.NewID(d.ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return d.failed(err, "rdma_create_id(ec, &listener, NULL, RDMA_PS_TCP)")
	}
	listener.Context = f
	defer func() { d.explain(listener.Close()) }()
	// :: takes clients that come by IPv4 as well.
	if err := listener.BindAddr(netip.AddrPortFrom(netip.IPv6Unspecified(), d.port)); err != nil {
		return d.failed(err, "rdma_bind_addr(listener, (struct sockaddr *)&addr)")
	}
	if err := listener.Listen(rdmaDemoBacklog); err != nil {
		return d.failed(err, "rdma_listen(listener, 10)")
	}
	d.printf("listening on port %d.\n", listener.LocalAddr().Port())
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		_, ev, err := f.wait()
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
func (d *rdmaDemo) answer(id *rdmacm.ID) error {
	c := d.newConn(id, id.Context.(*feed))
	defer c.close()
	d.printf("received connection request.\n")
	if err := c.setup(); err != nil {
		d.explain(id.Reject(nil))
		return err
	}
	c.writeText("message from passive/server side with pid %d")
	if err := id.Accept(rdmaDemoParam()); err != nil {
		return d.failed(err, "rdma_accept(id, &cm_params)")
	}
	return c.run()
}

// happened handles an event of the ID. It is true when the connection has ended.
func (c *rdmaDemoConn) happened(ev *rdmacm.Event) (bool, error) {
	switch {
	case c.client && ev.Type == rdmacm.EventAddrResolved:
		c.printf("address resolved.\n")
		if err := c.setup(); err != nil {
			return true, err
		}
		c.writeText("message from active/client side with pid %d")
		if err := c.id.ResolveRoute(); err != nil {
			return true, c.failed(err, "rdma_resolve_route(id, TIMEOUT_IN_MS)")
		}
		return false, nil
	case c.client && ev.Type == rdmacm.EventRouteResolved:
		c.printf("route resolved.\n")
		if err := c.id.Connect(rdmaDemoParam()); err != nil {
			return true, c.failed(err, "rdma_connect(id, &cm_params)")
		}
		return false, nil
	case ev.Type == rdmacm.EventEstablished:
		c.connected = true
		c.feed.probe(c.qp)
		if c.client || c.recvState >= rdmaDemoMRReceived {
			return false, c.sendMR()
		}
		return false, nil
	case ev.Type == rdmacm.EventDisconnected:
		if !c.disconnecting && (!c.through() || c.sendState+c.overtaken != rdmaDemoDoneSent) {
			return true, c.die(errRDMADemoCut, rdmaDemoBadCompletion)
		}
		if !c.disconnecting {
			c.printf("%s", strings.Repeat(rdmaDemoSent, c.overtaken))
			c.printText()
		}
		c.goodbye()
		return true, nil
	case ev.Type == rdmacm.EventTimewaitExit:
		return false, nil
	}
	if c.client {
		c.errorf("on_event: %d\n", ev.Type)
	}
	cause := ev.Err
	if cause == nil {
		cause = fmt.Errorf("event %v", ev.Type)
	}
	return true, c.die(cause, "on_event: unknown event.\n")
}

// errRDMADemoCut: the C programs see only what a disconnect does to their work requests.
var errRDMADemoCut = errors.New("the peer disconnected before both ends were done")

func (c *rdmaDemoConn) goodbye() {
	if c.client {
		c.printf("disconnected.\n")
	} else {
		c.printf("peer disconnected.\n")
	}
}

// rdmaDemoParam is what the ends agree upon: one READ at a time. The C programs leave the
// retries at 0, so that one lost packet ends them.
func rdmaDemoParam() *rdmacm.ConnParam {
	return &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
}

// writeText puts a text where the peer is to get it from.
func (c *rdmaDemoConn) writeText(format string) {
	region := c.local
	if c.mode == rdmaDemoRead {
		region = c.remote // the peer reads it there
	}
	copy(region.Bytes(), fmt.Sprintf(format, os.Getpid())) // the rest is zeros
}

// peerText is where the peer's text comes to.
func (c *rdmaDemoConn) peerText() []byte {
	region := c.remote
	if c.mode == rdmaDemoRead {
		region = c.local
	}
	return cString(region.Bytes())
}

// access returns what the two regions are opened for: no more than the mode needs.
func (m rdmaDemoMode) access() (local, remote verbs.Access) {
	if m == rdmaDemoRead {
		return verbs.AccessLocalWrite, verbs.AccessRemoteRead
	}
	return 0, verbs.AccessLocalWrite | verbs.AccessRemoteWrite
}

func (m rdmaDemoMode) opcode() verbs.Opcode {
	if m == rdmaDemoRead {
		return verbs.OpRDMARead
	}
	return verbs.OpRDMAWrite
}

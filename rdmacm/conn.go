package rdmacm

import (
	"net/netip"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// closeTime is how long Conn.Close waits for the peer to answer.
const closeTime = 250 * time.Millisecond

// Conn is a connection: a QP that Dial or Request.Accept has brought into service.
type Conn struct {
	id *ID
	ch *EventChannel

	mu    sync.Mutex
	param ConnParam // the peer's
	err   error     // why it is down

	up, down     chan struct{} // closed when the connection is made, and when it has ended
	isUp, isDown bool
}

// newConn makes a connection. The caller sets its ID and channel.
func newConn() *Conn { return &Conn{up: make(chan struct{}), down: make(chan struct{})} }

// handle takes note of an event of the ID. It is called with the ID's lock held, and must not call
// the ID.
func (c *Conn) handle(ev Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch ev.Type {
	case EventEstablished:
		if len(ev.Param.PrivateData) > 0 || ev.Param.QPN != 0 { // at the connecting end
			c.param = ev.Param
		}
		if !c.isUp {
			c.isUp = true
			close(c.up)
		}
	case EventConnectError, EventUnreachable, EventRejected, EventDisconnected, EventDeviceRemoval:
		if !c.isDown {
			c.isDown, c.err = true, ev.Err
			close(c.down)
		}
	}
}

// ID returns the connection's ID.
func (c *Conn) ID() *ID { return c.id }

// QP returns the connection's QP, which is in RTS.
func (c *Conn) QP() *verbs.QP { return c.id.QP() }

// PD returns the QP's protection domain, in which memory for it is registered. Unless Config has
// named one, the connections of the device share it, and it stays while memory is registered in it.
// A program that wants to close the device closes that memory before its last connection.
func (c *Conn) PD() *verbs.PD { return c.QP().PD() }

// SendCQ returns the CQ of what the QP sends.
func (c *Conn) SendCQ() *verbs.CQ { return c.QP().SendCQ() }

// RecvCQ returns the CQ of what the QP receives.
func (c *Conn) RecvCQ() *verbs.CQ { return c.QP().RecvCQ() }

// Device returns the connection's device.
func (c *Conn) Device() *verbs.Device { return c.id.Device() }

// PrivateData returns the private data of the peer's program. It is filled up with zeros, since its
// length is not sent.
func (c *Conn) PrivateData() []byte { return c.Param().PrivateData }

// Param returns what the peer has said. Its resources are given as they are for this end.
func (c *Conn) Param() ConnParam {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.param
}

// LocalAddr returns this end's address and port.
func (c *Conn) LocalAddr() netip.AddrPort { return c.id.LocalAddr() }

// RemoteAddr returns the peer's address and port.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.id.RemoteAddr() }

// Disconnected is closed when the connection has ended, by either end. The QP's work requests have
// then been flushed.
func (c *Conn) Disconnected() <-chan struct{} { return c.down }

// Disconnect ends the connection as ID.Disconnect does, and does not wait for the peer.
func (c *Conn) Disconnect() error { return c.id.Disconnect() }

// Close ends the connection, unless it has ended. It gives the peer a moment to hear of that, and
// destroys the QP and the CQs that were made for it. What the peer has sent and nobody has received
// is lost.
func (c *Conn) Close() error {
	c.mu.Lock()
	up, down := c.isUp, c.isDown
	c.mu.Unlock()
	if up && !down && c.id.Disconnect() == nil {
		limit := time.NewTimer(closeTime)
		defer limit.Stop()
		select {
		case <-c.down:
		case <-limit.C:
		}
	}
	if err := c.id.Close(); err != nil {
		return err
	}
	return c.ch.Close()
}

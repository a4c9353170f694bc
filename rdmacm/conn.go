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

	mu           sync.Mutex
	param        ConnParam // the peer's
	up, down     chan struct{}
	isUp, isDown bool
	err          error // why it is down
}

// newConn makes the connection of an ID that follows.
func newConn() *Conn { return &Conn{up: make(chan struct{}), down: make(chan struct{})} }

// handle takes the events of the ID once it connects. It is called with locks held, and only takes note.
func (c *Conn) handle(ev Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch ev.Type {
	case EventEstablished:
		if len(ev.Param.PrivateData) > 0 || ev.Param.QPN != 0 { // at the connecting end
			c.param = ev.Param
		}
		c.isUp = true
		c.wake(&c.up)
	case EventConnectError, EventUnreachable, EventRejected, EventDisconnected, EventDeviceRemoval:
		if !c.isDown {
			c.isDown, c.err = true, ev.Err
			c.wake(&c.down)
		}
	}
}

func (c *Conn) wake(ch *chan struct{}) {
	select {
	case <-*ch:
	default:
		close(*ch)
	}
}

// ID returns the connection's ID.
func (c *Conn) ID() *ID { return c.id }

// QP returns the connection's QP, which is in RTS.
func (c *Conn) QP() *verbs.QP { return c.id.QP() }

// PD returns the QP's protection domain: where to register memory for it. Unless Config named one it is shared by
// the connections of the device, and stays while memory is registered in it; a program that wants to close the
// device closes that memory before its last connection.
func (c *Conn) PD() *verbs.PD { return c.QP().PD() }

// SendCQ returns the CQ of what the QP sends.
func (c *Conn) SendCQ() *verbs.CQ { return c.QP().SendCQ() }

// RecvCQ returns the CQ of what the QP receives.
func (c *Conn) RecvCQ() *verbs.CQ { return c.QP().RecvCQ() }

// Device returns the connection's device.
func (c *Conn) Device() *verbs.Device { return c.id.Device() }

// PrivateData returns what the peer's program gave along: filled up with zeros, since the length is
// not sent.
func (c *Conn) PrivateData() []byte { return c.Param().PrivateData }

// Param returns what the peer has said, its resources as they are for this end.
func (c *Conn) Param() ConnParam {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.param
}

// LocalAddr returns this end's address and port.
func (c *Conn) LocalAddr() netip.AddrPort { return c.id.LocalAddr() }

// RemoteAddr returns the peer's address and port.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.id.RemoteAddr() }

// Disconnected is closed when the connection has ended, by either end. The QP's work requests have then been
// flushed.
func (c *Conn) Disconnected() <-chan struct{} { return c.down }

// Disconnect ends the connection as ID.Disconnect does, and does not wait for the peer.
func (c *Conn) Disconnect() error { return c.id.Disconnect() }

// Close ends the connection, unless it has ended, gives the peer a moment to hear of it, and destroys
// the QP and the CQs that were made for it. What the peer has sent and nobody received is lost.
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

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
	// Context is the program's own, such as the objects that Config.Setup has made for the connection.
	Context any

	id *ID
	ch *EventChannel

	qp *verbs.QP // set before the program sees the Conn; it stays when it is closed

	mu    sync.Mutex
	param ConnParam // the peer's
	cause error     // why it is down

	// Closed when the connection is made, when it has ended for this end, and when its ID has
	// nothing more to say about that: both ends know, or the peer is given up.
	up, down, over       chan struct{}
	isUp, isDown, isOver bool

	memory memory // that the connection owns

	closing sync.Mutex // held by Close
	closed  bool
}

// newConn makes a connection. The caller sets its ID and channel.
func newConn() *Conn {
	return &Conn{up: make(chan struct{}), down: make(chan struct{}), over: make(chan struct{})}
}

// Why connections end that nothing is wrong with.
var (
	errClosedHere   = verbs.Errorf(verbs.ErrClosed, "this end has closed the connection")
	errDisconnected = verbs.Errorf(ErrDisconnected, "the peer has disconnected")
)

// end takes note that the connection has ended, unless it has before. It may be called with the ID's
// lock held.
func (c *Conn) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isDown {
		c.isDown, c.cause = true, cause
		close(c.down)
	}
}

// handle takes note of an event of the ID. It is called with the ID's lock held, and must not call
// the ID.
func (c *Conn) handle(ev Event) {
	switch ev.Type {
	case EventEstablished:
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.id.listener == nil { // the accepting end has it from the request
			c.param = ev.Param
		}
		if !c.isUp {
			c.isUp = true
			close(c.up)
		}
	case EventConnectError, EventUnreachable, EventRejected, EventDisconnected, EventDeviceRemoval:
		cause := ev.Err
		switch {
		case ev.ours:
			cause = errClosedHere
		case cause == nil:
			cause = errDisconnected
		}
		c.end(cause)
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.isOver {
			c.isOver = true
			close(c.over)
		}
	}
}

// ID returns the connection's ID.
func (c *Conn) ID() *ID { return c.id }

// QP returns the connection's QP, which is in RTS. After Close the calls of the QP and of its CQs
// return verbs.ErrClosed.
func (c *Conn) QP() *verbs.QP { return c.qp }

// PD returns the QP's protection domain, in which memory for it is registered. Unless Config has
// named one, the connections of the device share it, and it stays while memory is registered in it:
// memory that is to serve one connection after another. AllocMR registers memory for this one alone.
// CloseDevices, and Close of the device, fail while there is memory in the PD, and name it.
func (c *Conn) PD() *verbs.PD { return c.QP().PD() }

// SendCQ returns the CQ of the QP's send queue.
func (c *Conn) SendCQ() *verbs.CQ { return c.QP().SendCQ() }

// RecvCQ returns the CQ of the QP's receive queue.
func (c *Conn) RecvCQ() *verbs.CQ { return c.QP().RecvCQ() }

// Device returns the connection's device.
func (c *Conn) Device() *verbs.Device { return c.id.Device() }

// PrivateData returns the private data of the peer's program. iWARP sends its length, so it is as long as
// the peer gave it. RoCE does not: there it has MaxAcceptData bytes at the dialing end and MaxConnectData at
// the other, filled up with zeros. A program that needs the length puts it into the data.
func (c *Conn) PrivateData() []byte { return c.Param().PrivateData }

// Param returns the peer's parameters. The peer's resources are given as they are for this end.
func (c *Conn) Param() ConnParam {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.param
}

// LocalAddr returns this end's address and port.
func (c *Conn) LocalAddr() netip.AddrPort { return c.id.LocalAddr() }

// RemoteAddr returns the peer's address and port.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.id.RemoteAddr() }

// Disconnected returns a channel that is closed when the connection has ended, whatever the cause:
// see Cause. The QP's work requests have then been flushed. Nobody needs to read from the channel.
func (c *Conn) Disconnected() <-chan struct{} { return c.down }

// Cause returns why the connection has ended, or nil while it has not. It does not change. errors.Is
// finds in it:
//
//   - ErrDisconnected: the peer has called Disconnect or Close, or its process has ended.
//   - ErrTimeout and verbs.WCRetryExceeded: the peer does not answer any more.
//   - verbs.ErrClosed: this end has called Disconnect or Close.
//   - ErrNoDevice: the device is gone.
//   - another verbs.WCStatus, such as verbs.WCRemAccessErr: a work request has failed at the peer
//     or here, and so the QP.
//
// Where a request of the peer has failed at this end, the cause says which rule it broke.
func (c *Conn) Cause() error {
	c.mu.Lock()
	cause := c.cause
	c.mu.Unlock()
	return opError("connection", c.LocalAddr(), c.RemoteAddr(), cause)
}

// Disconnect ends the connection as ID.Disconnect does, and does not wait for the peer.
func (c *Conn) Disconnect() error {
	err := c.id.Disconnect()
	if err == nil {
		c.end(errClosedHere)
	}
	return err
}

// Close ends the connection, unless it has ended. Close gives the peer a moment to hear of the end,
// 0.25 s at most, destroys the QP and the CQs that were made for it, and closes the memory of AllocMR
// and RegMR. Messages that the peer has sent and nobody has received are lost. A connection that is
// still being made is given up: Dial and Request.Accept return verbs.ErrClosed.
//
// Close may be called by several goroutines and several times. Each call returns when the connection
// is closed, and nil, or all of them return the error that keeps it from being closed. The error is
// verbs.ErrBusy while the program has objects that depend on the QP, its CQs or the memory.
func (c *Conn) Close() error {
	c.end(errClosedHere)
	c.closing.Lock()
	defer c.closing.Unlock()
	if c.closed {
		return nil
	}
	c.mu.Lock()
	wait := c.isUp && !c.isOver
	c.mu.Unlock()
	if wait && c.id.Disconnect() == nil {
		limit := time.NewTimer(closeTime)
		defer limit.Stop()
		select {
		case <-c.over:
		case <-limit.C:
		}
	}
	err := c.id.close(c.memory.close)
	if err == nil {
		err = c.ch.Close()
	}
	c.closed = err == nil
	return err
}

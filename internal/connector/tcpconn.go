package connector

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/internal/crowd"
	"github.com/adverb-rdma/adverb/internal/link/tcp"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// tcpConn is one end of an iWARP connection.
type tcpConn struct {
	c             *tcpConnector
	ps            PortSpace
	port          *tcpPort // of a request
	local, remote netip.AddrPort

	mu      sync.Mutex
	carrier Carrier // of the QP's device
	handle  func(Event)
	closed  bool
	state   tcpState
	conn    net.Conn             // while this end has it, and not the device
	request *mpa.Frame           // of the peer
	seat    crowd.Seat[*tcpConn] // of a request, until it is answered; under port.mu
	qpn     verbs.QPN
	cancel  context.CancelFunc // of Connect

	// Of a request: closed when await has ended, after which spoke says whether the peer did not wait for the answer.
	awaited chan struct{}
	spoke   bool
}

type tcpState uint8

const (
	tcpIdle tcpState = iota
	tcpCalling
	tcpRequested // by the peer
	tcpConnected
	tcpOver
)

// tcpStates are the names of the states, which are those of Linux's iWARP connection manager.
var tcpStates = [...]string{tcpIdle: "IDLE", tcpCalling: "CONN_SENT", tcpRequested: "CONN_RECV", tcpConnected: "ESTABLISHED", tcpOver: "CLOSING"}

// become changes the state. From its beginning to its end the connector lists the connection. The caller
// holds c.mu.
func (c *tcpConn) become(s tcpState) {
	c.state = s
	c.c.mu.Lock()
	defer c.c.mu.Unlock()
	if s == tcpOver {
		delete(c.c.conns, c)
	} else {
		c.c.conns[c] = true
	}
}

// NewConn implements Connector.
func (c *tcpConnector) NewConn(from Name, handle func(Event)) (Conn, error) {
	if from.IB {
		return nil, errNoGIDs
	}
	if err := checkAddr(c.dev, c.carrier, from.Addr); err != nil {
		return nil, err
	}
	return &tcpConn{c: c, carrier: c.carrier, ps: from.PS, handle: handle}, nil
}

// hear has f take the events of a connection that a peer has asked for, unless it is closed by now.
func (c *tcpConn) hear(f func(Event)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.handle = f
	}
}

// Serve implements Conn.
func (c *tcpConn) Serve(dev *verbs.Device, from netip.Addr) error {
	carrier, ok := carrierOf(dev)
	if !ok {
		return verbs.Errorf(syscall.ENODEV, "device %s does not speak iWARP", dev.Name())
	}
	if err := checkAddr(dev, carrier, from); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.carrier = carrier
	return nil
}

// report dispatches an event.
func (c *tcpConn) report(ev Event) {
	c.c.dispatch(func() {
		c.mu.Lock()
		handle := c.handle
		c.mu.Unlock()
		if handle != nil {
			handle(ev)
		}
	})
}

// Connect implements Conn.
func (c *tcpConn) Connect(call *Call) error {
	if call.Type != verbs.QPTypeRC {
		return errDatagrams
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.local, c.remote = call.Local, call.Remote
	c.qpn, c.cancel = call.Params.QPN, cancel
	c.become(tcpCalling)
	offer := c.offer(&call.Params)
	var from *tcp.Port
	if call.Bound { // otherwise the port is a number, and may be by chance that of a listener
		from = c.c.claimed(call.Local)
	}
	go func() {
		defer cancel()
		c.call(ctx, offer, from)
	}()
	return nil
}

// offer makes this end's Offer of its parameters.
func (c *tcpConn) offer(p *Params) mpa.Offer {
	crc, markers := c.carrier.Asks()
	return mpa.Offer{CRC: crc, Markers: markers, IRD: int(p.ResponderResources), ORD: int(p.InitiatorDepth), PrivateData: p.PrivateData}
}

// call makes the connection.
func (c *tcpConn) call(ctx context.Context, offer mpa.Offer, from *tcp.Port) {
	conn, err := c.c.carrier.Dial(ctx, c.local, c.remote, from)
	if err != nil {
		c.failed(err)
		return
	}
	conn = c.c.carrier.Wrap(conn)
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // Close has cancelled
	request := offer.Request()
	_, err = conn.Write(request.AppendTo(nil))
	var reply mpa.Frame
	var early []byte
	if err == nil {
		reply, early, err = readFrame(conn)
	}
	if !stop() {
		err = errors.Join(ctx.Err(), err)
	}
	var terms mpa.Terms
	if err == nil {
		if terms, err = offer.Settle(&reply); errors.Is(err, mpa.ErrRejected) {
			_ = conn.Close()
			c.over(Event{Kind: Rejected, Reason: uint16(wire.RejConsumerDefined), Params: Params{PrivateData: reply.PrivateData}})
			return
		}
	}
	_ = conn.SetDeadline(time.Time{})
	if err == nil {
		err = c.attach(conn, terms, early, &reply)
	}
	if err != nil {
		_ = conn.Close()
		c.failed(err)
	}
}

// failed reports why there is no connection.
func (c *tcpConn) failed(err error) {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		c.over(Event{Kind: Rejected, Reason: uint16(wire.RejInvalidServiceID)})
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		// A peer that cannot serve the request closes the connection, as siw does.
		c.over(Event{Kind: Rejected, Reason: uint16(wire.RejConsumerDefined), Err: errUnanswered})
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		c.over(Event{Kind: Unreachable, TimedOut: true, Err: verbs.Errorf(syscall.ETIMEDOUT, "the peer does not answer: %v", err)})
	default:
		c.over(Event{Kind: Unreachable, Err: err})
	}
}

// errUnanswered is the cause where the peer has closed the connection in place of an answer.
var errUnanswered = verbs.Errorf(syscall.ECONNRESET,
	"the peer has closed the connection without an answer: more requests wait there than its listener takes, or it cannot serve this one")

// over reports the end of an attempt.
func (c *tcpConn) over(ev Event) {
	c.mu.Lock()
	calling := c.state == tcpCalling
	c.become(tcpOver)
	c.mu.Unlock()
	if calling {
		c.report(ev)
	}
}

// attach gives the connection to the QP, and reports that it is made.
func (c *tcpConn) attach(conn net.Conn, terms mpa.Terms, early []byte, peer *mpa.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != tcpCalling && c.state != tcpRequested {
		return ErrState
	}
	if err := c.carrier.Attach(c.qpn, conn, terms, early, c.disconnected); err != nil {
		return err
	}
	c.conn = nil
	if at := addrPort(conn.LocalAddr()); at.IsValid() { // another port, if somebody had the one asked for
		c.local = at
	}
	c.become(tcpConnected)
	c.report(Event{Kind: Established, Params: paramsOfFrame(peer), Port: c.local.Port()})
	return nil
}

// disconnected is called by the device at the end of the connection.
func (c *tcpConn) disconnected(err error) {
	c.mu.Lock()
	c.become(tcpOver)
	c.mu.Unlock()
	c.report(Event{Kind: Disconnected, Err: err})
}

// errLeft is why a request is over that nobody has answered.
var errLeft = verbs.Errorf(syscall.ECONNRESET, "the peer has left before its request was answered")

// await has a request end with its peer. Nobody would notice before the answer, and a peer that has left kept a place
// in the backlog. An initiator waits for the reply, RFC 5044, so bytes that come before the reply end the request
// too.
func (c *tcpConn) await(conn net.Conn) {
	defer close(c.awaited)
	var b [1]byte
	n, _ := conn.Read(b[:])
	c.mu.Lock()
	c.spoke = n > 0
	left := c.conn != nil // otherwise somebody answers
	if left {
		c.conn = nil
		c.become(tcpOver)
	}
	c.mu.Unlock()
	if left {
		_ = conn.Close()
		c.port.leaveQueue(c)
		c.report(Event{Kind: Unreachable, Err: errLeft})
	}
}

// errDisplaced is why a request is over that the peer has not given up.
var errDisplaced = verbs.Errorf(syscall.ECONNRESET, "the request has lost its place in the backlog to another host's, which has fewer there: it comes again")

// withdraw takes a request back from the program, and returns its connection, or nil if somebody answers.
func (c *tcpConn) withdraw(why error) net.Conn {
	conn := c.take()
	if conn != nil {
		c.mu.Lock()
		c.become(tcpOver)
		c.mu.Unlock()
		c.report(Event{Kind: Unreachable, Err: why})
	}
	return conn
}

// turnAway ends a request that the program has not seen. If nobody listens any more, it is refused. Else there is no
// frame that says why, and a refusal would be taken for the program's.
func (c *tcpConn) turnAway() {
	c.port.mu.Lock()
	released := c.port.released
	c.port.mu.Unlock()
	if released {
		c.Close()
		return
	}
	if conn := c.withdraw(errLeft); conn != nil {
		_ = conn.Close()
	}
}

// take returns the connection of a request, for the one who answers it, or nil. Others have none then.
func (c *tcpConn) take() net.Conn {
	c.mu.Lock()
	conn := c.conn
	c.conn = nil
	c.mu.Unlock()
	if conn == nil {
		return nil
	}
	c.port.leaveQueue(c)
	_ = conn.SetReadDeadline(time.Unix(1, 0)) // ends await
	<-c.awaited
	_ = conn.SetReadDeadline(time.Time{})
	return conn
}

// Accept implements Conn.
func (c *tcpConn) Accept(p Params) error {
	conn := c.take()
	if conn == nil {
		return ErrState
	}
	c.mu.Lock()
	request := c.request
	c.qpn = p.QPN
	offer := c.offer(&p)
	c.mu.Unlock()
	reply, terms := offer.Answer(request)
	err := errLeft
	if !c.spoke {
		_ = conn.SetWriteDeadline(time.Now().Add(requestTime))
		_, err = conn.Write(reply.AppendTo(nil))
		_ = conn.SetWriteDeadline(time.Time{})
	}
	if err == nil {
		err = c.attach(conn, terms, nil, request)
	}
	if err != nil {
		_ = conn.Close()
		c.mu.Lock()
		c.become(tcpOver)
		c.mu.Unlock()
	}
	return err
}

// Reject implements Conn.
func (c *tcpConn) Reject(privateData []byte) error {
	conn := c.take()
	if conn == nil {
		return ErrState
	}
	c.c.refuse(conn, c.request, privateData)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.become(tcpOver)
	return nil
}

// RejectFor implements Conn.
func (c *tcpConn) RejectFor(reason wire.RejReason, _ []byte) error {
	if reason != wire.RejNoResources {
		return c.Reject(nil)
	}
	conn := c.take()
	if conn == nil {
		return ErrState
	}
	_ = conn.Close() // so does siw, and the peer tells that from a program's no
	c.mu.Lock()
	defer c.mu.Unlock()
	c.become(tcpOver)
	return nil
}

// Ready implements Conn. Nobody calls it, since no Replied is reported.
func (c *tcpConn) Ready([]byte) error { return nil }

// Established implements Conn: the event has been reported.
func (c *tcpConn) Established() error { return ErrState }

// Disconnect implements Conn.
func (c *tcpConn) Disconnect() error {
	c.mu.Lock()
	carrier, qpn, connected := c.carrier, c.qpn, c.state == tcpConnected
	c.mu.Unlock()
	if connected {
		carrier.Shutdown(qpn)
	}
	return nil
}

// Close implements Conn.
func (c *tcpConn) Close() {
	c.mu.Lock()
	c.handle, c.closed = nil, true
	state, cancel := c.state, c.cancel
	if state != tcpConnected {
		c.become(tcpOver)
	}
	c.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if state == tcpConnected {
		c.carrier.Shutdown(c.qpn)
	} else if conn := c.take(); conn != nil {
		c.c.refuse(conn, c.request, nil)
	}
}

// Join implements Conn. Nothing can be sent to a group: the device refuses QPs and address handles for it.
func (c *tcpConn) Join(netip.Addr, uint8) (*Datagram, error) { return &Datagram{}, nil }

// Leave implements Conn.
func (c *tcpConn) Leave(netip.Addr) {}

// QPAttr implements Conn. The program's QP goes to INIT, and Attach takes it to RTS.
func (c *tcpConn) QPAttr(_ verbs.QPType, to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	a := verbs.QPAttr{State: to}
	if to != verbs.QPStateInit {
		return a, 0, nil
	}
	a.Port, a.Access = DevicePort, qpAccess
	return a, verbs.MaskState | verbs.MaskPort | verbs.MaskAccessFlags, nil
}

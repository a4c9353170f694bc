package connector_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/internal/rnic"
	"github.com/adverb-rdma/adverb/verbs"
)

// timed is a stream that notes its deadlines, and its MPA frame.
type timed struct {
	net.Conn
	mu          sync.Mutex
	read, write time.Time
	frame       []byte // the first write
	bounded     bool   // the first write had a deadline
}

func (c *timed) Write(b []byte) (int, error) {
	c.mu.Lock()
	if c.frame == nil {
		c.frame, c.bounded = bytes.Clone(b), !c.write.IsZero()
	}
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *timed) SetDeadline(at time.Time) error {
	c.mu.Lock()
	c.read, c.write = at, at
	c.mu.Unlock()
	return c.Conn.SetDeadline(at)
}

func (c *timed) SetWriteDeadline(at time.Time) error {
	c.mu.Lock()
	c.write = at
	c.mu.Unlock()
	return c.Conn.SetWriteDeadline(at)
}

// tcpEnd is an end whose device speaks iWARP over the host's loopback, with a QP.
type tcpEnd struct {
	*end
	qp      *verbs.QP
	streams chan *timed
}

func newTCPEnd(t *testing.T) *tcpEnd { return newTCPEndOf(t, rnic.Config{}) }

// newTCPEndOf is newTCPEnd with a device of a configuration, whose Wrap is the end's.
func newTCPEndOf(t *testing.T, config rnic.Config) *tcpEnd {
	t.Helper()
	e := &tcpEnd{streams: make(chan *timed, 8)}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	config.Wrap = func(c net.Conn) net.Conn {
		s := &timed{Conn: c}
		e.streams <- s
		return s
	}
	d, err := rnic.Open(sim.New(sim.Config{}).Netdev("sim", loopback), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	e.end = newEnd(t, verbs.NewDevice(d))
	t.Cleanup(e.c.Close)
	e.addr = loopback
	pd, err := e.dev.AllocPD()
	e.ok(err)
	cq, err := e.dev.CreateCQ(8)
	e.ok(err)
	e.qp, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
	e.ok(err)
	e.ok(e.qp.Init(1, 0))
	t.Cleanup(func() { e.qp.Close() })
	return e
}

// soon is want in real time.
func (e *tcpEnd) soon(kind connector.Kind) (ev connector.Event) {
	e.t.Helper()
	select {
	case ev = <-e.events:
		if ev.Kind != kind {
			e.t.Fatalf("got event %d (%v), want %d", ev.Kind, ev.Err, kind)
		}
	case <-time.After(10 * time.Second):
		e.t.Fatalf("got no event, want %d", kind)
	}
	return ev
}

// unbounded fails the test unless the end's stream has no deadline.
func (e *tcpEnd) unbounded() {
	e.t.Helper()
	s := <-e.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.read.IsZero() || !s.write.IsZero() {
		e.t.Errorf("the deadlines of a stream that is connected: got %v to read and %v to write, want none", s.read, s.write)
	}
	if !s.bounded {
		e.t.Error("the MPA frame was written without a deadline, want one")
	}
}

// conns returns how many connections the end's connector counts.
func (e *tcpEnd) conns() uint64 {
	e.t.Helper()
	cs, err := e.dev.Counters()
	e.ok(err)
	return cs.Value("cm_conns")
}

// listenAnywhere is listen at a port that is free.
func (e *tcpEnd) listenAnywhere() uint16 {
	e.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	e.ok(err)
	at := l.Addr().(*net.TCPAddr).AddrPort()
	e.ok(l.Close())
	e.t.Cleanup(e.listen(tcp, at.Port()).Release)
	return at.Port()
}

// TestTCPConnection is an iWARP connection to its end. The time for setting it up must not bound it, and nothing of it
// may stay.
func TestTCPConnection(t *testing.T) {
	a, b := newTCPEnd(t), newTCPEnd(t)
	port := b.listenAnywhere()
	x := a.connect(b.end, verbs.QPTypeRC, tcp, port, connector.Params{QPN: a.qp.QPN()})
	y := (<-b.requests).Conn
	b.ok(y.Accept(connector.Params{QPN: b.qp.QPN()}))
	a.soon(connector.Established)
	b.soon(connector.Established)
	a.unbounded()
	b.unbounded()
	if m, n := a.conns(), b.conns(); m != 1 || n != 1 {
		t.Errorf("got %d and %d connections, want one at each end", m, n)
	}
	a.ok(x.Disconnect())
	a.soon(connector.Disconnected)
	b.soon(connector.Disconnected)
	if m, n := a.conns(), b.conns(); m != 0 || n != 0 {
		t.Errorf("got %d and %d connections after the end, want none", m, n)
	}
}

// TestTCPTerms connects devices that ask for CRCs and for markers, or do not. Each end's MPA frame asks for them, and a
// message comes through both ways.
func TestTCPTerms(t *testing.T) {
	for _, tt := range []struct{ a, b rnic.Config }{
		{rnic.Config{Markers: true}, rnic.Config{}},
		{rnic.Config{}, rnic.Config{Markers: true}},
		{rnic.Config{CRC: true, Markers: true}, rnic.Config{Markers: true}},
	} {
		a, b := newTCPEndOf(t, tt.a), newTCPEndOf(t, tt.b)
		port := b.listenAnywhere()
		a.connect(b.end, verbs.QPTypeRC, tcp, port, connector.Params{QPN: a.qp.QPN()})
		y := (<-b.requests).Conn
		b.ok(y.Accept(connector.Params{QPN: b.qp.QPN()}))
		a.soon(connector.Established)
		b.soon(connector.Established)
		a.asksFor(tt.a.CRC, tt.a.Markers)
		b.asksFor(tt.a.CRC || tt.b.CRC, tt.b.Markers) // CRCs go both ways if one end asks for them: RFC 5044
		a.message(b)
		b.message(a)
	}
}

// asksFor fails the test unless the end's MPA frame asks for CRCs and markers, or does not.
func (e *tcpEnd) asksFor(crc, markers bool) {
	e.t.Helper()
	s := <-e.streams
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, _, err := mpa.DecodeFrame(s.frame); err != nil || f.CRC != crc || f.Markers != markers {
		e.t.Errorf("the MPA frame %x asks for CRCs: %v, for markers: %v (%v); want %v and %v", s.frame, f.CRC, f.Markers, err, crc, markers)
	}
}

// message sends a message, of several FPDUs and many markers, to another end.
func (e *tcpEnd) message(to *tcpEnd) {
	e.t.Helper()
	const size = 200_000
	in, err := to.qp.PD().AllocMR(size, verbs.AccessLocalWrite)
	to.ok(err)
	out, err := e.qp.PD().AllocMR(size, verbs.AccessLocalWrite)
	e.ok(err)
	for i := range out.Bytes() {
		out.Bytes()[i] = byte(i + i>>8 + i>>16)
	}
	_, err = to.qp.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{in.SGE(0, size)}}})
	to.ok(err)
	_, err = e.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGList: []verbs.SGE{out.SGE(0, size)}}})
	e.ok(err)
	ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Second)
	defer cancel()
	var wcs [1]verbs.WC
	_, err = to.qp.RecvCQ().Wait(ctx, wcs[:])
	to.ok(err)
	to.ok(wcs[0].Err())
	if !bytes.Equal(in.Bytes(), out.Bytes()) {
		e.t.Error("the message differs from the one that was sent, want the same")
	}
}

// TestTCPAcceptFails accepts for a QP that is not there. The peer must hear of the end, and nothing of it may stay.
func TestTCPAcceptFails(t *testing.T) {
	a, b := newTCPEnd(t), newTCPEnd(t)
	port := b.listenAnywhere()
	a.connect(b.end, verbs.QPTypeRC, tcp, port, connector.Params{QPN: a.qp.QPN()})
	y := (<-b.requests).Conn
	if err := y.Accept(connector.Params{QPN: b.qp.QPN() ^ 1}); err == nil {
		t.Error("accept for a QP that is not there: got no error, want one")
	}
	a.soon(connector.Established)
	a.soon(connector.Disconnected)
	if n := b.conns(); n != 0 {
		t.Errorf("got %d connections after the failure, want none", n)
	}
}

// TestTCPReset asks a peer that cannot serve the request, and resets the connection, as siw does. That is a no, and not
// that of a program.
func TestTCPReset(t *testing.T) {
	a := newTCPEnd(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	a.ok(err)
	defer l.Close()
	conn, err := a.c.NewConn(connector.Name{PS: tcp, Addr: a.addr}, a.handle)
	a.ok(err)
	defer conn.Close()
	a.ok(conn.Connect(&connector.Call{Type: verbs.QPTypeRC, Local: netip.AddrPortFrom(a.addr, 40000),
		Remote: l.Addr().(*net.TCPAddr).AddrPort(), Params: connector.Params{QPN: a.qp.QPN()}}))
	c, err := l.Accept()
	a.ok(err)
	_, err = io.ReadFull(c, make([]byte, 20)) // the request has come
	a.ok(err)
	a.ok(c.(*net.TCPConn).SetLinger(0))
	a.ok(c.Close())
	if ev := a.soon(connector.Rejected); !errors.Is(ev.Err, syscall.ECONNRESET) {
		t.Errorf("the cause is %v, want %v", ev.Err, syscall.ECONNRESET)
	}
}

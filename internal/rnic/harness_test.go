package rnic

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	patience = 60 * time.Second // until a test that waits in real time gives up

	everything = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	signaled   = verbs.SendSignaled
)

// newDevice opens a device for the time of the test. Its network interface is a simulated one: tests hand
// in the connections.
func newDevice(t testing.TB) *Device { return newDeviceOf(t, sim.Config{}) }

// newDeviceOf is newDevice on a network of a kind.
func newDeviceOf(t testing.TB, c sim.Config) *Device {
	t.Helper()
	n := sim.New(c).Netdev("sim", netip.AddrFrom4([4]byte{10, 0, 0, 1}))
	d, err := Open(n, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// end is one end of a connection.
type end struct {
	t    testing.TB
	prov *Device
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ // of both queues
	qp   *verbs.QP
	over chan error // the device's report of the end of the connection
}

// newEnd makes a QP in INIT.
func newEnd(t testing.TB, d *Device) *end {
	t.Helper()
	e := &end{t: t, prov: d, dev: verbs.NewDevice(d), over: make(chan error, 1)}
	var err error
	e.pd, err = e.dev.AllocPD()
	e.must(err)
	e.cq, err = e.dev.CreateCQ(64)
	e.must(err)
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 64}})
	e.must(err)
	e.must(e.qp.Init(1, everything))
	t.Cleanup(func() { e.qp.Close() })
	return e
}

func (e *end) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// attach gives a connection to the QP.
func (e *end) attach(c net.Conn, terms mpa.Terms, early ...byte) {
	e.t.Helper()
	e.must(e.prov.Attach(e.qp.QPN(), c, terms, early, func(err error) { e.over <- err }))
}

// ended waits until the device has said how the connection ended.
func (e *end) ended() error {
	e.t.Helper()
	select {
	case err := <-e.over:
		return err
	case <-time.After(patience):
		e.t.Fatal("the device does not say that the connection has ended")
		return nil
	}
}

func (e *end) mr(n int) *verbs.MR {
	e.t.Helper()
	mr, err := e.pd.AllocMR(n, everything)
	e.must(err)
	return mr
}

func (e *end) send(wrs ...verbs.SendWR) {
	e.t.Helper()
	_, err := e.qp.PostSend(wrs)
	e.must(err)
}

func (e *end) recv(wrs ...verbs.RecvWR) {
	e.t.Helper()
	_, err := e.qp.PostRecv(wrs)
	e.must(err)
}

// next blocks for a completion.
func (e *end) next() verbs.WC {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wc [1]verbs.WC
	_, err := e.cq.Wait(ctx, wc[:])
	e.must(err)
	return wc[0]
}

// done blocks for a completion, which must be a success.
func (e *end) done() verbs.WC {
	e.t.Helper()
	wc := e.next()
	e.must(wc.Err())
	return wc
}

// event blocks for an asynchronous event.
func (e *end) event() verbs.AsyncEvent {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ev, err := e.dev.NextEvent(ctx)
	e.must(err)
	return ev
}

// write WRITEs all of src to dst, and waits until the peer has it: the answer to a READ says so.
func (e *end) write(src, dst *verbs.MR) {
	e.t.Helper()
	e.send(
		verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.SGE(0, src.Len())}, Remote: dst.Remote(0)},
		verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 0)}, Remote: dst.Remote(0)})
	e.done()
}

// agree returns the terms of two offers.
func agree(t testing.TB, x, y mpa.Offer, change func(*mpa.Frame)) (a, b mpa.Terms) {
	t.Helper()
	request := x.Request()
	if change != nil {
		change(&request)
	}
	if err := mpa.CheckRequest(&request); err != nil {
		t.Fatal(err)
	}
	reply, b := y.Answer(&request)
	a, err := x.Settle(&reply)
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

var deep = mpa.Offer{IRD: 8, ORD: 8}

// tcpPair returns the two ends of a TCP connection.
func tcpPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// wrapped is a connection that is no TCP connection by its type, as those that are traced.
type wrapped struct{ net.Conn }

func (w wrapped) CloseWrite() error { return w.Conn.(*net.TCPConn).CloseWrite() }

// ends makes a QP on a device each. The devices close last: they wait for the connections.
func ends(t testing.TB) (x, y *end) {
	t.Helper()
	d1, d2 := newDevice(t), newDevice(t)
	return newEnd(t, d1), newEnd(t, d2)
}

// pair connects two QPs of a device each.
func pair(t testing.TB) (x, y *end) {
	t.Helper()
	x, y = ends(t)
	x.connect(y)
	return x, y
}

// connect makes a connection of which e is the initiator.
func (e *end) connect(y *end) {
	t := e.t
	t.Helper()
	a, b := tcpPair(t)
	tx, ty := agree(t, deep, deep, nil)
	e.attach(a, tx)
	y.attach(b, ty)
}

// half connects a QP, as responder, with a TCP connection that the test holds.
func half(t testing.TB) (*end, *net.TCPConn) {
	t.Helper()
	e := newEnd(t, newDevice(t))
	a, b := tcpPair(t)
	_, terms := agree(t, deep, deep, nil)
	e.attach(b, terms)
	t.Cleanup(func() { a.Close() })
	return e, a.(*net.TCPConn)
}

// rest reads a stream to its end.
func rest(t testing.TB, c net.Conn) []byte {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// fill writes a pattern that differs from seed to seed.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*seed + i>>8 + i>>16)
	}
}

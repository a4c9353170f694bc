package hca

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	patience = 30 * time.Second // until a test that waits in real time gives up

	everything = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	signaled   = verbs.SendSignaled
)

// openDevice opens a device for the time of the test.
func openDevice(t testing.TB, n link.Netdev, mw ...link.Middleware) *verbs.Device {
	t.Helper()
	d, err := Open(n, Config{Middleware: mw})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return verbs.NewDevice(d)
}

// impl returns the qp behind the facade.
func impl(d *verbs.Device) *Device { return d.Provider().(*Device) }

// simAddr is an address of the i-th device of a simulated network, which has GIDs 0 and 1.
func simAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }

func simAddr6(i int) netip.Addr { return netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i)}) }

func simDevice(t testing.TB, net *sim.Network, i int, mw ...link.Middleware) *verbs.Device {
	t.Helper()
	return openDevice(t, net.Netdev(fmt.Sprintf("sim%d", i), simAddr(i), simAddr6(i)), mw...)
}

// loopAddr returns an address of 127.0.0.0/8 that two test processes hardly share.
func loopAddr(i int) string {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, 128 | byte(pid>>8)&127, byte(pid), byte(i)}).String()
}

// udpDevice opens a device of its own on a loopback address.
func udpDevice(t testing.TB, addr string, mw ...link.Middleware) *verbs.Device {
	t.Helper()
	n, err := udp.NetdevForAddr("lo", netip.MustParseAddr(addr))
	if err != nil {
		t.Skipf("no loopback interface to test on: %v", err)
	}
	return openDevice(t, n, mw...)
}

// pair is two connected ends, over UDP or in memory.
func pair(t testing.TB, kind string, o options) (x, y *end) {
	t.Helper()
	if kind == "udp" {
		return connect(t, udpDevice(t, loopAddr(1)), udpDevice(t, loopAddr(2)), o)
	}
	net := sim.New(sim.Config{})
	return connect(t, simDevice(t, net, 1), simDevice(t, net, 2), o)
}

// end is one end of a connection.
type end struct {
	t   testing.TB
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ // of both queues
	qp  *verbs.QP
}

func (e *end) hca() *Device { return impl(e.dev) }
func (e *end) impl() *qp    { return e.qp.Provider().(*qp) }

type options struct {
	cap     verbs.QPCap
	cqe     int
	gid     int
	mtu     verbs.MTU
	timeout uint8 // of RTS; 0 stands for the default
	untimed bool  // no timeout, and so no probe: a packet that is not lost is sent once, however long the peer stands still
	rtr     bool  // stop there
	typ     verbs.QPType
	secured bool // packets are encrypted
	driven  bool // the devices of a lanePair have no goroutines: the test's polls do all
}

var defaultRetry = verbs.DefaultRetry

func newEnd(t testing.TB, d *verbs.Device, o options) *end {
	t.Helper()
	e := &end{t: t, dev: d}
	var err error
	e.pd, err = d.AllocPD()
	e.must(err)
	if o.cap == (verbs.QPCap{}) {
		o.cap = verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}
	}
	if o.cqe == 0 {
		o.cqe = 2 * (o.cap.MaxSendWR + o.cap.MaxRecvWR)
	}
	e.cq, err = d.CreateCQ(o.cqe)
	e.must(err)
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{Type: o.typ, SendCQ: e.cq, RecvCQ: e.cq, Cap: o.cap})
	e.must(err)
	access := everything
	if o.typ == verbs.QPTypeUD {
		mask := verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey
		e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1}, mask))
		return e
	}
	if o.typ == verbs.QPTypeUC {
		access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	}
	e.must(e.qp.Init(1, access))
	return e
}

// connect makes a QP on each device and connects the two.
func connect(t testing.TB, a, b *verbs.Device, o options) (x, y *end) {
	t.Helper()
	x, y = newEnd(t, a, o), newEnd(t, b, o)
	if o.secured {
		x.secure(y)
	}
	x.join(y, o)
	y.join(x, o)
	return x, y
}

// secure has two ends agree on packet security.
func (e *end) secure(peer *end) {
	e.t.Helper()
	own, theirs := e.securityKey(), peer.securityKey()
	e.must(e.qp.SetSecurity(verbs.PacketSecurity{Peer: theirs}))
	peer.must(peer.qp.SetSecurity(verbs.PacketSecurity{Peer: own}))
}

func (e *end) securityKey() verbs.SecurityKey {
	e.t.Helper()
	key, err := e.qp.NewSecurityKey()
	e.must(err)
	return key
}

const firstPSN = 1<<24 - 40 // passes the largest PSN soon

// join takes e, which is in INIT, to RTS.
func (e *end) join(peer *end, o options) {
	e.t.Helper()
	gid, err := peer.dev.GID(1, o.gid)
	e.must(err)
	e.must(e.qp.RTR(verbs.Peer{QPN: peer.qp.QPN(), PSN: firstPSN, GID: gid.GID}, verbs.Path{SGIDIndex: o.gid, MTU: o.mtu}))
	if !o.rtr {
		retry := defaultRetry
		if o.timeout != 0 {
			retry.Timeout = o.timeout
		}
		if o.untimed {
			retry.Timeout = 0
		}
		e.must(e.qp.RTS(firstPSN, retry))
	}
}

func (e *end) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
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

// wait blocks for a completion until ctx ends.
func (e *end) wait(ctx context.Context) (verbs.WC, error) {
	var wc [1]verbs.WC
	_, err := e.cq.Wait(ctx, wc[:])
	return wc[0], err
}

// next blocks for a completion.
func (e *end) next() verbs.WC {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	wc, err := e.wait(ctx)
	e.must(err)
	return wc
}

// waiting spins until n completions are in the CQ, and polls none.
func (e *end) waiting(n int) {
	e.t.Helper()
	c := e.cq.Provider().(*cq)
	for deadline := time.Now().Add(patience); c.Waiting() < n; runtime.Gosched() {
		if time.Now().After(deadline) {
			e.t.Fatalf("%d completions after %v, want %d", c.Waiting(), patience, n)
		}
	}
}

// done blocks for a completion, which must be a success.
func (e *end) done() verbs.WC {
	e.t.Helper()
	wc := e.next()
	e.must(wc.Err())
	return wc
}

// empty fails the test if there is a completion.
func (e *end) empty() {
	e.t.Helper()
	var wc [1]verbs.WC
	n, err := e.cq.Poll(wc[:])
	e.must(err)
	if n > 0 {
		e.t.Fatalf("completion %+v, want none", wc[0])
	}
}

// transfer WRITEs src to dst whole and waits for it.
func (e *end) transfer(src, dst *verbs.MR) {
	e.t.Helper()
	e.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, src.Len())}, Remote: dst.Remote(0)})
	e.done()
}

// event blocks for an asynchronous event.
func event(t testing.TB, d *verbs.Device) verbs.AsyncEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ev, err := d.NextEvent(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// noEvent fails the test if an asynchronous event waits.
func noEvent(t testing.TB, d *verbs.Device) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if ev, err := d.NextEvent(ctx); err == nil {
		t.Errorf("event %v, want none", ev.Type)
	}
}

// stats returns the statistics of the device's only address in use.
func stats(t testing.TB, d *verbs.Device) Stats {
	t.Helper()
	s := impl(d).Stats()
	if len(s) != 1 {
		t.Fatalf("%d addresses are in use, want 1", len(s))
	}
	return s[0]
}

// counts returns the counters of events that were not planned.
func (q *qp) counts() transport.Counters {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.t.Counters()
}

// counters returns the sum of the ends' counters.
func counters(ends ...*end) (sum transport.Counters) {
	for _, e := range ends {
		c := e.impl().counts()
		sum.Retransmits += c.Retransmits
		sum.Timeouts += c.Timeouts
		sum.RNRNAKs += c.RNRNAKs
		sum.SequenceNAKs += c.SequenceNAKs
		sum.ImpliedNAKs += c.ImpliedNAKs
		sum.Duplicates += c.Duplicates
		sum.OutOfOrder += c.OutOfOrder
		sum.Unexpected += c.Unexpected
		sum.RepeatedResponses += c.RepeatedResponses
		sum.NeedlessProbes += c.NeedlessProbes
		sum.CongestionMarks += c.CongestionMarks
		sum.CongestionNotifications += c.CongestionNotifications
		sum.IgnoredNotifications += c.IgnoredNotifications
		sum.QKeyViolations += c.QKeyViolations
		sum.NoReceive += c.NoReceive
	}
	return sum
}

// fill writes a pattern that differs from word to word and from seed to seed.
func fill(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		if i%8 == 0 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		b[i] = byte(x >> (i % 8 * 8))
	}
}

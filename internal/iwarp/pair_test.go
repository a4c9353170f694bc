package iwarp

import (
	"math/rand/v2"
	"testing"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// testEnd is one end of a connection over a stream in memory.
type testEnd struct {
	t    testing.TB
	q    *QP
	pd   *mem.PD
	rq   *queue.RecvQueue
	out  []byte // written, and not read by the peer yet
	in   []byte // read, and not used yet
	v    Vec
	wcs  []verbs.WC
	sent []byte // all that was written
}

const testWRs = 16

func newTestEnd(t testing.TB, keys *mem.Keys, qpn verbs.QPN) *testEnd {
	e := &testEnd{t: t, pd: keys.NewPD()}
	cap := verbs.QPCap{MaxSendWR: testWRs, MaxRecvWR: testWRs, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInlineData: 64}
	e.rq = queue.NewRecvQueue(e.pd, cap)
	e.rq.Enter(verbs.QPStateInit)
	e.q = New(Config{QPN: qpn, Cap: cap, PD: e.pd, Receives: e.rq})
	e.ok(e.q.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1,
		Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic}, verbs.MaskState|verbs.MaskPort|verbs.MaskAccessFlags))
	return e
}

func (e *testEnd) ok(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// newPair connects two ends on the terms of two offers.
func newPair(t *testing.T, x, y mpa.Offer, rtr mpa.RTR) (a, b *testEnd) {
	t.Helper()
	keys := mem.NewKeys(1024, nil)
	a, b = newTestEnd(t, keys, 2), newTestEnd(t, keys, 3)
	request := x.Request()
	if request.RTR = rtr; rtr == 0 {
		request.PeerToPeer = false
	}
	reply, tb := y.Answer(&request)
	ta, err := x.Settle(&reply)
	a.ok(err)
	a.ok(a.q.Attach(ta))
	b.ok(b.q.Attach(tb))
	return a, b
}

var deep = mpa.Offer{IRD: 4, ORD: 4}

// region registers n bytes.
func (e *testEnd) region(n int, access verbs.Access) *mem.MR {
	e.t.Helper()
	r, err := e.pd.RegMR(verbs.MRAttr{Buf: make([]byte, n), Access: access})
	e.ok(err)
	e.t.Cleanup(func() { r.Close() })
	return r.(*mem.MR)
}

const everything = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessMWBind

func sge(r *mem.MR, off, n int) verbs.SGE {
	return verbs.SGE{Addr: r.Addr() + uint64(off), Length: uint32(n), LKey: r.LKey()}
}

func remote(r *mem.MR, off int) verbs.RemoteAddr {
	return verbs.RemoteAddr{VA: r.Addr() + uint64(off), RKey: r.RKey()}
}

func (e *testEnd) post(wrs ...verbs.SendWR) {
	e.t.Helper()
	for i := range wrs {
		wrs[i].Flags |= verbs.SendSignaled
		e.ok(e.q.Post(&wrs[i]))
	}
}

func (e *testEnd) recv(id uint64, sges ...verbs.SGE) {
	e.t.Helper()
	_, _, err := e.rq.Post([]verbs.RecvWR{{ID: id, SGList: sges}})
	e.ok(err)
}

// take collects completions, as polling does.
func (e *testEnd) take() {
	for _, c := range e.q.Completions() {
		if c.Slots != nil {
			c.Slots.Store(c.Freed)
		}
		e.wcs = append(e.wcs, c.WC)
	}
}

// transmit writes up to n bytes. It reports whether it wrote any.
func (e *testEnd) transmit(n int) bool {
	e.q.Fill(&e.v, n)
	wrote := 0
	for _, b := range e.v.Bufs {
		part := b[:min(len(b), n-wrote)]
		e.out = append(e.out, part...)
		e.sent = append(e.sent, part...)
		wrote += len(part)
	}
	e.q.Wrote(&e.v, wrote)
	e.take()
	return wrote > 0
}

// receive reads up to n bytes from the peer, some of them straight to their place.
func (e *testEnd) receive(from *testEnd, n int, direct bool) bool {
	n = min(n, len(from.out))
	b := from.out[:n]
	if direct && len(e.in) == 0 {
		e.q.Room(&e.v, 1)
		got := 0
		for _, room := range e.v.Bufs {
			got += copy(room, b[got:])
		}
		e.q.Filled(&e.v, got)
		b = b[got:]
		if got > 0 {
			e.q.Receive(nil)
		}
	}
	e.in = append(e.in, b...)
	from.out = from.out[n:]
	used := e.q.Receive(e.in)
	e.in = append(e.in[:0], e.in[used:]...)
	e.take()
	return n > 0
}

// run has both ends do all there is to do, in pieces of random sizes.
func run(r *rand.Rand, a, b *testEnd) {
	for idle := 0; idle < 20; {
		x, y := a, b
		if r.IntN(2) == 0 {
			x, y = b, a
		}
		size := 1 << r.IntN(18)
		did := false
		if r.IntN(2) == 0 {
			did = x.transmit(1 + r.IntN(size))
		} else {
			did = x.receive(y, 1+r.IntN(size), r.IntN(2) == 0)
		}
		if idle++; did {
			idle = 0
		}
	}
}

// runAll has both ends do all there is to do.
func runAll(a, b *testEnd) {
	for did := true; did; {
		did = false
		for _, e := range []struct{ x, y *testEnd }{{a, b}, {b, a}} {
			did = e.x.transmit(1<<20) || did
			did = e.y.receive(e.x, 1<<21, false) || did
		}
	}
}

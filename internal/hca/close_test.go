package hca

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/tables"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestCloseReleasesBuffers closes a QP in the middle of traffic of all kinds and uses its buffers for
// something else at once. The device must not touch them any more: the race detector sees a copy by the
// device, and the bytes show one too.
func TestCloseReleasesBuffers(t *testing.T) {
	for _, kind := range []string{"sim", "udp"} {
		for range 5 {
			t.Run(kind, func(t *testing.T) { closeInTraffic(t, kind) })
		}
	}
}

// TestCloseLeaves: who has closed a device is not asked to poll for it any more.
func TestCloseLeaves(t *testing.T) {
	engines := func() int {
		if l := processEngines.list.Load(); l != nil {
			return len(*l)
		}
		return 0
	}
	before := engines()
	x, y := pair(t, "sim", options{})
	if n := engines(); n != before+2 {
		t.Errorf("%d engines of the process with two devices more, want %d", n, before+2)
	}
	x.must(x.hca().Close())
	y.must(y.hca().Close())
	if n := engines(); n != before {
		t.Errorf("%d engines of the process after their Close, want %d", n, before)
	}
}

// TestCloseMakesRoom: what is closed, or could not be made, takes no place among the device's objects, and no event of it
// is left.
func TestCloseMakesRoom(t *testing.T) {
	failure := errors.New("the disk is full")
	p, err := Open(sim.New(sim.Config{}).Netdev("sim1", simAddr(1)), Config{Closers: []io.Closer{closer{failure}}})
	if err != nil {
		t.Fatal(err)
	}
	e := newEnd(t, verbs.NewDevice(p), options{})
	srq, err := e.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4})
	e.must(err)
	e.must(srq.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQMaskLimit)) // is below it
	ah, err := e.pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(simAddr(2))})
	e.must(err)
	if _, err := e.pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(simAddr6(2))}); err == nil {
		t.Error("an AH of the other IP version was made, want an error")
	}
	e.impl().raise(verbs.EventCommEst, nil)
	c := e.cq.Provider().(*cq)
	for _, c := range []io.Closer{ah, srq, e.qp, e.cq, e.pd} {
		e.must(c.Close())
	}
	noEvent(t, e.dev)
	if n := tables.Held(&c.CQ, nil, nil)["qps"]; n != 0 {
		t.Errorf("the CQ keeps %d QPs that were closed, want none", n)
	}
	for what, n := range map[string]*atomic.Int64{"PDs": &p.PDs, "CQs": &p.CQs, "AHs": &p.ahs, "SRQs": &p.SRQs, "QPs": &p.qpCount} {
		if n.Load() != 0 {
			t.Errorf("the device counts %d %s after all were closed, want none", n.Load(), what)
		}
	}
	if err := p.Close(); !errors.Is(err, failure) {
		t.Errorf("Close: got %v, want what closing the capture has met, %v", err, failure)
	}
}

// closer fails to close.
type closer struct{ err error }

func (c closer) Close() error { return c.err }

// TestCountersOfClosed: the device keeps the counts of a closed QP, however often the device is asked.
func TestCountersOfClosed(t *testing.T) {
	x, y := pair(t, "sim", options{})
	x.transfer(x.mr(8), y.mr(8))
	open, peer := connect(t, x.dev, y.dev, options{})
	open.transfer(open.mr(8), peer.mr(8))
	x.must(x.qp.Close())
	for i := range 3 {
		got, err := x.dev.Counters()
		x.must(err)
		if n := got.Value("rdma_writes"); n != 2 {
			t.Errorf("call %d: the device counts %d WRITEs, want 2: one of the QP that is closed, and one of the other", i, n)
		}
	}
}

// TestResetStopsTimer: a QP that waits for an acknowledgement is not among its engine's timers any more after RESET. By
// its next connection it may be at another address, among other timers.
func TestResetStopsTimer(t *testing.T) {
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	net.Partition(simAddr(1), simAddr(2))
	x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, Remote: y.mr(8).Remote(0)})
	q := x.impl()
	timers := &q.out.eng.timers
	x.must(x.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	q.mu.Lock()
	defer q.mu.Unlock()
	timers.mu.Lock()
	defer timers.mu.Unlock()
	if q.timerAt != never || q.timer.place >= 0 {
		t.Errorf("after RESET the timers call at %d, and have the QP at place %d; want never, and none", q.timerAt, q.timer.place)
	}
}

// TestNotifyError: who asks hears once why the QP has failed, before the failure and after it.
func TestNotifyError(t *testing.T) {
	p, err := Open(sim.New(sim.Config{}).Netdev("sim1", simAddr(1)), Config{Driven: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	e := newEnd(t, verbs.NewDevice(p), options{})
	cause := errors.New("a failure")
	for _, when := range []string{"before", "after"} {
		told := 0
		e.must(e.qp.NotifyError(func(err error) {
			if told++; !errors.Is(err, cause) {
				t.Errorf("asked %s the failure: told %v, want %v", when, err, cause)
			}
		}))
		if when == "before" {
			e.impl().Fail(cause)
		}
		if p.Drive(false); told != 1 {
			t.Errorf("asked %s the failure: told %d times, want once", when, told)
		}
		e.impl().mu.Lock()
		e.impl().tell() // whatever else there is to tell
		e.impl().mu.Unlock()
		if p.Drive(false); told > 1 {
			t.Errorf("asked %s the failure: told %d times, want once", when, told)
		}
	}
}

// TestFailureOfQueues: a QP that fails flushes its receives to the CQ of its receive queue. If it has an SRQ, it says in
// each of its lives that it takes no more.
func TestFailureOfQueues(t *testing.T) {
	e := newEnd(t, simDevice(t, sim.New(sim.Config{}), 1), options{})
	recvs, err := e.dev.CreateCQ(4)
	e.must(err)
	own, err := e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: recvs, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}})
	e.must(err)
	e.must(own.Init(1, 0))
	_, err = own.PostRecv([]verbs.RecvWR{{}})
	e.must(err)
	own.Provider().(*qp).Fail(errors.New("a failure"))
	if n, other := recvs.Provider().(*cq).Waiting(), e.cq.Provider().(*cq).Waiting(); n != 1 || other != 0 {
		t.Errorf("%d completions in the CQ of receives, and %d in that of sends; want 1 and none", n, other)
	}
	event(t, e.dev) // of the failure
	srq, err := e.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4})
	e.must(err)
	shared, err := e.pd.CreateQP(verbs.QPInitAttr{SendCQ: e.cq, RecvCQ: recvs, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 1}})
	e.must(err)
	for life := range 2 {
		e.must(shared.Init(1, 0))
		shared.Provider().(*qp).Fail(errors.New("a failure"))
		if ev := event(t, e.dev); ev.Type != verbs.EventQPLastWQEReached {
			t.Fatalf("life %d: event %v, want %v", life, ev.Type, verbs.EventQPLastWQEReached)
		}
		event(t, e.dev) // of the failure
		e.must(shared.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	}
}

// TestKeepAliveOfIdle: keep-alive sets the timer of a QP that has nothing else to wait for.
func TestKeepAliveOfIdle(t *testing.T) {
	x, _ := pair(t, "sim", options{})
	if at := x.impl().timerAt; at != never {
		t.Fatalf("the timer of an idle QP is set to %d, want never", at)
	}
	x.must(x.qp.SetKeepAlive(time.Minute))
	x.impl().mu.Lock()
	defer x.impl().mu.Unlock()
	if at := x.impl().timerAt; at == never {
		t.Error("the timer is not set, want it set to when the peer is asked")
	}
}

func closeInTraffic(t *testing.T, kind string) {
	const size, parts = 64 << 10, 4
	x, y := pair(t, kind, options{cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: 4096, timeout: 10})
	mine, theirs := make([]byte, parts*size), make([]byte, parts*size)
	for i := range theirs {
		theirs[i] = 0xee
	}
	mr, err := y.pd.RegMR(mine, everything)
	y.must(err)
	peer, err := x.pd.RegMR(theirs, everything)
	x.must(err)
	part := func(m *verbs.MR, i int) []verbs.SGE { return []verbs.SGE{m.SGE(i*size, size)} }

	// Operations that may touch y's memory: WRITEs and READs of x, SENDs of x into y's receives, and y's own READs.
	traffic := []func() error{
		func() error {
			_, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: part(peer, 0), Remote: mr.Remote(0)}})
			return err
		},
		func() error {
			_, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: part(peer, 1)}})
			return err
		},
		func() error {
			_, err := y.qp.PostRecv([]verbs.RecvWR{{SGList: part(mr, 1)}})
			return err
		},
		func() error {
			_, err := y.qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: part(mr, 2), Remote: peer.Remote(2 * size)}})
			return err
		},
		func() error {
			_, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: part(peer, 3), Remote: mr.Remote(3 * size)}})
			return err
		},
	}
	var users sync.WaitGroup
	under := make(chan struct{}, 1) // there is traffic
	stop := make(chan struct{})
	users.Go(func() {
		var wcs [64]verbs.WC
		done := 0
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			err := traffic[i%len(traffic)]()
			if errors.Is(err, verbs.ErrClosed) { // y's; x goes on
				continue
			}
			if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
				t.Errorf("post: %v", err)
				return
			}
			for _, e := range []*end{x, y} {
				n, err := e.cq.Poll(wcs[:])
				if err != nil {
					t.Errorf("poll: %v", err)
					return
				}
				done += n
			}
			if done > 2*len(traffic) {
				select {
				case under <- struct{}{}:
				default:
				}
			}
		}
	})
	select {
	case <-under:
	case <-time.After(patience):
		t.Fatalf("no traffic after %v, want some", patience)
	}
	y.must(y.qp.Close())
	for i := range mine {
		mine[i] = 0x11
	}
	close(stop)
	users.Wait()
	// Whatever is on its way arrives, or is repeated in vain, while x has time. Something is: x may have
	// been done with all when y closed. If its queue is full, it is not.
	if err := traffic[0](); err != nil && !errors.Is(err, verbs.ErrQueueFull) && x.qp.State() == verbs.QPStateRTS {
		t.Errorf("post: %v", err)
	}
	for deadline := time.Now().Add(patience); x.qp.State() == verbs.QPStateRTS; {
		if time.Now().After(deadline) {
			t.Fatalf("the QP is in RTS %v after its peer's has closed, want it to give up", patience)
		}
		if _, err := x.cq.Poll(make([]verbs.WC, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if i := bytes.IndexFunc(mine, func(r rune) bool { return r != 0x11 }); i >= 0 {
		t.Errorf("byte %d of the buffers: got %#x, want what the program has put there after Close", i, mine[i])
	}
	for _, c := range []interface{ Close() error }{mr, peer} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

package hca

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// testCQ is a CQ that the test itself puts completions into.
type testCQ struct {
	*cq
	user  *verbs.CQ
	slots atomic.Uint64
	last  uint64
}

func newTestCQ(t testing.TB, entries int) (*testCQ, *verbs.Device) {
	t.Helper()
	d := simDevice(t, sim.New(sim.Config{}), 1)
	user, err := d.CreateCQ(entries)
	if err != nil {
		t.Fatal(err)
	}
	return &testCQ{cq: user.Provider().(*cq), user: user}, d
}

// add pushes completions whose IDs count up from 1.
func (c *testCQ) add(n int, solicited bool, status verbs.WCStatus) {
	for range n {
		c.last++
		c.Push([]queue.CQE{{WC: verbs.WC{ID: c.last, Status: status}, Slots: &c.slots, Freed: c.last, Solicited: solicited}})
	}
}

// poll takes up to n and returns their IDs.
func (c *testCQ) poll(n int) (ids []uint64, err error) {
	wcs := make([]verbs.WC, n)
	n, err = c.Poll(wcs)
	for _, wc := range wcs[:n] {
		ids = append(ids, wc.ID)
	}
	return ids, err
}

func (c *testCQ) want(t testing.TB, n int, first, last uint64) {
	t.Helper()
	got, err := c.poll(n)
	if err != nil {
		t.Fatal(err)
	}
	ok := uint64(len(got)) == last+1-first
	for i, id := range got {
		ok = ok && id == first+uint64(i)
	}
	if !ok {
		t.Errorf("polled %v, want %d to %d", got, first, last)
	}
	if len(got) > 0 && c.slots.Load() != last {
		t.Errorf("%d places are free after completion %d, want as many", c.slots.Load(), last)
	}
}

// TestCQOverflow: a queue that has lost completions says so to everybody, and raises one event.
func TestCQOverflow(t *testing.T) {
	c, d := newTestCQ(t, 2)
	c.Arm(true)
	c.add(3, false, 0)
	c.want(t, 1, 1, 1)
	c.want(t, 5, 2, 2)
	for range 2 {
		if got, err := c.poll(1); !errors.Is(err, verbs.ErrCQOverrun) || !strings.Contains(err.Error(), "full with 2") {
			t.Errorf("poll after the loss: %v, %v; want ErrCQOverrun", got, err)
		}
	}
	if ev := event(t, d); ev.Type != verbs.EventCQErr || ev.CQ != c.user {
		t.Errorf("event %v of CQ %p, want CQ_ERR of %p", ev.Type, ev.CQ, c.user)
	}
	c.add(5, false, 0)
	noEvent(t, d) // the event comes once
	// A program that waits is told too.
	if _, err := c.user.Wait(context.Background(), make([]verbs.WC, 1)); !errors.Is(err, verbs.ErrCQOverrun) {
		t.Errorf("Wait after the loss: %v, want ErrCQOverrun", err)
	}
}

// TestCQOverflowFailsQPs: a QP whose completions are lost fails.
func TestCQOverflowFailsQPs(t *testing.T) {
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{cqe: 2})
	src, dst := x.mr(8), y.mr(8)
	for i := range uint64(3) {
		x.send(verbs.SendWR{ID: i, Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
	}
	if ev := event(t, x.dev); ev.Type != verbs.EventCQErr || ev.CQ != x.cq {
		t.Errorf("event %v, want CQ_ERR", ev.Type)
	}
	if ev := event(t, x.dev); ev.Type != verbs.EventQPFatal || ev.QP != x.qp {
		t.Errorf("event %v, want QP_FATAL", ev.Type)
	}
	if s := x.qp.State(); s != verbs.QPStateErr {
		t.Errorf("the QP is in %v, want ERR", s)
	}
	for i := range uint64(2) {
		if wc := x.done(); wc.ID != i {
			t.Errorf("completion %d, want %d", wc.ID, i)
		}
	}
	x.must(x.qp.Close())
	x.must(x.cq.Close())
}

// TestCQOverflowFailsLaterQPs: so does one that is made when completions of others are lost already.
func TestCQOverflowFailsLaterQPs(t *testing.T) {
	net := sim.New(sim.Config{})
	x, y := newEnd(t, simDevice(t, net, 1), options{cqe: 2}), newEnd(t, simDevice(t, net, 2), options{})
	x.cq.Provider().(*cq).Push(make([]queue.CQE, 3))
	if ev := event(t, x.dev); ev.Type != verbs.EventCQErr {
		t.Errorf("event %v, want CQ_ERR", ev.Type)
	}
	if ev := event(t, x.dev); ev.Type != verbs.EventQPFatal || ev.QP != x.qp {
		t.Errorf("event %v, want QP_FATAL", ev.Type)
	}
	var err error
	x.qp, err = x.pd.CreateQP(verbs.QPInitAttr{SendCQ: x.cq, RecvCQ: x.cq, Cap: verbs.QPCap{MaxSendWR: 1}})
	x.must(err)
	x.must(x.qp.Init(1, everything))
	x.join(y, options{})
	y.join(x, options{})
	x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	if ev := event(t, x.dev); ev.Type != verbs.EventQPFatal || ev.QP != x.qp {
		t.Errorf("event %v, want QP_FATAL, and no second CQ_ERR", ev.Type)
	}
}

// TestCQClose: a closed queue raises no events, takes no completions and is not counted.
func TestCQClose(t *testing.T) {
	c, d := newTestCQ(t, 1)
	c.add(2, false, 0)
	c.Overrun(true) // whose event nobody has read
	if err := c.user.Close(); err != nil {
		t.Fatal(err)
	}
	noEvent(t, d) // for a queue that is gone
	c.Overrun(true)
	noEvent(t, d) // nor when its turn comes late
	c.add(1, false, 0)
	if _, err := c.Poll(make([]verbs.WC, 1)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Poll: %v, want ErrClosed", err)
	}
	if err := c.Arm(false); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Arm: %v, want ErrClosed", err)
	}
	if n := impl(d).CQs.Load(); n != 0 {
		t.Errorf("the device counts %d CQs, want none", n)
	}
}

// TestSendSlots: places of the send queue are free when their completion has been polled, not before.
func TestSendSlots(t *testing.T) {
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}, cqe: 64})
	src, dst := x.mr(8), y.mr(8)
	write := func(id uint64, f verbs.SendFlags) error {
		_, err := x.qp.PostSend([]verbs.SendWR{{ID: id, Op: verbs.OpRDMAWrite, Flags: f, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)}})
		return err
	}
	for i := range uint64(4) {
		x.must(write(i, signaled))
	}
	x.waiting(4)
	if err := write(9, signaled); !errors.Is(err, verbs.ErrQueueFull) || !strings.Contains(err.Error(), "of which 4 are done") {
		t.Errorf("a fifth before polling: %v, want ErrQueueFull", err)
	}
	x.done()
	x.must(write(4, signaled))
	if err := write(9, signaled); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("a second for one polled: %v, want ErrQueueFull", err)
	}
	for range 4 {
		x.done()
	}
	for i := range uint64(3) {
		x.must(write(i, 0))
	}
	x.must(write(3, signaled))
	if x.done().ID != 3 {
		t.Error("an unsignaled WRITE made a completion")
	}
	for i := range uint64(4) { // all four are free
		x.must(write(i, 0))
	}
	if err := write(9, signaled); !errors.Is(err, verbs.ErrQueueFull) || !strings.Contains(err.Error(), "unsignaled") {
		t.Errorf("behind unsignaled ones only: %v, want ErrQueueFull that says so", err)
	}
}

// TestRecvSlots: places of the receive queue are free when their completion has been polled.
func TestRecvSlots(t *testing.T) {
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 4}, cqe: 64})
	full := func(want bool) {
		t.Helper()
		_, err := y.qp.PostRecv([]verbs.RecvWR{{}})
		if errors.Is(err, verbs.ErrQueueFull) != want {
			t.Errorf("PostRecv: %v; want the queue full: %v", err, want)
		}
	}
	for range 4 {
		y.recv(verbs.RecvWR{})
	}
	full(true)
	x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled})
	x.done()
	full(true) // received, but not polled
	y.done()
	full(false)
	full(true)
	if n, err := y.qp.PostRecv([]verbs.RecvWR{{}, {}}); n != 0 || err == nil {
		t.Errorf("PostRecv to a full queue: %d, %v; want 0 and an error", n, err)
	}
}

// TestResetWithOldCompletions: completions from before a RESET stay in the CQ. Polling them frees no
// place of what the QP does after it.
func TestResetWithOldCompletions(t *testing.T) {
	net := sim.New(sim.Config{})
	x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}, cqe: 64})
	src, dst := x.mr(8), y.mr(8)
	write := verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)}
	x.recv(verbs.RecvWR{ID: 100}, verbs.RecvWR{ID: 101})
	x.send(write, write, write, write)
	x.waiting(4)
	for _, e := range []*end{x, y} {
		e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
		if _, err := e.qp.PostRecv([]verbs.RecvWR{{}}); !errors.Is(err, verbs.ErrState) {
			t.Errorf("PostRecv in RESET: %v, want ErrState", err)
		}
		e.must(e.qp.Init(1, everything))
	}
	x.join(y, options{})
	y.join(x, options{})
	x.send(write, write, write, write)
	x.recv(verbs.RecvWR{}, verbs.RecvWR{}, verbs.RecvWR{}, verbs.RecvWR{}) // those from before are gone
	x.waiting(8)
	for range 4 {
		x.done() // of before
	}
	if _, err := x.qp.PostSend([]verbs.SendWR{write}); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("a fifth after the RESET: %v, want ErrQueueFull", err)
	}
	for range 4 {
		x.done()
	}
	x.send(write)
	x.done()
	x.empty()
}

// TestPostRecvInError: receives that are posted while the QP fails are flushed, each once.
func TestPostRecvInError(t *testing.T) {
	for range 20 {
		net := sim.New(sim.Config{})
		x, _ := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range uint64(50) {
				x.recv(verbs.RecvWR{ID: i})
			}
		})
		runtime.Gosched()
		x.must(x.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		wg.Wait()
		for i := range uint64(50) {
			if wc := x.next(); wc.ID != i || wc.Status != verbs.WCFlushErr {
				t.Fatalf("completion %+v, want %d flushed", wc, i)
			}
		}
		x.empty()
	}
}

// TestCQWaiters: a goroutine in Wait returns when it gets a completion, or when the queue is closed.
func TestCQWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestCQ(t, 10)
		var got atomic.Int32
		var closed atomic.Int32
		for range 4 {
			go func() {
				_, err := c.user.Wait(t.Context(), make([]verbs.WC, 1))
				if err == nil {
					got.Add(1)
				} else if errors.Is(err, verbs.ErrClosed) {
					closed.Add(1)
				}
			}()
		}
		synctest.Wait()
		c.add(3, false, 0)
		synctest.Wait()
		if got.Load() != 3 {
			t.Errorf("%d waiters have a completion, want 3", got.Load())
		}
		c.user.Close()
		synctest.Wait()
		if closed.Load() != 1 {
			t.Errorf("%d waiters have ErrClosed, want 1", closed.Load())
		}
	})
}

// TestPollLooksWhereItMust: a poll looks at the addresses by which something can come for its QPs, and at no
// other. A queue of UD QPs, or of none, looks at all.
func TestPollLooksWhereItMust(t *testing.T) {
	net := sim.New(sim.Config{})
	a, b := simDevice(t, net, 1), simDevice(t, net, 2)
	x, y := connect(t, a, b, options{})                        // over IPv4
	v6, w6 := newEnd(t, a, options{}), newEnd(t, b, options{}) // over IPv6
	v6.join(w6, options{gid: 1})
	w6.join(v6, options{gid: 1})
	ud := newEnd(t, a, options{typ: verbs.QPTypeUD})
	looks := func(e *end) (n [2]bool) {
		engines := *e.hca().engines.Load()
		var before [2]uint32
		for i, eng := range engines {
			before[i], _ = eng.polls.load()
		}
		e.empty()
		for i, eng := range engines {
			polls, _ := eng.polls.load()
			n[i] = polls > before[i]
		}
		return n
	}
	both := [2]bool{true, true}
	for _, tt := range []struct {
		name string
		e    *end
		want [2]bool
	}{{"IPv4", x, [2]bool{true, false}}, {"IPv6", v6, [2]bool{false, true}}, {"UD", ud, both}} {
		if got := looks(tt.e); got != tt.want {
			t.Errorf("%s: looks at the addresses %v, want %v", tt.name, got, tt.want)
		}
	}
	x.must(x.qp.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState))
	if got := looks(x); got != both {
		t.Errorf("after RESET: looks at the addresses %v, want all", got)
	}
	x.must(x.qp.Init(1, everything))
	x.join(y, options{})
	if got, want := looks(x), ([2]bool{true, false}); got != want {
		t.Errorf("connected again: looks at the addresses %v, want %v", got, want)
	}
	v6.must(v6.qp.Close())
	if got := looks(v6); got != both {
		t.Errorf("after Close: looks at the addresses %v, want all", got)
	}
}

// TestPollLooksAtShards: UD QPs are of the first shard, and so a poll for them looks at no other.
func TestPollLooksAtShards(t *testing.T) {
	d := &Device{}
	first, other := &engine{shard: &shard{index: 0}}, &engine{shard: &shard{index: 1}}
	d.engines.Store(&[]*engine{first, other})
	d.firstEngines.Store(&[]*engine{first})
	p, err := d.CreateCQ(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, ud := p.(*cq), &qp{typ: verbs.QPTypeUD}
	for _, tt := range []struct {
		name string
		do   func()
		want []*engine
	}{
		{"no QP", func() {}, []*engine{first, other}},
		{"a UD QP", func() { c.attach(ud) }, []*engine{first}},
		{"and one connected in the first shard", func() { c.follow(first, 1) }, []*engine{first}},
		{"and one connected in the other", func() { c.follow(other, 1) }, []*engine{first, other}},
		{"without the UD QP", func() { c.detach(ud); c.follow(first, -1) }, []*engine{other}},
	} {
		tt.do()
		if got := *c.polled.Load().Load(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: a poll looks at %d engines %v, want %v", tt.name, len(got), got, tt.want)
		}
	}
}

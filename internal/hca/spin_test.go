package hca

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// spinning makes the device spin. Nothing has come by its links yet.
func spinning(d *verbs.Device) *verbs.Device {
	impl(d).config.Spin = 100
	return d
}

// endless is more looks than any spin here may have.
const endless = 10_000

// TestSpinBudget: spins get longer while sleeps are short, and end soon when they are long.
func TestSpinBudget(t *testing.T) {
	var s spin
	looks := func(most int) int {
		s.found(0, 0, most)
		n := 0
		for n < endless && s.mayLook(0) {
			n++
		}
		return n
	}
	if n := looks(100); n != 0 {
		t.Errorf("before any sleep: %d looks, want none", n)
	}
	for i, want := range []int{queue.SpinFirst, 2 * queue.SpinFirst, 4 * queue.SpinFirst, 100, 100} {
		s.slept(queue.SpinShort)
		if n := looks(100); n != want {
			t.Errorf("after short sleep %d: %d looks, want %d", i+1, n, want)
		}
	}
	for range 8 {
		s.slept(queue.SpinShort + 1)
	}
	if n := looks(100); n != 0 {
		t.Errorf("after long sleeps: %d looks, want none", n)
	}
	s.slept(0)
	if n := looks(0); n != 0 {
		t.Errorf("on a device that may not spin: %d looks, want none", n)
	}
}

// TestSpinStream: each datagram of a stream lengthens the spin, and no longer once sleeps are long.
func TestSpinStream(t *testing.T) {
	const most = 100
	var s spin
	looks := func(datagrams int) int {
		s.left = 0
		for range datagrams {
			s.found(0, 1, most)
		}
		n := 0
		for n < endless && s.mayLook(0) {
			n++
		}
		return n
	}
	for range 8 {
		s.slept(streamShort)
	}
	for datagrams, want := range map[int]int{1: spinEach, 3: 3 * spinEach, 100: spinStream * most} {
		if n := looks(datagrams); n != want {
			t.Errorf("after %d datagrams of a stream: %d looks, want %d", datagrams, n, want)
		}
	}
	s.found(time.Second, 100, most)
	if !s.mayLook(time.Second+spinMost) || s.mayLook(time.Second+spinMost+1) {
		t.Errorf("a spin does not end after %v, want so however slow looks are", spinMost)
	}
	for range 4 {
		s.slept(streamShort + 1)
	}
	if n := looks(100); n != 0 {
		t.Errorf("after long sleeps: %d looks, want none", n)
	}
	s.slept(0)
	s.found(0, 1000, 0)
	if s.mayLook(0) {
		t.Error("a device that may not spin does")
	}
}

// TestSpinYield: a spin gives its core away now and then, and not with each look. One without a way to yield only
// looks.
func TestSpinYield(t *testing.T) {
	var s spin
	yields := 0
	y := queue.NewYielder(func() time.Duration { return 0 }, func() { yields++ })
	s.slept(0)
	s.found(0, 0, queue.SpinFirst)
	for n := 0; n < endless && s.mayLook(0); n++ {
		s.yield(y)
		s.yield(nil)
	}
	if want := queue.SpinFirst / yieldEach; yields != want {
		t.Errorf("%d yields in %d looks, want %d", yields, queue.SpinFirst, want)
	}
}

// TestSpinGivesWay: a goroutine that waits for the only processor gets it from an engine's goroutine that spins.
func TestSpinGivesWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := newSpin()
	s.slept(0)
	s.found(0, 1, 100)
	ran := make(chan struct{})
	go close(ran) // it is the next to run, once this one gives way
	looks := 0
	for s.mayLook(0) {
		looks++
		s.yield(nil)
		select {
		case <-ran:
			s.left = 0
		default:
		}
	}
	if <-ran; looks > 5 {
		t.Errorf("a spin gave way after %d looks, want after the first ones", looks)
	}
}

// spinningTarget makes a row of WRITEs to a device that may spin. It returns what was called of the target's link, and
// how often the target looked for the last of them.
func spinningTarget(t *testing.T, yielder *queue.Yielder) (c *counting, looks int) {
	c = &counting{}
	count := func(l link.Link) link.Link {
		c.Link = l
		return c
	}
	net := sim.New(sim.Config{Delay: 10 * time.Microsecond})
	a, b := spinning(simDevice(t, net, 1)), spinning(simDevice(t, net, 2, count))
	impl(b).config.Yielder = yielder
	x, y := connect(t, a, b, options{})
	src, dst := x.mr(8), y.mr(8)
	for range 20 {
		x.transfer(src, dst)
	}
	before := c.recvs.Load()
	x.transfer(src, dst)
	return c, int(c.recvs.Load() - before)
}

// TestSpinCrowded: beside threads that do not give the core back soon, a device sleeps in place of spinning.
func TestSpinCrowded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now time.Duration
		y := queue.NewYielder(func() time.Duration { return now }, func() { now += time.Second })
		y.Yield()
		if _, n := spinningTarget(t, y); n >= queue.SpinFirst {
			t.Errorf("the target looked at its link %d times for a WRITE in a row of them, want fewer than the %d of a spin", n, queue.SpinFirst)
		}
	})
}

// TestSpinIdle: a device that spins while datagrams come closely sleeps when none come.
func TestSpinIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, n := spinningTarget(t, nil)
		if n < queue.SpinFirst {
			t.Errorf("the target looked at its link %d times for a WRITE in a row of them, want a spin of %d at least", n, queue.SpinFirst)
		}
		<-time.After(time.Second) // the WRITE's timer is looked at once more
		synctest.Wait()
		before := c.recvs.Load() + c.waits.Load()
		<-time.After(time.Hour)
		synctest.Wait()
		if n := c.recvs.Load() + c.waits.Load() - before; n != 0 {
			t.Errorf("the link was called %d times in an idle hour, want never", n)
		}
	})
}

// TestWaitSpins: a goroutine that waits for completions polls before it blocks, if they came quickly before.
// One goroutine at a time does.
func TestWaitSpins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{Delay: 10 * time.Microsecond})
		x, y := connect(t, spinning(simDevice(t, net, 1)), simDevice(t, net, 2), options{})
		e := (*x.hca().engines.Load())[0]
		src, dst := x.mr(8), y.mr(8)
		wcs := make([]verbs.WC, 1)
		polls := func() uint32 {
			t.Helper()
			before, _ := e.polls.load()
			x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
			if n, err := x.cq.Wait(context.Background(), wcs); n != 1 || err != nil {
				t.Fatalf("Wait: got %d completions, error %v, want one", n, err)
			}
			after, _ := e.polls.load()
			return after - before
		}
		first := polls()
		for range 10 {
			polls()
		}
		if n := polls(); n < first+queue.SpinFirst {
			t.Errorf("a Wait in a row of short ones polled %d times, want %d more than the first, which polled %d times", n, queue.SpinFirst, first)
		}
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
		<-time.After(time.Millisecond)
		synctest.Wait()
		if found := x.cq.Soon(); !found || x.impl().sendCQ.Waiting() != 1 {
			t.Errorf("Soon: %v, with %d completions waiting; want it to find one and leave it", found, x.impl().sendCQ.Waiting())
		}
		if n, err := x.cq.Poll(wcs); n != 1 || err != nil {
			t.Fatalf("Poll: got %d completions, error %v, want one", n, err)
		}
		if x.cq.Soon() {
			t.Error("Soon finds something though nothing is under way")
		}
		if !queue.Spinning.CompareAndSwap(false, true) {
			t.Fatal("nobody waits, and yet somebody spins")
		}
		defer queue.Spinning.Store(false)
		if n := polls(); n != first {
			t.Errorf("a Wait while another spins polled %d times, want %d as without spinning", n, first)
		}
	})
}

// TestNoConvoy: the goroutine does not queue up for the lock that a polling program takes all the time.
func TestNoConvoy(t *testing.T) {
	net := sim.New(sim.Config{})
	x, _ := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	e := (*x.hca().engines.Load())[0]
	for deadline := time.Now().Add(patience); e.sleepUntil.Load() == 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("the goroutine is awake after %v, want it asleep: nothing comes", patience)
		}
	}
	e.rx.Lock()
	defer e.rx.Unlock()
	e.polls.add(fewPolls, 0)
	e.link.Wake()
	deadline := time.Now().Add(patience)
	for !e.napping.Load() {
		if time.Now().After(deadline) {
			t.Fatal("the goroutine does not nap, want it to leave the lock to the polls")
		}
		runtime.Gosched()
	}
}

package queue

import (
	"runtime"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestSoonGivesWay: a goroutine that is about to complete something gets the only processor from the one that spins for
// the completion.
func TestSoonGivesWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	looks := 0
	c := NewCQ(4, CQHooks{Progress: func() bool { looks++; return false }, Notify: func() {}, Spin: 100, Now: func() time.Duration { return 0 }})
	c.spin.budget.Store(100)
	done := make(chan struct{})
	go func() { // it is the next to run, once this one gives way
		c.Push([]CQE{{WC: verbs.WC{ID: 1}}})
		close(done)
	}()
	if !c.Soon() {
		t.Errorf("Soon: false after %d looks, want it to let the goroutine run that has the completion", looks)
	}
	if <-done; looks > 10 {
		t.Errorf("Soon gave way after %d looks, want after the first ones", looks)
	}
}

// TestGiveWay: a spin gives way when goroutines wait. Once they often do, it gives way for a while whoever waits, and not
// for ever. Where they wait now and then it does not.
func TestGiveWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	waiting, yields := uint64(0), 0
	g := GiveWay{waiting: func() uint64 { return waiting }, yield: func() { yields++ }}
	spin := func(waits bool) bool { // a look
		waiting = 0
		if waits {
			waiting = 1
		}
		before := yields
		g.Begin()
		g.Look()
		return yields > before
	}
	if spin(false) {
		t.Error("a spin gives way though nobody waits and nobody did")
	}
	for i := range 20 * giveWayFound {
		waits := i%(giveWayFound+1) == 0
		if spin(waits) != waits {
			t.Fatalf("spin %d, of which one in %d finds somebody: a goroutine waits: %v, and the spin gives way: %v", i, giveWayFound+1, waits, !waits)
		}
	}
	often := giveWayFound / 2
	row := 0
	for i := 0; row < often; i++ { // in any case
		if row++; !spin(i%often == 0) { // one in so many finds somebody
			row = 0
		}
		if i > 2*giveWayMost {
			t.Fatalf("of %d spins, of which one in %d has found somebody, not one gives way whoever waits", i, often)
		}
	}
	for range giveWayMost {
		spin(true)
	}
	more := 0
	for more < 2*giveWayMost && spin(false) {
		more++
	}
	if want := giveWayMost - giveWayFrom - 1; more != want {
		t.Errorf("after many spins that found goroutines waiting, %d more give way, want %d", more, want)
	}
}

// TestGiveWayAsks: with many processors, a spin asks for those who wait once in a few looks.
func TestGiveWayAsks(t *testing.T) {
	asked := 0
	g := GiveWay{waiting: func() uint64 { asked++; return 0 }, yield: func() {}}
	for _, procs := range []int{1, 2, 16} {
		before := runtime.GOMAXPROCS(procs)
		g.Begin()
		runtime.GOMAXPROCS(before)
		asked = 0
		const looks = 12
		for range looks {
			g.Look()
		}
		if want := looks / (1 + procs/giveWayProcs); asked != want {
			t.Errorf("%d processors: asked %d times in %d looks, want %d", procs, asked, looks, want)
		}
	}
}

// TestWaiting: the runtime says how many goroutines wait for a processor.
func TestWaiting(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	g := NewGiveWay()
	runtime.Gosched() // those of other tests
	before := g.waiting()
	const more = 3
	done := make(chan struct{}, more)
	for range more {
		go func() { done <- struct{}{} }()
	}
	if n := g.waiting(); n < before+more {
		t.Errorf("%d goroutines wait with %d that were just begun, and %d did before", n, more, before)
	}
	for range more {
		<-done
	}
	if n := testing.AllocsPerRun(100, func() { g.waiting() }); n != 0 {
		t.Errorf("to ask makes %v allocations, want none", n)
	}
}

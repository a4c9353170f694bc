package hca

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// oneProcessor leaves Go one processor, and so one goroutine at a time, for the time of the test.
func oneProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// TestOneProcessor: a program that polls at one end, and leaves the processor to nobody, soon gets its completions
// nevertheless. Its polls do the work that the goroutine of the other end cannot.
func TestOneProcessor(t *testing.T) {
	if portable {
		t.Skip("the goroutines that read package net's sockets need the processor")
	}
	oneProcessor(t)
	x, y := connect(t, udpDevice(t, loopAddr(1)), udpDevice(t, loopAddr(2)), options{})
	src, dst := x.mr(64), y.mr(64)
	var polls []int
	var wcs [1]verbs.WC
	for range 21 {
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 64)}, Remote: dst.Remote(0)})
		n := 0
		for done := 0; done == 0; n++ {
			var err error
			done, err = x.cq.Poll(wcs[:])
			x.must(err)
		}
		x.must(wcs[0].Err())
		polls = append(polls, n)
	}
	slices.Sort(polls) // a busy host may delay some
	if most := 4 * vainPollsAlone; polls[len(polls)/2] > most {
		t.Errorf("WRITEs complete after %d polls, want %d at most for half of them", polls, most)
	}
}

// TestPollYields: where there is one processor, other goroutines run beside one that polls, and long before the polls
// after which one yields where there are several. Go's scheduler may go on with a goroutine that has just yielded: it
// does so in every 61st of its decisions, and at random under the race detector.
func TestPollYields(t *testing.T) {
	oneProcessor(t)
	net := sim.New(sim.Config{})
	x, _ := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{})
	var ran atomic.Bool
	go ran.Store(true)
	for polls := 0; !ran.Load(); polls++ {
		if polls == vainPolls/2 {
			t.Fatalf("a goroutine has not run during %d polls, want it to", polls)
		}
		x.cq.Poll(make([]verbs.WC, 1))
	}
}

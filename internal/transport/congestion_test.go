package transport

import (
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

func TestCongestion(t *testing.T) {
	c := newCongestion()
	want := func(when string, window uint64) {
		t.Helper()
		if c.window != window {
			t.Fatalf("%s: window %d, want %d", when, c.window, window)
		}
	}
	want("at first", maxWindow)
	c.acknowledged(10_000)
	want("nothing lost", maxWindow)

	c.lost()
	want("a loss", maxWindow/2)
	c.acknowledged(maxWindow/2 - 1)
	c.acknowledged(1)
	want("a window later", maxWindow/2+growth-1) // the second packet more costs a little more than the first
	for range maxWindow {
		c.acknowledged(maxWindow)
	}
	want("long after", maxWindow)
	c.acknowledged(1 << 40)
	want("even longer after", maxWindow)
	c.lost()
	want("no credit from before", maxWindow/2)

	c.timedOut()
	want("a timeout", maxWindow/2/shrinkFactor)
	c.acknowledged(8)
	want("quick growth", maxWindow/2/shrinkFactor+8)
	c.acknowledged(maxWindow)
	want("up to half of what was", maxWindow/4)
	for range 20 {
		c.lost()
	}
	want("many losses", lossWindow)
	c.acknowledged(lossWindow)
	want("and growth again", lossWindow+growth-1)
	for range 20 {
		c.timedOut()
	}
	want("many timeouts", minWindow)
	c.lost()
	want("a loss after them", minWindow)
	for range maxWindow {
		c.acknowledged(maxWindow)
	}
	want("and long after", maxWindow)
}

// Everything that is acknowledged counts, however it is cut, but for what the end of the quick growth cuts off.
func TestCongestionCuts(t *testing.T) {
	const total = 5 * maxWindow
	var windows []uint64
	for _, step := range []uint64{1, 7, 64} {
		c := newCongestion()
		c.timedOut()
		c.timedOut()
		for n := uint64(0); n < total; n += step {
			c.acknowledged(min(step, total-n))
		}
		windows = append(windows, c.window)
	}
	for _, w := range windows {
		if w+growth < windows[0] || w > windows[0]+growth {
			t.Errorf("windows %d after the same packets in other steps", windows)
		}
	}
}

// TestNarrowReads: a window that losses have narrowed still takes two chunks of a READ, so that something follows the
// end of the first; after timeouts it takes one.
func TestNarrowReads(t *testing.T) {
	for window, want := range map[uint64]int{maxWindow: maxWindow / readChunk, lossWindow: 2, minWindow: 1} {
		p := newPair(t, setup{mtu: verbs.MTU256, timeout: 8, noRetry: true})
		p.a.rc().recovery.window = window
		p.cutAfter(0)
		p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*2*maxWindow)))
		p.run()
		if got := len(p.packets(p.a, 0)); got != want {
			t.Errorf("with a window of %d: %d requests for chunks of a READ go out, want %d", window, got, want)
		}
	}
}

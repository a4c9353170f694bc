package recovery

import (
	"math"
	"testing"
	"time"
)

// delayRig is a controller whose round trips a test hands in.
type delayRig struct {
	*delayControl
	c   congestion
	p   Rate
	now time.Duration
}

func newDelayRig() *delayRig {
	g := &delayRig{c: slowStartEnded(), p: Rate{mtu: 1024}}
	g.delayControl = newDelayControl(&g.c, &g.p)
	return g
}

// rounds hands in round trips, one behind the other, n times.
func (g *delayRig) rounds(n int, trips ...time.Duration) {
	for range n {
		for _, rtt := range trips {
			g.now += rtt
			g.c.update(rtt)
			g.measured(g.now, rtt)
		}
	}
}

const delayLeast = 20 * us

// steady is a rig that has left its start behind, with a window.
func steadyDelayRig(window float64) *delayRig {
	g := newDelayRig()
	g.rounds(10, delayLeast)
	g.doubles, g.window = false, window
	g.apply(delayLeast)
	return g
}

// TestDelayStart: the window begins with a few packets and doubles in each RTT. The first that is too long ends
// that, and drains.
func TestDelayStart(t *testing.T) {
	g := newDelayRig()
	for want := uint64(swiftStart); want < MaxWindow/2; want *= 2 {
		if got := g.c.Limit(); got != want {
			t.Fatalf("the window is %d, want %d", got, want)
		}
		g.rounds(1, delayLeast)
	}
	before := g.window
	g.rounds(2, delayLeast+4*swiftQueue)
	if g.doubles || g.window >= before || g.c.Limit() != 1 || g.drain.wants == 0 {
		t.Errorf("after a long RTT: %+v, want a drain, and no doubling", g.delayControl)
	}
	g.rounds(drainProbes+1, delayLeast)
	before = g.window
	g.rounds(1, delayLeast)
	if g.window != before+swiftGrowth {
		t.Errorf("the window grows from %g to %g packets, want by 1", before, g.window)
	}
}

// TestDelayControl: the window follows the shortest round trips, down to a pace, and grows again.
func TestDelayControl(t *testing.T) {
	g := newDelayRig()
	g.rounds(100, delayLeast)
	if g.c.Limit() != MaxWindow || g.p.rate != 0 {
		t.Errorf("without a queue the window is %d and the rate %d, want %d and none", g.c.Limit(), g.p.rate, MaxWindow)
	}
	for range 100 { // each RTT has one that is short
		at := g.now
		for i := range time.Duration(10) {
			rtt := delayLeast
			if i%2 == 1 {
				rtt = 10 * delayLeast
			}
			g.now = at + i*g.c.srtt/10
			g.c.update(rtt)
			g.measured(g.now, rtt)
		}
	}
	if c := g.c.allowed; c != MaxWindow && c != 1 { // or a drain runs
		t.Errorf("while hosts are late now and then the window is %d, want %d", c, MaxWindow)
	}
	g.rounds(2000, delayLeast+500*us)
	if g.c.Limit() != 1 || g.p.rate == 0 || g.window < swiftLeast {
		t.Errorf("with a long queue the window is %d, the rate %d and %g packets a round trip; want 1, a rate, and %g at least", g.c.Limit(), g.p.rate, g.window, swiftLeast)
	}
	g.rounds(100, delayLeast)
	if w := g.c.Limit(); w < 40 || w > 100 || g.p.rate != 0 {
		t.Errorf("100 rounds after the queue the window is %d and the rate %d, want some dozens and none", w, g.p.rate)
	}
	g.c.window = 8 // losses count beside it
	if g.c.Limit() != 8 {
		t.Errorf("the window is %d, want 8", g.c.Limit())
	}
	g.c.window = MaxWindow
	// A path that has become longer for good.
	for end := g.now + 3*swiftMemory; g.now < end; {
		g.rounds(1, 10*ms)
	}
	g.rounds(200, 10*ms)
	if w := g.c.Limit(); w < 100 {
		t.Errorf("long after the path has become longer the window is %d, want 100 and more", w)
	}
}

// TestDelayGrowth: a wide window grows by a packet in a RTT, a small one by less.
func TestDelayGrowth(t *testing.T) {
	for _, x := range []struct{ window, want float64 }{{100, 1}, {swiftKnee, 1}, {8, .5}, {4, .25}, {1, .25}, {.1, .25}} {
		g := steadyDelayRig(x.window)
		g.rounds(1, delayLeast)
		if got := g.window - x.window; math.Abs(got-x.want) > 1e-9 {
			t.Errorf("a window of %g packets grows by %g, want %g", x.window, got, x.want)
		}
	}
}

// TestDelayCut: too long an RTT shrinks the window in proportion, by half at most, once in an RTT.
func TestDelayCut(t *testing.T) {
	for _, rtt := range []time.Duration{60 * us, 100 * us, 500 * us} {
		g := steadyDelayRig(100)
		g.c.rttvar = 0
		g.round(g.now, rtt)
		want := 100 * max(1-swiftBeta*float64(rtt-delayLeast-swiftQueue)/float64(rtt), 1-swiftMaxCut)
		if math.Abs(g.window-want) > 1e-9 {
			t.Errorf("a RTT of %v leaves %g packets of 100, want %g", rtt, g.window, want)
		}
	}
	g := steadyDelayRig(100)
	g.rounds(2, 60*us) // this ends the RTT before, and begins one
	g.roundEnds = g.now + 60*us
	before := g.window
	for range 5 {
		g.now += us
		g.measured(g.now, 60*us)
	}
	if g.window != before {
		t.Errorf("within a RTT the window changes from %g packets to %g", before, g.window)
	}
}

// TestDelayTarget: a small window has a longer target, and so have round trips that vary much.
func TestDelayTarget(t *testing.T) {
	g := steadyDelayRig(100)
	for _, x := range []struct {
		window float64
		rttvar time.Duration
		want   time.Duration
	}{
		{100, 0, 0}, {200, 0, 0}, {.1, 0, swiftRange}, {.05, 0, swiftRange}, {4, 0, 26121 * time.Nanosecond},
		{100, swiftCalm, 0}, {100, 2 * swiftCalm, swiftVary*swiftCalm - swiftQueue},
	} {
		g.window, g.c.rttvar = x.window, x.rttvar
		if got := g.target() - delayLeast - swiftQueue; (got - x.want).Abs() > 100*time.Nanosecond {
			t.Errorf("%g packets, rttvar %v: a RTT may be %v longer than with a wide window, want %v", x.window, x.rttvar, got, x.want)
		}
	}
}

// TestDelayPaces: a window of less than a packet is a pace, of so many bytes in a second.
func TestDelayPaces(t *testing.T) {
	g := steadyDelayRig(100)
	for window, want := range map[float64]uint64{0.5: 5120000, 0.05: 512000, 1: 0} { // of 1024 bytes in 100 µs
		g.window = window
		if g.apply(100 * us); g.p.rate != want {
			t.Errorf("%g packets: %d bytes in a second, want %d", window, g.p.rate, want)
		}
	}
}

// TestDelayDrain: while there is a queue the window is one packet every few milliseconds, for a few measurements of
// packets sent since. Then the window is restored, and the path's own length is known.
func TestDelayDrain(t *testing.T) {
	const queued = 60 * us
	g := newDelayRig()
	g.doubles, g.window = false, 50
	g.apply(queued)
	g.rounds(50, queued)
	g.rounds(1, queued-10*us) // as somebody else drains: the next of both is due then
	start := g.now
	for g.drain.wants == 0 && g.now < start+2*drainEvery {
		g.rounds(1, queued)
	}
	if d := g.now - start; d < drainEvery || d > drainEvery+2*queued {
		t.Fatalf("a drain begins %v after the shortest RTT, want %v", d, drainEvery)
	}
	window := g.window
	if g.c.Limit() != 1 {
		t.Errorf("the window is %d during a drain, want 1", g.c.Limit())
	}
	for range 2 * drainProbes { // packets that were in flight before do not count
		g.now += us
		g.measured(g.now, queued)
	}
	if g.drain.wants != drainProbes {
		t.Errorf("the drain waits for %d measurements, want %d", g.drain.wants, drainProbes)
	}
	g.now += queued
	g.rounds(drainProbes, delayLeast)
	if g.drain.wants != 0 || g.window != window || g.c.Limit() != uint64(window) || g.base() != delayLeast {
		t.Errorf("after a drain the window is %g and the shortest RTT %v, want %g and %v", g.window, g.base(), window, delayLeast)
	}

	// The drain ends, though no packet that was sent since arrives.
	for g.drain.wants == 0 {
		g.rounds(1, queued)
	}
	g.now += drainMost * queued
	g.measured(g.now, 10*drainMost*queued)
	if g.drain.wants != 0 {
		t.Error("a drain without an answer does not end")
	}
}

// TestDelayDrainsNothing: where there is no queue there is no drain.
func TestDelayDrainsNothing(t *testing.T) {
	g := steadyDelayRig(50)
	for g.now < 4*drainEvery {
		if g.rounds(1, delayLeast); g.drain.wants > 0 {
			t.Fatalf("a drain begins at %v", g.now)
		}
	}
}

// TestDelayPause: drains are rarer on long ways, by powers of two.
func TestDelayPause(t *testing.T) {
	for _, x := range []struct{ base, want time.Duration }{{20 * us, drainEvery}, {62 * us, drainEvery}, {70 * us, 2 * drainEvery}, {10 * ms, 256 * drainEvery}} {
		g := newDelayRig()
		g.rounds(1, x.base)
		if got := g.pause(); got != x.want {
			t.Errorf("round trips of %v: a drain every %v, want %v", x.base, got, x.want)
		}
	}
}

// TestDelayNotified: a notification halves the window, though round trips are short, once in a RTT.
func TestDelayNotified(t *testing.T) {
	g := steadyDelayRig(200)
	g.c.window = 200
	now := g.now
	g.notified(now)
	if g.notified(now + delayLeast/2); g.c.Limit() != 100 {
		t.Errorf("the window is %d after two notifications in a RTT, want half of 200", g.c.Limit())
	}
	if g.notified(now + delayLeast); g.c.Limit() != 50 {
		t.Errorf("the window is %d after one more, want half of 100", g.c.Limit())
	}
}

// TestDelayContends: where a long queue stays though the window shrinks, others fill it, and losses alone narrow the
// window for a while, from its former size. Then there is another try.
func TestDelayContends(t *testing.T) {
	const least = 5 * ms
	c := slowStartEnded()
	p := Rate{mtu: 4096}
	d := newDelayControl(&c, &p)
	now := time.Duration(0)
	round := func(rtt time.Duration) {
		now += rtt
		d.measured(now, rtt)
	}
	d.doubles = false
	round(least)
	for range 2 {
		const before = 100
		d.window = before
		round(least)
		for range swiftYields - 1 {
			round(2 * least)
		}
		if w := c.Limit(); w > before/4 {
			t.Fatalf("in a queue of its own: the window is %d, want it to yield from %d", w, before)
		}
		round(2 * least)
		if w := c.Limit(); w != before || p.rate != 0 {
			t.Fatalf("in a queue that stays: the window is %d and the rate %d, want %d and none", w, p.rate, before)
		}
		c.window /= 2 // as a loss does
		for range swiftContends - 1 {
			round(2 * least)
			if w := c.Limit(); w != before/2 {
				t.Fatalf("while others fill the queue the window is %d, want losses alone to narrow it, to %d", w, before/2)
			}
		}
		round(least)
		c.window = MaxWindow // or the window would hide the controller's
	}
}

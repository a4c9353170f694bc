package transport

import (
	"math"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// delayRig is a controller whose round trips a test hands in.
type delayRig struct {
	*delayControl
	c   congestion
	p   pacer
	mtu uint32
	now time.Duration
}

func newDelayRig() *delayRig {
	g := &delayRig{c: unfolded(), mtu: 1024}
	g.delayControl = newDelayControl(&g.c, &g.p, &g.mtu)
	return g
}

// rounds hands in round trips, one behind the other, n times.
func (g *delayRig) rounds(n int, trips ...time.Duration) {
	for range n {
		for _, trip := range trips {
			g.now += trip
			g.c.measured(trip)
			g.measured(g.now, trip)
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

// TestDelayStart: the window begins with a few packets and doubles in each round trip. The first that is too long ends
// that, and drains.
func TestDelayStart(t *testing.T) {
	g := newDelayRig()
	for want := uint64(swiftStart); want < maxWindow/2; want *= 2 {
		if got := g.c.limit(); got != want {
			t.Fatalf("the window is %d, want %d", got, want)
		}
		g.rounds(1, delayLeast)
	}
	before := g.window
	g.rounds(2, delayLeast+4*swiftQueue)
	if g.doubles || g.window >= before || g.c.limit() != 1 || g.drain.wants == 0 {
		t.Errorf("after a long round trip: %+v, want a drain, and no doubling", g.delayControl)
	}
	g.rounds(drainProbes+1, delayLeast)
	before = g.window
	g.rounds(1, delayLeast)
	if g.window != before+swiftGrowth {
		t.Errorf("the window grows from %g to %g packets, want by 1", before, g.window)
	}
}

// TestDelayStartsRTS: a QP that goes to RTS has the first window, and not the widest.
func TestDelayStartsRTS(t *testing.T) {
	p := newPair(t, setup{})
	q := p.a.qp
	if err := q.SetCongestionControl(verbs.CongestionDelay); err != nil {
		t.Fatal(err)
	}
	r := &q.service.(*rc).recovery
	r.start(r.una)
	if got := r.limit(); got != swiftStart {
		t.Errorf("the window is %d, want %d", got, swiftStart)
	}
}

// TestDelayControl: the window follows the shortest round trips, down to a pace, and grows again.
func TestDelayControl(t *testing.T) {
	g := newDelayRig()
	g.rounds(100, delayLeast)
	if g.c.limit() != maxWindow || g.p.rate != 0 {
		t.Errorf("without a queue the window is %d and the rate %d, want %d and none", g.c.limit(), g.p.rate, maxWindow)
	}
	for range 100 { // each round trip has one that is short
		at := g.now
		for i := range time.Duration(10) {
			trip := delayLeast
			if i%2 == 1 {
				trip = 10 * delayLeast
			}
			g.now = at + i*g.c.roundTrip/10
			g.c.measured(trip)
			g.measured(g.now, trip)
		}
	}
	if c := g.c.narrowed; c != maxWindow && c != 1 { // or it drains
		t.Errorf("while hosts are late now and then the window is %d, want %d", c, maxWindow)
	}
	g.rounds(2000, delayLeast+500*us)
	if g.c.limit() != 1 || g.p.rate == 0 || g.window < swiftLeast {
		t.Errorf("with a long queue the window is %d, the rate %d and %g packets a round trip; want 1, a rate, and %g at least", g.c.limit(), g.p.rate, g.window, swiftLeast)
	}
	g.rounds(100, delayLeast)
	if w := g.c.limit(); w < 40 || w > 100 || g.p.rate != 0 {
		t.Errorf("100 rounds after the queue the window is %d and the rate %d, want some dozens and none", w, g.p.rate)
	}
	g.c.window = 8 // losses count beside it
	if g.c.limit() != 8 {
		t.Errorf("the window is %d, want 8", g.c.limit())
	}
	g.c.window = maxWindow
	// A path that has become longer for good.
	for end := g.now + 3*swiftMemory; g.now < end; {
		g.rounds(1, 10*ms)
	}
	g.rounds(200, 10*ms)
	if w := g.c.limit(); w < 100 {
		t.Errorf("long after the path has become longer the window is %d, want 100 and more", w)
	}
}

// TestDelayGrowth: a wide window grows by a packet in a round trip, a small one by less.
func TestDelayGrowth(t *testing.T) {
	for _, x := range []struct{ window, want float64 }{{100, 1}, {swiftKnee, 1}, {8, .5}, {4, .25}, {1, .25}, {.1, .25}} {
		g := steadyDelayRig(x.window)
		g.rounds(1, delayLeast)
		if got := g.window - x.window; math.Abs(got-x.want) > 1e-9 {
			t.Errorf("a window of %g packets grows by %g, want %g", x.window, got, x.want)
		}
	}
}

// TestDelayCut: what is too long shrinks the window in proportion, by half at most, once in a round trip.
func TestDelayCut(t *testing.T) {
	for _, trip := range []time.Duration{60 * us, 100 * us, 500 * us} {
		g := steadyDelayRig(100)
		g.c.deviation = 0
		g.round(g.now, trip)
		want := 100 * max(1-swiftBeta*float64(trip-delayLeast-swiftQueue)/float64(trip), 1-swiftMaxCut)
		if math.Abs(g.window-want) > 1e-9 {
			t.Errorf("a round trip of %v leaves %g packets of 100, want %g", trip, g.window, want)
		}
	}
	g := steadyDelayRig(100)
	g.rounds(2, 60*us) // it ends the round trip before, and begins one
	g.roundEnds = g.now + 60*us
	before := g.window
	for range 5 {
		g.now += us
		g.measured(g.now, 60*us)
	}
	if g.window != before {
		t.Errorf("within a round trip the window changes from %g packets to %g", before, g.window)
	}
}

// TestDelayTarget: a small window has a longer target, and so have round trips that vary much.
func TestDelayTarget(t *testing.T) {
	g := steadyDelayRig(100)
	for _, x := range []struct {
		window    float64
		deviation time.Duration
		want      time.Duration
	}{
		{100, 0, 0}, {200, 0, 0}, {.1, 0, swiftRange}, {.05, 0, swiftRange}, {4, 0, 26121 * time.Nanosecond},
		{100, swiftCalm, 0}, {100, 2 * swiftCalm, swiftVary*swiftCalm - swiftQueue},
	} {
		g.window, g.c.deviation = x.window, x.deviation
		if got := g.target() - delayLeast - swiftQueue; (got - x.want).Abs() > 100*time.Nanosecond {
			t.Errorf("%g packets, deviation %v: a round trip may be %v longer than with a wide window, want %v", x.window, x.deviation, got, x.want)
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
// what was sent since. Then it is what it was, and the way's own length is known.
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
		t.Fatalf("a drain begins %v after the shortest round trip, want %v", d, drainEvery)
	}
	window := g.window
	if g.c.limit() != 1 {
		t.Errorf("the window is %d during a drain, want 1", g.c.limit())
	}
	for range 2 * drainProbes { // what was on its way does not count
		g.now += us
		g.measured(g.now, queued)
	}
	if g.drain.wants != drainProbes {
		t.Errorf("the drain waits for %d measurements, want %d", g.drain.wants, drainProbes)
	}
	g.now += queued
	g.rounds(drainProbes, delayLeast)
	if g.drain.wants != 0 || g.window != window || g.c.limit() != uint64(window) || g.base() != delayLeast {
		t.Errorf("after a drain the window is %g and the shortest round trip %v, want %g and %v", g.window, g.base(), window, delayLeast)
	}

	// It ends, though nothing that was sent since comes.
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

// TestNarrowedAtOnce: a window that becomes one packet while a part of a message is on its way that asks for no
// acknowledgement does not wait for a probe: one packet more goes, and asks.
func TestNarrowedAtOnce(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	q := p.a.qp
	if err := q.SetCongestionControl(verbs.CongestionDelay); err != nil {
		t.Fatal(err)
	}
	r := q.service.(*rc)
	r.recovery.narrowed = 64
	r.requester.askedAt = r.recovery.una
	wr := writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*100))
	if err := q.Post(&wr); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, MaxDatagram)
	q.Turn()
	for range 10 {
		if q.Transmit(p.now, buf) == 0 {
			t.Fatal("nothing goes")
		}
	}
	r.recovery.narrowed = 1
	if q.Transmit(p.now, buf) == 0 || r.requester.askedAt != r.recovery.nxt {
		t.Errorf("asked for an acknowledgement of what is before %d, %d are sent; want the last to ask", r.requester.askedAt, r.recovery.nxt)
	}
	if q.Transmit(p.now, buf) != 0 {
		t.Error("one more goes than had to")
	}
}

// TestDelayNotified: a notification halves the window, though round trips are short, once in a round trip.
func TestDelayNotified(t *testing.T) {
	g := steadyDelayRig(200)
	g.c.window = 200
	now := g.now
	g.notified(now)
	if g.notified(now + delayLeast/2); g.c.limit() != 100 {
		t.Errorf("the window is %d after two notifications in a round trip, want half of 200", g.c.limit())
	}
	if g.notified(now + delayLeast); g.c.limit() != 50 {
		t.Errorf("the window is %d after one more, want half of 100", g.c.limit())
	}
}

// TestDelayContends: where a long queue stays though the window shrinks, others fill it, and losses alone narrow the
// window for a while, from where it was. Then there is another try.
func TestDelayContends(t *testing.T) {
	const least = 5 * ms
	c := unfolded()
	var p pacer
	mtu := uint32(4096)
	d := newDelayControl(&c, &p, &mtu)
	now := time.Duration(0)
	round := func(trip time.Duration) {
		now += trip
		d.measured(now, trip)
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
		if w := c.limit(); w > before/4 {
			t.Fatalf("in a queue of its own: the window is %d, want it to yield from %d", w, before)
		}
		round(2 * least)
		if w := c.limit(); w != before || p.rate != 0 {
			t.Fatalf("in a queue that stays: the window is %d and the rate %d, want %d and none", w, p.rate, before)
		}
		c.window /= 2 // as a loss does
		for range swiftContends - 1 {
			round(2 * least)
			if w := c.limit(); w != before/2 {
				t.Fatalf("while others fill the queue the window is %d, want losses alone to narrow it, to %d", w, before/2)
			}
		}
		round(least)
		c.window = maxWindow // or it would hide the controller's
	}
}

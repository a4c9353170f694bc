package transport

import (
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// unfolded is what says how much may be under way to a peer that repeats selectively, at first.
func unfolded() congestion {
	c := newCongestion()
	c.unfold()
	return c
}

// TestFirstWindow: the first window grows quickly until the first loss, or until it need not be small.
func TestFirstWindow(t *testing.T) {
	for name, x := range map[string]struct {
		then                 func(c *congestion)
		window, unfolded, by uint64 // after that, when it is unfolded, and by a window that is acknowledged
	}{
		"nothing":  {func(c *congestion) {}, firstWindow, maxWindow, firstWindow},
		"a loss":   {func(c *congestion) { c.acknowledged(firstWindow, growth, true); c.lost() }, firstWindow, firstWindow, growth - 1},
		"restarts": {func(c *congestion) { c.acknowledged(100, growth, true); c.restarted(); c.restarted() }, restartWindow, restartWindow, restartWindow},
	} {
		c := newCongestion()
		x.then(&c)
		if c.window != x.window {
			t.Errorf("%s: the window is %d, want %d", name, c.window, x.window)
		}
		u := c
		if u.unfold(); u.window != x.unfolded {
			t.Errorf("%s: the window is unfolded to %d, want %d", name, u.window, x.unfolded)
		}
		if c.acknowledged(c.window, growth, true); c.window != x.window+x.by {
			t.Errorf("%s: a window later the window has grown from %d to %d, want by %d", name, x.window, c.window, x.by)
		}
	}
	c := newCongestion()
	c.acknowledged(100, growth, true)
	c.restarted()
	if want := uint64(firstWindow+100) / 2; c.threshold != want {
		t.Errorf("nothing came through while the first window grew: it grows quickly up to %d, want %d", c.threshold, want)
	}
}

// TestFirstBurst: how many packets a QP sends before the first acknowledgement.
func TestFirstBurst(t *testing.T) {
	for name, x := range map[string]struct {
		s    setup
		want int
	}{
		"to a peer that goes back":             {setup{fresh: true}, firstWindow},
		"to one that repeats selectively":      {setup{fresh: true, selective: true}, maxWindow},
		"by shared memory":                     {setup{fresh: true, lends: true}, maxWindow},
		"to a peer that goes back, some later": {setup{}, maxWindow},
	} {
		p := newPair(t, x.s)
		const n = 300
		p.post(p.a, verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{p.a.mem.sge(0, n*1024)}, Remote: p.b.mem.remote(0)})
		p.transmit()
		got := 0
		for _, s := range p.log {
			got += max(1, s.run)
		}
		if got != x.want {
			t.Errorf("%s: %d packets leave at once, want %d", name, got, x.want)
		}
	}
	p := newPair(t, setup{fresh: true})
	if err := p.a.qp.SetCongestionControl(verbs.CongestionDCQCN); err != nil {
		t.Fatal(err)
	}
	if got := p.a.rc().recovery.window; got != maxWindow {
		t.Errorf("with a controller that paces the first window is %d, want %d", got, maxWindow)
	}
}

// TestCongestion: how losses, timeouts and acknowledgements move the window.
func TestCongestion(t *testing.T) {
	c := newCongestion()
	want := func(when string, window uint64) {
		t.Helper()
		if c.window != window {
			t.Fatalf("%s: window %d, want %d", when, c.window, window)
		}
	}
	want("at first", firstWindow)
	c.acknowledged(10, growth, true)
	want("10 acknowledged", firstWindow+10)
	c.acknowledged(10_000, growth, true)
	want("nothing lost", maxWindow)

	c.lost()
	want("a loss", maxWindow/2)
	c.acknowledged(maxWindow/2-1, growth, true)
	c.acknowledged(1, growth, true)
	want("a window later", maxWindow/2+growth-1) // the second packet more costs a little more than the first
	for range maxWindow {
		c.acknowledged(maxWindow, growth, true)
	}
	want("long after", maxWindow)
	c.acknowledged(1<<40, growth, true)
	want("even longer after", maxWindow)
	c.lost()
	want("no credit from before", maxWindow/2)

	c.restarted()
	want("nothing came through", restartWindow)
	c.acknowledged(8, growth, true)
	want("quick growth", restartWindow+8)
	c.acknowledged(maxWindow, growth, true)
	want("up to half of what was", maxWindow/4)
	for range 20 {
		c.lost()
	}
	want("many losses", lossWindow)
	c.acknowledged(lossWindow, growth, true)
	want("and growth again", lossWindow+growth-1)
	for range 20 {
		c.restarted()
	}
	want("many restarts", restartWindow)
	c.lost()
	want("a loss after them", restartWindow)
	for range maxWindow {
		c.acknowledged(maxWindow, growth, true)
	}
	want("and long after", maxWindow)

	c = unfolded()
	c.window = 100
	c.lostSome(0, 8)
	want("8 losses without a queue", 96)
	c.acknowledged(96, growth, true) // which grows quickly below a threshold
	want("a window after them", 96+growth-1)
}

// TestQueue: a loss while packets wait in a queue narrows the window by what waits, to a half at most, once in a few
// round trips, and the window then grows slowly. Without a queue each loss costs half a packet. A queue that is longer
// than the path has rules of its own.
func TestQueue(t *testing.T) {
	const least = 10 * ms
	for _, tt := range []struct {
		trip   time.Duration
		want   uint64 // after 20 losses
		growth uint64
		trips  time.Duration
	}{
		{least, maxWindow - 10, 0, 0},
		{least + queueTime, maxWindow - 10, 0, 0},
		{least * 5 / 4, maxWindow * 4 / 5, queueGrowth, queueTrips},
		{2*least + queueTime, maxWindow / 2, queueGrowth, queueTrips},
		{2*least + queueTime + 1, maxWindow / 2, longGrowth, longTrips},
		{5 * least, maxWindow / 2, longGrowth, longTrips},
	} {
		c := unfolded()
		c.measured(least)
		c.roundTrip = tt.trip
		c.lostSome(0, 20)
		if c.window != tt.want {
			t.Errorf("20 losses with round trips of %v, %v at least: window %d, want %d", tt.trip, least, c.window, tt.want)
		}
		if tt.growth == 0 {
			continue
		}
		c.lostSome(tt.trips*c.roundTrip, 20)
		if c.window != tt.want {
			t.Errorf("more losses not long after: window %d, want %d still", c.window, tt.want)
		}
		c.acknowledged(c.window, growth, true)
		c.acknowledged(1, growth, true) // the second packet more costs a little more than the first
		if c.window != tt.want+tt.growth && c.window != tt.want+tt.growth-1 {
			t.Errorf("a window later: %d, want %d more than %d", c.window, tt.growth, tt.want)
		}
		before := c.window
		c.lostSome(tt.trips*c.roundTrip+1, 1)
		if c.window >= before*9/10 {
			t.Errorf("a loss after that: window %d, want it narrowed from %d", c.window, before)
		}
	}
}

// TestWentBack: toward a peer that does go-back-N a loss leaves of the window what the path holds, if packets wait in
// it, and else a half. From there the window grows quickly while none wait. While they do it grows by one packet, and
// where losses are frequent not at all.
func TestWentBack(t *testing.T) {
	const least = 100 * us
	for _, tt := range []struct {
		trip   time.Duration
		want   uint64
		growth uint64
	}{
		{least, maxWindow / 2, growth},
		{least * 9 / 8, maxWindow / 2, growth},
		{least * 5 / 4, maxWindow * 4 / 5, 1},
		{4 * least, maxWindow / 4, 1},
		{16 * least, maxWindow / 16, 1}, // half of the window would repeat what has only waited
		{time.Second, backWindow, 1},
	} {
		c := unfolded()
		c.measured(least)
		c.roundTrip = tt.trip
		c.wentBack()
		if c.window != tt.want {
			t.Errorf("round trips of %v, %v at least: window %d, want %d", tt.trip, least, c.window, tt.want)
		}
		c.acknowledged(c.window, 1, true)
		c.acknowledged(1, 1, true) // the second packet more costs a little more than the first
		if got := c.window - tt.want; got != tt.growth && got != tt.growth-1 || got == 0 {
			t.Errorf("round trips of %v, %v at least: the window has grown by %d, want %d", tt.trip, least, got, tt.growth)
		}
		before := c.window
		c.acknowledged(c.window, 0, true)
		if grown := c.window > before; grown != (tt.growth > 1) {
			t.Errorf("round trips of %v, %v at least, and losses are frequent: the window goes from %d to %d", tt.trip, least, before, c.window)
		}
	}
	r := recovery{goesBack: true, repeatedFrom: 10}
	if often, seldom := r.beyond(10+rareLoss-1), r.beyond(10+rareLoss); often != 0 || seldom != 1 {
		t.Errorf("after a loss the window grows by %d, and long after by %d; want 0 and 1", often, seldom)
	}
	r.goesBack = false
	if got := r.beyond(10); got != growth {
		t.Errorf("where a loss repeats one packet, the window grows by %d, want %d", got, growth)
	}
}

// TestLateIsNoQueue: where packets are known to come late, round trips may be longer by a quarter of that.
func TestLateIsNoQueue(t *testing.T) {
	const least, late = 10 * ms, 7 * ms
	c := unfolded()
	c.measured(least)
	c.roundTrip = least + queueTime + late
	if !c.queued() {
		t.Error("a long round trip is no queue where nothing is late")
	}
	c.patience = 4 * late
	if c.queued() {
		t.Error("it is a queue where packets are known to come as late")
	}
	c.roundTrip++
	if !c.queued() {
		t.Error("a longer one is no queue")
	}
}

// TestMeasured: the first measurement is the round trip. Of each later one an eighth counts, as RFC 6298
// has it with its alpha of 1/8.
func TestMeasured(t *testing.T) {
	c := unfolded()
	var got, deviations, least []time.Duration
	for _, d := range []time.Duration{800, 800, 1600, 100, 0, 1 << 40} {
		c.measured(d)
		got, deviations, least = append(got, c.roundTrip), append(deviations, c.deviation), append(least, c.leastTrip)
	}
	want := []time.Duration{800, 800, 900, 800, 700, 700 + (1<<40-700)/8}
	if !slices.Equal(got, want) {
		t.Errorf("round trips %d, want %d", got, want)
	}
	if want := []time.Duration{400, 300, 425, 518, 588, 588 + (1<<40-700-588)/4}; !slices.Equal(deviations, want) {
		t.Errorf("deviations %d, want %d", deviations, want)
	}
	if want := []time.Duration{800, 800, 800, 100, 0, 0}; !slices.Equal(least, want) {
		t.Errorf("shortest %d, want %d", least, want)
	}
	for range 1000 {
		c.measured(50_000)
	}
	if c.roundTrip < 50_000 || c.roundTrip > 50_007 { // less than 8 away, an eighth is nothing
		t.Errorf("after 1000 equal measurements the round trip is %d, want 50000 to 50007", c.roundTrip)
	}
}

// TestNotified: a notification narrows the window as a loss does, and those that follow within a round
// trip do nothing.
func TestNotified(t *testing.T) {
	const trip = 100 * us
	like := unfolded() // what losses make of it
	c := unfolded()
	c.measured(trip)
	like.measured(trip)
	want := func(when string) {
		t.Helper()
		like.notifiedAt = c.notifiedAt
		if c != like {
			t.Fatalf("%s: %+v, want %+v", when, c, like)
		}
	}
	now := 5 * trip
	c.notified(now)
	like.lost()
	want("first")
	for _, at := range []time.Duration{now, now + 1, now + trip - 1} {
		c.notified(at)
		want("within a round trip")
	}
	for range 5 {
		now += trip
		c.acknowledged(100, growth, true)
		like.acknowledged(100, growth, true)
		c.notified(now)
		like.lost()
		want("a round trip later")
		c.notified(now + trip/2)
		want("and within the next")
	}
	if c.window != lossWindow {
		t.Errorf("window %d after many notifications, want %d", c.window, lossWindow)
	}

	// At the beginning of time as well, and without a measurement.
	c, like = unfolded(), unfolded()
	c.notified(0)
	like.lost()
	want("at time 0")
	c.notified(unknownRoundTrip - 1)
	want("soon after it")
	c.notified(unknownRoundTrip)
	like.lost()
	want("later")
}

// TestCongestionCuts: everything that is acknowledged counts, in whatever pieces it comes. Only what the
// end of the quick growth cuts off is lost.
func TestCongestionCuts(t *testing.T) {
	const total = 5 * maxWindow
	var windows []uint64
	for _, step := range []uint64{1, 7, 64} {
		c := unfolded()
		c.restarted()
		c.restarted()
		for n := uint64(0); n < total; n += step {
			c.acknowledged(min(step, total-n), growth, true)
		}
		windows = append(windows, c.window)
	}
	for _, w := range windows {
		if w+growth < windows[0] || w > windows[0]+growth {
			t.Errorf("windows %d after the same packets in other steps, want them within %d of each other", windows, growth)
		}
	}
}

// TestNarrowReads: a window that losses have narrowed still takes two chunks of a READ, so that something
// follows the end of the first. After a restart it takes one.
func TestNarrowReads(t *testing.T) {
	for window, want := range map[uint64]int{maxWindow: maxWindow / readChunk, lossWindow: 2, restartWindow: 1} {
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

// TestControlEndsHold: what one congestion control has held back goes as soon as another one takes its place. At the
// least rates the wait may be a second.
func TestControlEndsHold(t *testing.T) {
	for _, held := range []verbs.CongestionControl{verbs.CongestionDelay, verbs.CongestionDCQCN} {
		p := newPair(t, setup{})
		if err := p.a.qp.SetCongestionControl(held); err != nil {
			t.Fatal(err)
		}
		p.a.qp.pace.setRate(1000) // bytes in a second
		for i := range uint64(2) {
			p.post(p.a, writeWR(i, p.b.mem.remote(0), p.a.mem.sge(0, 100)))
		}
		if p.transmit(); len(p.packets(p.a, 0)) != 1 {
			t.Fatalf("%v: %d packets at 1000 bytes in a second, want one", held, len(p.packets(p.a, 0)))
		}
		if err := p.a.qp.SetCongestionControl(verbs.CongestionWindow); err != nil {
			t.Fatal(err)
		}
		if p.transmit(); len(p.packets(p.a, 0)) != 2 {
			t.Errorf("%v: %d packets once the window takes its place, want both", held, len(p.packets(p.a, 0)))
		}
	}

	p := newPair(t, setup{})
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 100)))
	p.runUntil(2 * testDelay) // the peer has no receive
	until := p.a.rc().recovery.heldUntil
	if err := p.a.qp.SetCongestionControl(verbs.CongestionDCQCN); err != nil {
		t.Fatal(err)
	}
	if got := p.a.rc().recovery.heldUntil; got != until || got == Never {
		t.Errorf("the wait for a receive ends at %v with another congestion control, want %v as before", got, until)
	}
}

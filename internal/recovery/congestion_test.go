package recovery

import (
	"slices"
	"testing"
	"time"
)

// slowStartEnded is the first window toward a peer that acknowledges selectively.
func slowStartEnded() congestion {
	c := newCongestion(FarWindow)
	c.EndSlowStart()
	return c
}

// TestFirstWindow: the first window grows quickly until the first loss, or until it need not be small.
func TestFirstWindow(t *testing.T) {
	for name, x := range map[string]struct {
		then              func(c *congestion)
		window, ended, by uint64 // after that, when slow start is ended, and by a window that is acknowledged
	}{
		"nothing":  {func(c *congestion) {}, FirstWindow, MaxWindow, FirstWindow},
		"a loss":   {func(c *congestion) { c.grow(FirstWindow, growth, true); c.onLoss() }, FirstWindow, FirstWindow, growth - 1},
		"restarts": {func(c *congestion) { c.grow(100, growth, true); c.onTimeout(); c.onTimeout() }, RestartWindow, RestartWindow, RestartWindow},
	} {
		c := newCongestion(FarWindow)
		x.then(&c)
		if c.window != x.window {
			t.Errorf("%s: the window is %d, want %d", name, c.window, x.window)
		}
		u := c
		if u.EndSlowStart(); u.window != x.ended {
			t.Errorf("%s: with slow start ended the window is %d, want %d", name, u.window, x.ended)
		}
		if c.grow(c.window, growth, true); c.window != x.window+x.by {
			t.Errorf("%s: a window later the window has grown from %d to %d, want by %d", name, x.window, c.window, x.by)
		}
	}
	c := newCongestion(FarWindow)
	c.grow(100, growth, true)
	c.onTimeout()
	if want := uint64(FirstWindow+100) / 2; c.ssthresh != want {
		t.Errorf("nothing came through while the first window grew: it grows quickly up to %d, want %d", c.ssthresh, want)
	}
}

// TestCongestion: how losses, timeouts and acknowledgements move the window.
func TestCongestion(t *testing.T) {
	c := newCongestion(FarWindow)
	want := func(when string, window uint64) {
		t.Helper()
		if c.window != window {
			t.Fatalf("%s: window %d, want %d", when, c.window, window)
		}
	}
	want("at first", FirstWindow)
	c.grow(10, growth, true)
	want("10 acknowledged", FirstWindow+10)
	c.grow(10_000, growth, true)
	want("nothing lost", MaxWindow)

	c.onLoss()
	want("a loss", MaxWindow/2)
	c.grow(MaxWindow/2-1, growth, true)
	c.grow(1, growth, true)
	want("a window later", MaxWindow/2+growth-1) // the second packet more costs a little more than the first
	for range MaxWindow {
		c.grow(MaxWindow, growth, true)
	}
	want("long after", MaxWindow)
	c.grow(1<<40, growth, true)
	want("even longer after", MaxWindow)
	c.onLoss()
	want("no credit from before", MaxWindow/2)

	c.onTimeout()
	want("nothing came through", RestartWindow)
	c.grow(8, growth, true)
	want("quick growth", RestartWindow+8)
	c.grow(MaxWindow, growth, true)
	want("up to half of its former size", MaxWindow/4)
	for range 20 {
		c.onLoss()
	}
	want("many losses", LossWindow)
	c.grow(LossWindow, growth, true)
	want("and growth again", LossWindow+growth-1)
	for range 20 {
		c.onTimeout()
	}
	want("many restarts", RestartWindow)
	c.onLoss()
	want("a loss after them", RestartWindow)
	for range MaxWindow {
		c.grow(MaxWindow, growth, true)
	}
	want("and long after", MaxWindow)

	c = slowStartEnded()
	c.window = 100
	c.onLosses(0, 8)
	want("8 losses without a queue", 96)
	c.grow(96, growth, true) // the window grows quickly below ssthresh
	want("a window after them", 96+growth-1)
}

// TestQueue: a loss while packets wait in a queue narrows the window by the queue, to a half at most, once in a few
// round trips, and the window then grows slowly. Without a queue each loss costs half a packet. A queue that is
// longer than the path has rules of its own.
func TestQueue(t *testing.T) {
	const least = 10 * ms
	for _, tt := range []struct {
		rtt    time.Duration
		want   uint64 // after 20 losses
		growth uint64
		trips  time.Duration
	}{
		{least, MaxWindow - 10, 0, 0},
		{least + queueTime, MaxWindow - 10, 0, 0},
		{least * 5 / 4, MaxWindow * 4 / 5, queueGrowth, queueTrips},
		{2*least + queueTime, MaxWindow / 2, queueGrowth, queueTrips},
		{2*least + queueTime + 1, MaxWindow / 2, longGrowth, longTrips},
		{5 * least, MaxWindow / 2, longGrowth, longTrips},
	} {
		c := slowStartEnded()
		c.update(least)
		c.srtt = tt.rtt
		c.onLosses(0, 20)
		if c.window != tt.want {
			t.Errorf("20 losses with round trips of %v, %v at least: window %d, want %d", tt.rtt, least, c.window, tt.want)
		}
		if tt.growth == 0 {
			continue
		}
		c.onLosses(tt.trips*c.srtt, 20)
		if c.window != tt.want {
			t.Errorf("more losses not long after: window %d, want %d still", c.window, tt.want)
		}
		c.grow(c.window, growth, true)
		c.grow(1, growth, true) // the second packet more costs a little more than the first
		if c.window != tt.want+tt.growth && c.window != tt.want+tt.growth-1 {
			t.Errorf("a window later: %d, want %d more than %d", c.window, tt.growth, tt.want)
		}
		before := c.window
		c.onLosses(tt.trips*c.srtt+1, 1)
		if c.window >= before*9/10 {
			t.Errorf("a loss after that: window %d, want it narrowed from %d", c.window, before)
		}
	}
}

// TestWentBack: toward a peer that does go-back-N a loss leaves a window of the BDP, if packets wait in a queue, and
// else a half. From there the window grows quickly while none wait. While they do it grows by one packet, and where
// losses are frequent not at all.
func TestWentBack(t *testing.T) {
	const least = 100 * us
	for _, tt := range []struct {
		rtt    time.Duration
		want   uint64
		growth uint64
	}{
		{least, MaxWindow / 2, growth},
		{least * 9 / 8, MaxWindow / 2, growth},
		{least * 5 / 4, MaxWindow * 4 / 5, 1},
		{4 * least, MaxWindow / 4, 1},
		{16 * least, MaxWindow / 16, 1}, // half of the window would repeat packets that have only waited
		{time.Second, backWindow, 1},
	} {
		c := slowStartEnded()
		c.update(least)
		c.srtt = tt.rtt
		c.onGoBack()
		if c.window != tt.want {
			t.Errorf("round trips of %v, %v at least: window %d, want %d", tt.rtt, least, c.window, tt.want)
		}
		c.grow(c.window, 1, true)
		c.grow(1, 1, true) // the second packet more costs a little more than the first
		if got := c.window - tt.want; got != tt.growth && got != tt.growth-1 || got == 0 {
			t.Errorf("round trips of %v, %v at least: the window has grown by %d, want %d", tt.rtt, least, got, tt.growth)
		}
		before := c.window
		c.grow(c.window, 0, true)
		if grown := c.window > before; grown != (tt.growth > 1) {
			t.Errorf("round trips of %v, %v at least, and losses are frequent: the window goes from %d to %d", tt.rtt, least, before, c.window)
		}
	}
	r := State{wentBack: true, repeatedFrom: 10}
	if often, seldom := r.overfullGrowth(10+rareLoss-1), r.overfullGrowth(10+rareLoss); often != 0 || seldom != 1 {
		t.Errorf("after a loss the window grows by %d, and long after by %d; want 0 and 1", often, seldom)
	}
	r.wentBack = false
	if got := r.overfullGrowth(10); got != growth {
		t.Errorf("where a loss repeats one packet, the window grows by %d, want %d", got, growth)
	}
}

// TestLateIsNoQueue: where packets are known to come late, round trips may be longer by a quarter of that.
func TestLateIsNoQueue(t *testing.T) {
	const least, late = 10 * ms, 7 * ms
	c := slowStartEnded()
	c.update(least)
	c.srtt = least + queueTime + late
	if !c.isQueued() {
		t.Error("a long RTT is no queue where nothing is late")
	}
	c.reorder.size = 4 * late
	if c.isQueued() {
		t.Error("it is a queue where packets are known to come as late")
	}
	c.srtt++
	if !c.isQueued() {
		t.Error("a longer one is no queue")
	}
}

// TestMeasured: the first measurement is the RTT. Of each later one an eighth counts, as RFC 6298
// has it with its alpha of 1/8.
func TestMeasured(t *testing.T) {
	c := slowStartEnded()
	var got, deviations, least []time.Duration
	for _, d := range []time.Duration{800, 800, 1600, 100, 0, 1 << 40} {
		c.update(d)
		got, deviations, least = append(got, c.srtt), append(deviations, c.rttvar), append(least, c.minRTT)
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
		c.update(50_000)
	}
	if c.srtt < 50_000 || c.srtt > 50_007 { // less than 8 away, an eighth is nothing
		t.Errorf("after 1000 equal measurements the RTT is %d, want 50000 to 50007", c.srtt)
	}
}

// TestNotified: a notification narrows the window as a loss does, and those that follow within a round
// rtt do nothing.
func TestNotified(t *testing.T) {
	const rtt = 100 * us
	like := slowStartEnded() // the window after losses
	c := slowStartEnded()
	c.update(rtt)
	like.update(rtt)
	want := func(when string) {
		t.Helper()
		like.notifiedAt = c.notifiedAt
		if c != like {
			t.Fatalf("%s: %+v, want %+v", when, c, like)
		}
	}
	now := 5 * rtt
	c.notified(now)
	like.onLoss()
	want("first")
	for _, at := range []time.Duration{now, now + 1, now + rtt - 1} {
		c.notified(at)
		want("within a round trip")
	}
	for range 5 {
		now += rtt
		c.grow(100, growth, true)
		like.grow(100, growth, true)
		c.notified(now)
		like.onLoss()
		want("a RTT later")
		c.notified(now + rtt/2)
		want("and within the next")
	}
	if c.window != LossWindow {
		t.Errorf("window %d after many notifications, want %d", c.window, LossWindow)
	}

	// At the beginning of time as well, and without a measurement.
	c, like = slowStartEnded(), slowStartEnded()
	c.notified(0)
	like.onLoss()
	want("at time 0")
	c.notified(unknownRTT - 1)
	want("soon after it")
	c.notified(unknownRTT)
	like.onLoss()
	want("later")
}

// TestCongestionCuts: all acknowledged packets count, in whatever pieces they are acknowledged. Only the remainder at
// the end of the quick growth is lost.
func TestCongestionCuts(t *testing.T) {
	const total = 5 * MaxWindow
	var windows []uint64
	for _, step := range []uint64{1, 7, 64} {
		c := slowStartEnded()
		c.onTimeout()
		c.onTimeout()
		for n := uint64(0); n < total; n += step {
			c.grow(min(step, total-n), growth, true)
		}
		windows = append(windows, c.window)
	}
	for _, w := range windows {
		if w+growth < windows[0] || w > windows[0]+growth {
			t.Errorf("windows %d after the same packets in other steps, want them within %d of each other", windows, growth)
		}
	}
}

// TestFarGrowth: the window grows beyond the largest if the peer repeats selectively, the path is long, and round trips
// are even.
func TestFarGrowth(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rtt   time.Duration
		last  time.Duration
		sacks bool
		want  uint64 // after a window
	}{
		{"a long path", farRTT, farRTT, true, MaxWindow + farGrowth - 1}, // each packet more costs a little more
		{"a short path", farRTT - 1, farRTT - 1, true, MaxWindow},
		{"a peer that goes back", farRTT, farRTT, false, MaxWindow},
		{"packets wait", farRTT, farRTT * 2, true, MaxWindow},
	} {
		c := slowStartEnded()
		if c.grow(MaxWindow, growth, tt.sacks); c.window != MaxWindow {
			t.Errorf("%s: before the first measurement: window %d, want %d", tt.name, c.window, MaxWindow)
		}
		for range 20 {
			c.update(tt.rtt)
		}
		c.update(tt.last)
		if c.grow(MaxWindow, growth, tt.sacks); c.window > tt.want || c.window < min(tt.want, MaxWindow+farGrowth*7/8) {
			t.Errorf("%s: window %d, want %d", tt.name, c.window, tt.want)
		}
		for range 1000 {
			c.grow(MaxWindow, growth, tt.sacks)
		}
		if most := map[bool]uint64{true: FarWindow, false: MaxWindow}[tt.want > MaxWindow]; c.window != most {
			t.Errorf("%s: in the end the window is %d, want %d", tt.name, c.window, most)
		}
	}
}

// TestLossesAfterNoTrip: after an RTT that took no time, losses in a queue narrow the window as they do elsewhere,
// and no part of the window is without a bound.
func TestLossesAfterNoTrip(t *testing.T) {
	c := newCongestion(FarWindow)
	c.window = 200
	c.sample(0, rttSince(0, 300*us))
	for now := range 200 * time.Duration(1) {
		c.sample(now*2*ms, 2*ms)
	}
	c.onLosses(time.Second, 50)
	if c.window > 200 || c.ssthresh > 200 || c.window < LossWindow {
		t.Errorf("after 50 losses in a queue the window is %d, the threshold %d; want at most 200, and %d at least", c.window, c.ssthresh, LossWindow)
	}
	for range 100 {
		c.grow(200, growth, true)
	}
	if c.window > FarWindow {
		t.Errorf("later the window is %d, want %d at most", c.window, FarWindow)
	}
}

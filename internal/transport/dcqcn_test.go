package transport

import (
	"math"
	"testing"
	"time"
)

// TestDCQCN: notifications and time move the rate as the paper has it.
func TestDCQCN(t *testing.T) {
	const line = 1e9
	var p pacer
	d := newDCQCN(&p, line)
	near := func(when string, want float64) {
		t.Helper()
		if math.Abs(float64(p.rate)-want) > want/1000+1 {
			t.Fatalf("%s: %d bytes in a second, want %.0f", when, p.rate, want)
		}
	}
	near("at first", 0)
	now := time.Second
	d.notified(now)
	near("first notification", line/2)
	d.notified(now + notifyInterval - 1)
	near("too many", line/2)
	now += notifyInterval
	d.notified(now)
	near("second", line/4)
	rate := line / 4.0
	for range 5 {
		now += dcqcnTimer
		rate = (rate + line/2) / 2
		d.sent(now, 1)
		near("fast recovery", rate)
	}
	target := line / 2.0
	for range 10 {
		now += dcqcnTimer
		target += dcqcnAdditive
		rate = (rate + target) / 2
		d.sent(now, 1)
		near("additive increase", rate)
	}
	alpha := math.Pow(1-dcqcnGain, 15)
	d.notified(now)
	near("a notification in calm", rate*(1-alpha/2))

	for i := 0; d.limited; i++ {
		if now += dcqcnTimer; i > 1000 {
			t.Fatalf("still %d bytes in a second after %d steps, want no limit", p.rate, i)
		}
		d.sent(now, 1)
	}
	near("long after", 0)

	// The byte counter takes steps of its own.
	d.metered = 0
	d.notified(now)
	before := p.rate
	d.sent(now+1, dcqcnBytes)
	near("10 MiB", float64(before+line)/2)
}

// TestDCQCNFloor: a flood of notifications takes the rate to its floor at most, from which it recovers within
// some dozen milliseconds. A program that sends slowly is slowed down from there.
func TestDCQCNFloor(t *testing.T) {
	var p pacer
	d := newDCQCN(&p, 0)
	now := time.Second
	for range 1000 { // 100 MB in a second
		d.sent(now, 1000)
		now += 10 * us
	}
	d.notified(now)
	if p.rate < 45e6 || p.rate > 55e6 {
		t.Errorf("the first notification leaves %d bytes in a second of 100 MB, want half", p.rate)
	}
	for range 100_000 {
		now += us
		d.notified(now)
	}
	if p.rate != dcqcnFloor {
		t.Errorf("%d bytes in a second after a flood, want %v", p.rate, dcqcnFloor)
	}
	now += 20 * ms
	d.sent(now, 1)
	if p.rate < 100e6 {
		t.Errorf("%d bytes in a second 20 ms after a flood, want 100 MB and more", p.rate)
	}
}

// TestDelayControl: the window follows the shortest round trips, down to a pace, and grows again.
func TestDelayControl(t *testing.T) {
	const least = 20 * us
	c := newCongestion()
	var p pacer
	mtu := uint32(1024)
	d := newDelayControl(&c, &p, &mtu)
	now := time.Duration(0)
	rounds := func(n int, trips ...time.Duration) {
		for range n {
			for _, trip := range trips {
				now += trip
				c.acknowledged(c.limit())
				c.measured(trip)
				d.measured(now, trip)
			}
		}
	}
	rounds(100, least)
	if c.limit() != maxWindow || p.rate != 0 {
		t.Errorf("without a queue the window is %d and the rate %d, want %d and none", c.limit(), p.rate, maxWindow)
	}
	for range 100 { // each round trip has one that is short
		at := now
		for i := range time.Duration(10) {
			trip := least
			if i%2 == 1 {
				trip = 10 * least
			}
			now = at + i*c.roundTrip/10
			c.measured(trip)
			d.measured(now, trip)
		}
	}
	if c.limit() != maxWindow {
		t.Errorf("while hosts are late now and then the window is %d, want %d", c.limit(), maxWindow)
	}
	rounds(6, least+4*swiftQueue)
	if w := c.limit(); w > maxWindow/8 || w < 4 {
		t.Errorf("after some rounds with a queue the window is %d, want a few", w)
	}
	rounds(1000, least+20*swiftQueue)
	if c.limit() != 1 || p.rate == 0 || d.window < swiftLeast {
		t.Errorf("with a long queue the window is %d, the rate %d and %g packets a round trip; want 1, a rate, and %g at least", c.limit(), p.rate, d.window, swiftLeast)
	}
	rounds(50, least)
	if w := c.limit(); w < 40 || w > 60 || p.rate != 0 {
		t.Errorf("50 rounds after the queue the window is %d and the rate %d, want about 50 and none", w, p.rate)
	}
	c.window = 8 // losses count beside it
	if c.limit() != 8 {
		t.Errorf("the window is %d, want 8", c.limit())
	}
	c.window = maxWindow
	// A path that has become longer for good.
	for end := now + 3*swiftMemory; now < end; {
		rounds(1, 10*ms)
	}
	rounds(100, 10*ms)
	if w := c.limit(); w < 100 {
		t.Errorf("long after the path has become longer the window is %d, want 100 and more", w)
	}
}

// TestDelayContends: where a long queue stays though the window shrinks, others fill it, and losses alone narrow the
// window for a while, from where it was. Then there is another try.
func TestDelayContends(t *testing.T) {
	const least = 5 * ms
	c := newCongestion()
	var p pacer
	mtu := uint32(4096)
	d := newDelayControl(&c, &p, &mtu)
	now := time.Duration(0)
	round := func(trip time.Duration) {
		now += trip
		d.measured(now, trip)
	}
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

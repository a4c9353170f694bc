package recovery

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
	d.notified(now + NotifyInterval - 1)
	near("too many", line/2)
	now += NotifyInterval
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
	d.sent(now+1, dcqcnBytes/2)
	now += NotifyInterval
	d.notified(now)
	before = p.rate
	d.sent(now+1, dcqcnBytes/2)
	near("5 MiB before a notification and 5 MiB after it", float64(before))

	// The rate that is measured in a short time may be more than the line carries.
	d = newDCQCN(&p, line)
	d.metered = 2 * line
	d.notified(now)
	near("first notification of a QP that seems faster than the line", line/2)
}

// TestDCQCNSlow: a QP that sends more slowly than the least rate is not slowed down below that.
func TestDCQCNSlow(t *testing.T) {
	var p pacer
	d := newDCQCN(&p, 1e9)
	now := time.Second
	for range 20 { // 100 kB in a second
		d.sent(now, 100)
		now += ms
	}
	d.notified(now)
	for range 2 * dcqcnRecovery {
		if p.rate < dcqcnFloor {
			t.Fatalf("%d bytes in a second, want %v at least", p.rate, dcqcnFloor)
		}
		now += dcqcnTimer
		d.sent(now, 1)
	}
}

// TestDCQCNSlowLine: notifications that go on slow a busy QP down on a slow line as on a fast one, also if there is time for a
// step between two of them. Later it has the line again.
func TestDCQCNSlowLine(t *testing.T) {
	for _, line := range []uint64{12.5e9, 1e9, 125e6, 12.5e6, 5e6} {
		var p pacer
		d := newDCQCN(&p, line)
		now := time.Second
		send := func(during time.Duration) { // as much as allowed
			rate := float64(line)
			if p.rate != 0 {
				rate = float64(p.rate)
			}
			now += during
			d.sent(now, int(rate*during.Seconds()))
		}
		send(ms)
		for range 100 {
			d.notified(now)
			send(2*dcqcnTimer - 1)
		}
		if p.rate == 0 || p.rate > line/3 {
			t.Errorf("a line of %d bytes in a second: %d after 100 notifications (0 is no limit), want a third at most", line, p.rate)
		}
		for range 1000 {
			send(ms)
		}
		if p.rate != 0 {
			t.Errorf("a line of %d bytes in a second: %d long after, want no limit", line, p.rate)
		}
	}
}

// TestDCQCNFar: on a path whose round trips are long a notification halves the window, once in one, and there is no
// rate. A rate from a notification before ends.
func TestDCQCNFar(t *testing.T) {
	for _, tt := range []struct {
		rtt      time.Duration
		window   uint64
		unpaced  bool
		describe string
	}{
		{farRTT - 1, MaxWindow, false, "short"},
		{farRTT, MaxWindow / 2, true, "long"},
	} {
		var p pacer
		c := slowStartEnded()
		d := newDCQCN(&p, 1e9)
		d.far = &c
		d.notified(time.Second) // before anything was measured
		c.update(tt.rtt)
		d.notified(2 * time.Second)
		d.notified(2*time.Second + tt.rtt/2)
		if c.window != tt.window || (p.rate == 0) != tt.unpaced {
			t.Errorf("a %s path: the window is %d and the rate %d, want %d, and none: %v", tt.describe, c.window, p.rate, tt.window, tt.unpaced)
		}
	}
}

// TestDCQCNHyper: once both the timer and the byte counter have won back the rate that a notification has cost, the
// rate grows by ten times as much, and by that again in each step more.
func TestDCQCNHyper(t *testing.T) {
	const line = 12.5e9
	var p pacer
	d := newDCQCN(&p, line)
	now := time.Second
	for range 4 { // far from the line
		d.notified(now)
		now += NotifyInterval
	}
	now -= NotifyInterval
	for range dcqcnRecovery {
		now += dcqcnTimer
		d.sent(now, dcqcnBytes) // a step of each
	}
	target, rate := d.target, d.current
	for k := 1; k <= 3; k++ {
		now += dcqcnTimer
		d.sent(now, dcqcnBytes)
		target += dcqcnAdditive // the bytes are ahead
		if k > 1 {
			target += (10*float64(k-1) - 1) * dcqcnAdditive
		}
		rate = (rate + target) / 2
		target += 10 * float64(k) * dcqcnAdditive
		rate = (rate + target) / 2
		if math.Abs(d.target-target) > 1 || math.Abs(d.current-rate) > 1 {
			t.Errorf("step %d of both: a rate of %.0f for %.0f, want %.0f for %.0f", k, d.current, d.target, rate, target)
		}
	}
}

// TestDCQCNFloor: a flood of notifications takes the rate to its floor at most, from which it recovers within some
// dozen milliseconds. A program that sends slowly is slowed down from there.
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

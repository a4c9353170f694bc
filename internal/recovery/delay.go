package recovery

import (
	"math"
	"time"
)

// The parameters of delayControl. Those of the algorithm are Swift's: Kumar et al., Swift: Delay is Simple and Effective for
// Congestion Control in the Datacenter, SIGCOMM 2020. The times are ours: hosts take longer than cards, and not always
// equally long.
const (
	swiftStart  = 8   // packets: the window before the first round trip
	swiftBeta   = 0.8 // how much of the excess over the target counts
	swiftMaxCut = 0.5 // of the window, in a round trip
	swiftGrowth = 1.0 // packets in a round trip

	// A window of less than swiftKnee packets grows by so much less, but by swiftSlow at least. Else many small ones
	// together grow by more in a round trip than the queue has room for.
	swiftKnee = 16
	swiftSlow = 0.25

	// A window of few packets has a longer target, so that a QP among many gets its part.
	swiftRange    = 200 * time.Microsecond
	swiftMostFlow = 100.0 // packets: from here on the target is not longer
	swiftLeast    = 0.05  // packets: the least window
	swiftLeastFor = 0.1   // packets: up to here the target is longer by swiftRange

	// An RTT may be longer than the shortest by swiftQueue, or by a swiftPart of the shortest.
	swiftQueue = 30 * time.Microsecond
	swiftPart  = 4

	// RTTs that vary by more than swiftCalm tell of busy hosts rather than of a queue. Then they may be longer by swiftVary
	// times the rest.
	swiftCalm = 200 * time.Microsecond
	swiftVary = 4

	// Beside TCP, which fills every queue, a QP that yields gets nothing. If the queue is longer than queueTime for
	// swiftYields round trips though the window has shrunk, losses alone narrow the window for the next
	// swiftContends, as they do TCP's.
	swiftYields   = 8
	swiftContends = 512

	// The shortest RTT counts for swiftMemory, and for twice that at most: a path may become longer.
	swiftMemory = 2 * time.Second

	// A drain comes drainEvery after the shortest RTT since the latest, and after drainTrips round trips at
	// least. It waits for drainProbes samples, for drainMost round trips at most.
	drainEvery  = 4 * time.Millisecond
	drainTrips  = 64
	drainProbes = 3
	drainMost   = 4
)

// delayControl is a controller that needs no marks: the RTT says how long the queue of the path is. Of each round trip the
// shortest RTT counts, since hosts are late now and then. The window doubles until that RTT is above the target for the
// first time. From then on the window grows by a packet if the RTT is below the target, and shrinks by how far it is above. A
// window of less than one packet is a pace.
type delayControl struct {
	c    *congestion
	rate *Rate

	window    float64 // packets
	doubles   bool
	least     [2]time.Duration
	leastFrom time.Duration // when the latest part of the memory began
	roundEnds time.Duration
	shortest  time.Duration // of this round trip; 0: there is none
	drain     drain

	yielded int     // round trips in a row with a long queue
	before  float64 // the window when they began
	contend int     // round trips for which losses alone still narrow the window
}

// drain is how a QP finds the path's own length while it and others keep a queue. Its window is one packet until the packets
// in flight have arrived, and for a few samples more. One QP alone makes no queue empty; all together do. They meet without
// a word: the next drain is due a fixed time after the shortest RTT. The queue was shortest then, and that is the same moment
// for all that share it.
type drain struct {
	low   time.Duration // the shortest RTT since the latest drain began; 0: there is none
	at    time.Duration // when the next is due
	from  time.Duration // when this one began
	until time.Duration // when the drain ends at the latest
	wants int           // samples that are still to come; 0: there is no drain
}

func newDelayControl(c *congestion, r *Rate) *delayControl {
	c.allow(swiftStart)
	return &delayControl{c: c, rate: r, window: swiftStart, doubles: true, before: swiftStart}
}

func (d *delayControl) notified(now time.Duration)  { d.c.notified(now) }
func (d *delayControl) sent(_ time.Duration, _ int) {}

func (d *delayControl) measured(now, rtt time.Duration) {
	if now-d.leastFrom >= swiftMemory {
		d.least[1], d.least[0], d.leastFrom = d.least[0], 0, now
	}
	for _, l := range []*time.Duration{&d.least[0], &d.shortest} {
		if *l == 0 || rtt < *l {
			*l = rtt
		}
	}
	if x := &d.drain; x.low == 0 || rtt < x.low {
		x.low, x.at = rtt, now+d.pause()
	}
	switch {
	case d.contend > 0:
		d.contends(now, rtt)
	case d.drain.wants > 0:
		d.drains(now, rtt)
	case now >= d.drain.at:
		d.startDrain(now, rtt)
	case now < d.roundEnds:
		d.roundEnds = min(d.roundEnds, now+rtt)
	default:
		d.round(now, d.shortest)
		d.shortest, d.roundEnds = 0, now+rtt
	}
}

// round ends a round trip, of which rtt is the shortest sample.
func (d *delayControl) round(now, rtt time.Duration) {
	if rtt <= d.base()+queueTime {
		d.yielded, d.before = 0, d.window
	} else if d.yielded++; d.yielded == swiftYields {
		d.startContending()
		return
	}
	target := d.target()
	late := float64(rtt-target) / float64(rtt)
	ends := d.doubles && late > 0
	switch {
	case late > 0:
		d.window *= max(1-swiftBeta*late, 1-swiftMaxCut)
	case d.doubles:
		d.window *= 2
	default:
		d.window += swiftGrowth * min(1, max(swiftSlow, d.window/swiftKnee))
	}
	d.window = min(max(d.window, swiftLeast), MaxWindow)
	d.apply(rtt)
	if ends { // packets until here may have been in a queue
		d.doubles = false
		d.startDrain(now, rtt)
	}
}

// startContending leaves the window to losses. It begins with the window from before all the yielding.
func (d *delayControl) startContending() {
	d.yielded, d.contend, d.doubles = 0, swiftContends, false
	d.c.bound(max(uint64(d.before), LossWindow))
	d.c.allow(FarWindow)
	d.rate.setRate(0)
}

// contends counts the round trips for which the window is left to losses.
func (d *delayControl) contends(now, rtt time.Duration) {
	if now < d.roundEnds {
		d.roundEnds = min(d.roundEnds, now+rtt)
		return
	}
	d.shortest, d.roundEnds = 0, now+rtt
	if d.contend--; d.contend == 0 { // another try
		d.window = float64(d.c.window)
		d.drain = drain{at: now + d.pause()}
	}
}

// apply makes the window hold, for an RTT.
func (d *delayControl) apply(rtt time.Duration) {
	d.c.allow(max(1, uint64(d.window)))
	rate := uint64(0)
	if d.window < 1 {
		rate = max(1, uint64(d.window*float64(d.rate.mtu)/rtt.Seconds())) // 0 were none
	}
	d.rate.setRate(rate)
}

// startDrain begins a drain if there is a queue. A window of less than a packet cannot be drained.
func (d *delayControl) startDrain(now, rtt time.Duration) {
	d.drain = drain{at: now + d.pause()}
	if base := d.base(); rtt <= base+base/8 || d.window < 1 {
		return
	}
	d.drain.from, d.drain.until, d.drain.wants = now, now+drainMost*rtt, drainProbes
	d.c.allow(1)
}

// drains takes a sample during a drain, and ends the drain after the last.
func (d *delayControl) drains(now, rtt time.Duration) {
	x := &d.drain
	if now-rtt >= x.from {
		x.wants--
	}
	if x.wants > 0 && now < x.until {
		return
	}
	x.wants, x.at = 0, now+d.pause()
	d.apply(rtt)
	d.shortest, d.roundEnds = 0, now+rtt
}

// pause is the time from one drain to the next. QPs whose RTTs differ a little have the same pause, so that they stay
// together.
func (d *delayControl) pause() time.Duration {
	p := drainEvery
	for p < drainTrips*d.base() {
		p *= 2
	}
	return p
}

// base is the shortest RTT that is remembered.
func (d *delayControl) base() time.Duration {
	if d.least[1] != 0 {
		return min(d.least[0], d.least[1])
	}
	return d.least[0]
}

// target is how long an RTT may be.
func (d *delayControl) target() time.Duration {
	base := d.base()
	const most, few = 1 / 10.0, 3.1622776601683795 // 1/sqrt of swiftMostFlow, and of swiftLeastFor
	part := (1/math.Sqrt(d.window) - most) / (few - most)
	queue := max(swiftQueue, base/swiftPart, swiftVary*(d.c.rttvar-swiftCalm))
	return base + queue + time.Duration(min(max(part, 0), 1)*float64(swiftRange))
}

package transport

import (
	"math"
	"time"
)

// The parameters of the controller by delay. Those of the algorithm are Swift's: Kumar et al., Swift: Delay is
// Simple and Effective for Congestion Control in the Datacenter, SIGCOMM 2020. The times are ours: hosts take
// longer than cards, and not always equally long.
const (
	swiftBeta   = 0.8 // how much of what is too long counts
	swiftMaxCut = 0.5 // of the window, in a round trip
	swiftGrowth = 1.0 // packets in a round trip

	// A window of few packets has a longer target, so that a QP among many gets its part.
	swiftRange    = 4 * swiftQueue
	swiftMostFlow = 100.0 // packets: from here on there is none of that
	swiftLeast    = 0.05  // packets: the least window
	swiftLeastFor = 0.1   // packets: up to here there is all of that

	// A round trip may be longer than the shortest by swiftQueue, or by a swiftPart of it.
	swiftQueue = 50 * time.Microsecond
	swiftPart  = 4

	// Beside TCP, which fills every queue, who yields gets nothing. If the queue is longer than queueTime for
	// swiftYields round trips though the window has shrunk, losses alone narrow the window for the next
	// swiftContends, as they do TCP's.
	swiftYields   = 8
	swiftContends = 512

	// swiftMemory is for how long the shortest round trip counts, twice that at most: a path may become
	// longer.
	swiftMemory = 5 * time.Second
)

// delayControl is a controller that needs no marks: the round trip says how long the queue on the way is. In each
// round trip the shortest counts, since hosts are late now and then. The window grows by a packet if that is
// below the target, and shrinks by how far it is above. A window of less than one packet is a pace.
type delayControl struct {
	c    *congestion
	pace *pacer
	mtu  *uint32

	window    float64 // packets
	least     [2]time.Duration
	leastFrom time.Duration // when the latest part of the memory began
	roundEnds time.Duration
	shortest  time.Duration // of this round trip; 0: there is none

	yielded int     // round trips in a row with a long queue
	before  float64 // the window when they began
	contend int     // round trips for which losses alone still narrow the window
}

func newDelayControl(c *congestion, p *pacer, mtu *uint32) *delayControl {
	return &delayControl{c: c, pace: p, mtu: mtu, window: maxWindow, before: maxWindow}
}

func (d *delayControl) notified(now time.Duration)  { d.c.notified(now) }
func (d *delayControl) sent(_ time.Duration, _ int) {}

func (d *delayControl) measured(now, trip time.Duration) {
	trip = max(trip, 1)
	if now-d.leastFrom >= swiftMemory {
		d.least[1], d.least[0], d.leastFrom = d.least[0], 0, now
	}
	for _, l := range []*time.Duration{&d.least[0], &d.shortest} {
		if *l == 0 || trip < *l {
			*l = trip
		}
	}
	if now < d.roundEnds {
		d.roundEnds = min(d.roundEnds, now+trip)
		return
	}
	d.round(d.shortest)
	d.shortest, d.roundEnds = 0, now+trip
}

// round ends a round trip, of which the shortest measurement is trip.
func (d *delayControl) round(trip time.Duration) {
	if d.contend > 0 {
		if d.contend--; d.contend == 0 {
			d.window = float64(d.c.window) // for another try
		}
		return
	}
	if trip <= d.leastTrip()+queueTime {
		d.yielded, d.before = 0, d.window
	} else if d.yielded++; d.yielded == swiftYields {
		d.contendFor(swiftContends)
		return
	}
	if target := d.target(); trip <= target {
		d.window += swiftGrowth
	} else {
		late := float64(trip-target) / float64(trip)
		d.window *= max(1-swiftBeta*late, 1-swiftMaxCut)
	}
	d.window = min(max(d.window, swiftLeast), maxWindow)
	d.c.narrowed = max(1, uint64(d.window))
	rate := uint64(0)
	if d.window < 1 {
		rate = uint64(d.window * float64(*d.mtu) / trip.Seconds())
	}
	d.pace.setRate(rate)
}

// leastTrip is the shortest round trip that counts.
func (d *delayControl) leastTrip() time.Duration {
	if d.least[1] != 0 {
		return min(d.least[0], d.least[1])
	}
	return d.least[0]
}

// contendFor leaves the window to losses for some round trips: it begins at what it was before all the yielding.
func (d *delayControl) contendFor(trips int) {
	d.yielded, d.contend = 0, trips
	d.c.window = min(d.c.window, max(uint64(d.before), lossWindow))
	d.c.threshold = min(d.c.threshold, d.c.window)
	d.c.narrowed = maxWindow
	d.pace.setRate(0)
}

// target is how long a round trip may be.
func (d *delayControl) target() time.Duration {
	least := d.leastTrip()
	const most, few = 1 / 10.0, 3.1622776601683795 // 1/sqrt of swiftMostFlow, and of swiftLeastFor
	part := (1/math.Sqrt(d.window) - most) / (few - most)
	return least + max(swiftQueue, least/swiftPart) + time.Duration(min(max(part, 0), 1)*float64(swiftRange))
}

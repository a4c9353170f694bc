package transport

import (
	"math"
	"time"
)

// A peer that goes back drops all that comes behind a packet it misses. If a packet leaves for each one that is
// acknowledged, that is a window. If the next window leaves when the one before it is acknowledged whole, it is half of
// one at the mean. So a burst may be twice as long as a window that slides, for the same repeats.
//
// A host that handles together what comes at once needs less time for a packet of a burst. On the other hand nothing is
// under way for a round trip between two bursts. Which of both counts for more shows when both are tried: what a packet
// takes is the round trip by the packets that are under way.
//
// The loss of a burst's last packet shows by a probe only. So where losses are frequent, the window slides.
type bursts struct {
	took, otherTook uint32 // how many nanoseconds a packet takes, smoothed, and took when on was the opposite; 0 while unknown
	on              bool   // the next window leaves when the one before it is acknowledged whole
	left            uint8  // how many more packets the present burst takes
	gap             uint8  // packets from one loss to the next, smoothed; 0 while unknown
	losses          uint8  // since on has changed
}

// missed takes note of a loss, which came n packets after the one before it.
func (b *bursts) missed(n uint64) {
	n = min(n, math.MaxUint8)
	if b.gap != 0 {
		n = (3*uint64(b.gap) + n) / 4
	}
	b.gap = uint8(max(n, 1))
}

// choose decides at a loss whether bursts are to come. suits says that the path holds so little that they may pay, and
// took is how long a packet has taken.
func (b *bursts) choose(suits bool, took time.Duration) {
	if !suits || b.gap < burstGap {
		if b.on {
			b.turn(false, b.took)
		}
		return
	}
	b.otherTook -= b.otherTook / burstForgets
	if b.losses++; b.losses <= burstTrial { // round trips are still those from before
		return
	}
	n := uint64(b.losses - burstTrial)
	b.losses = min(b.losses, burstTrial+burstMemory-1)
	t := uint64(min(took, math.MaxUint32/2))
	if n > 1 {
		t = min(t, 2*uint64(b.took)) // a hiccup counts as twice the usual
	}
	b.took = uint32(((n-1)*uint64(b.took) + t) / n)
	if n >= burstTrial && b.took >= b.otherTook {
		b.turn(!b.on, b.took)
	}
}

// turn begins bursts, or ends them. took is how long a packet took until now.
func (b *bursts) turn(on bool, took uint32) { b.on, b.took, b.otherTook, b.losses = on, 0, took, 0 }

// chooseBursts decides, at a loss that makes us go back from seq, whether bursts are to come, and reports it.
func (r *recovery) chooseBursts(seq uint64) bool {
	if r.repeatedFrom != 0 && r.repeatedFrom <= seq {
		r.bursts.missed(seq + 1 - r.repeatedFrom)
	}
	if !r.full() {
		r.bursts.choose(false, 0)
		return r.bursts.on
	}
	under, most := max(r.limit(), 1), uint64(burstPath)
	if r.bursts.on {
		under, most = min(under, burstWindow), burstPath+1
	}
	r.bursts.choose(r.pathHolds(under) <= most, r.roundTrip/time.Duration(under))
	return r.bursts.on
}

// inBurst reports whether the present burst takes the next packet. If nothing is under way, the next burst begins,
// unless the window has grown meanwhile to where losses must be rare. What is repeated goes in any case.
func (r *recovery) inBurst() bool {
	if r.flying() == 0 {
		r.bursts.left = uint8(min(r.limit(), burstWindow))
		if r.window >= burstEnds {
			r.bursts.turn(false, r.bursts.took)
		}
	}
	return r.bursts.left > 0 || r.nxt < r.max
}

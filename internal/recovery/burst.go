package recovery

import (
	"math"
	"time"
)

// bursts decides whether packets go in bursts. A peer that goes back drops all packets behind one that it misses. If a
// packet leaves for each one that is acknowledged, a loss costs a window of repeats. If the next window leaves when the one
// before it is acknowledged whole, a loss costs half of a window at the mean. So a burst may be twice as long as a window
// that slides, for the same repeats.
//
// A host that handles packets together which come at once needs less time for a packet of a burst. On the other hand nothing is in
// flight for a round trip between two bursts. A trial of both shows which counts for more: the time of a packet is the RTT
// by the packets in flight. docs/LOSS.md has the figures.
//
// The loss of a burst's last packet shows by a probe only. So where losses are frequent, the window slides.
type bursts struct {
	took, otherTook uint32 // nanoseconds of a packet, smoothed, as things are, and with on the opposite; 0 while unknown
	on              bool   // the next window leaves when the one before it is acknowledged whole
	left            uint8  // how many more packets the present burst takes
	gap             uint8  // packets from one loss to the next, smoothed; 0 while unknown
	losses          uint8  // since on has changed
}

// missed notes a loss, n packets after the one before it.
func (b *bursts) missed(n uint64) {
	n = min(n, math.MaxUint8)
	if b.gap != 0 {
		n = (3*uint64(b.gap) + n) / 4
	}
	b.gap = uint8(max(n, 1))
}

// choose decides at a loss whether bursts are to come. suits says that the path holds so little that they may pay, and took
// is the time of a packet.
func (b *bursts) choose(suits bool, took time.Duration) {
	if !suits || b.gap < burstGap {
		if b.on {
			b.turn(false, b.took)
		}
		return
	}
	b.otherTook -= b.otherTook / burstForgets
	if b.losses++; b.losses <= burstTrial { // RTTs are still those from before
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

// turn begins bursts, or ends them. took is the time of a packet until now.
func (b *bursts) turn(on bool, took uint32) { b.on, b.took, b.otherTook, b.losses = on, 0, took, 0 }

// stop ends bursts, and keeps the times that were measured.
func (b *bursts) stop() { b.on = false }

// begin begins a burst of n packets.
func (b *bursts) begin(n uint64) { b.left = uint8(n) }

// sent notes that a packet of the burst leaves.
func (b *bursts) sent() {
	if b.left > 0 {
		b.left--
	}
}

// chooseBursts decides, at a loss that makes us go back from seq, whether bursts are to come, and reports the choice.
func (s *State) chooseBursts(seq uint64) bool {
	if s.repeatedFrom != 0 && s.repeatedFrom <= seq {
		s.bursts.missed(seq + 1 - s.repeatedFrom)
	}
	if !s.isOverfull() {
		s.bursts.choose(false, 0)
		return s.bursts.on
	}
	under, most := max(s.Limit(), 1), uint64(burstPath)
	if s.bursts.on {
		under, most = min(under, BurstWindow), burstPath+1
	}
	s.bursts.choose(s.bdp(under) <= most, s.srtt/time.Duration(under))
	return s.bursts.on
}

// Bursts reports whether packets go in bursts.
func (s *State) Bursts() bool { return s.bursts.on }

// BurstLimit is the limit for a packet of data, while packets go in bursts. A burst goes whole: its last packet alone asks
// for an acknowledgement. If nothing is in flight, the next burst begins, unless the window has grown to where losses must
// be rare. ok is false if the next packet must wait for the next burst. Repeats go in any case.
func (s *State) BurstLimit(limit uint64) (most uint64, ok bool) {
	inFlight := s.InFlight()
	if inFlight == 0 {
		s.bursts.begin(min(s.Limit(), BurstWindow))
		if s.window >= BurstEnds {
			s.bursts.turn(false, s.bursts.took)
		}
	}
	return max(limit, inFlight+uint64(s.bursts.left)), s.bursts.left > 0 || s.nxt < s.max
}

// EndsBurst reports whether the next packet is the last of a burst. ok is false if the packet is in no burst.
func (s *State) EndsBurst() (ends, ok bool) {
	return s.bursts.left == 1, s.bursts.on && s.bursts.left > 0
}

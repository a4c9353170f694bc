package recovery

import "time"

// reordering detects losses by packets that were sent later and have arrived, as RACK (RFC 8985) does for TCP. A packet
// that others have overtaken is lost or late. Time tells: the latest packet that has arrived shows the present RTT, and the
// reorder window is added. So a network of one path is repaired in a round trip, and in a network of several paths
// nothing is repeated that is only late.
//
// This end learns in two ways which packets behind a gap have arrived. READ responses come here, and those of any peer may
// come in any order. All else the peer must tell, by selective acknowledgements (SACK), which our own peers send.
type reordering struct {
	sacks      bool // the peer acknowledges selectively
	latestHeld bool // latest is a request that the peer holds

	latest    uint64        // of the packets that have arrived, the one that was sent last: the highest sequence number
	latestAt  time.Duration // when latest was sent; -1 before
	latestRTT time.Duration // its RTT

	lossTimer time.Duration // when a packet that was overtaken counts as lost; Never when there is none
	lost      []Range       // the result of DetectLost
}

// Range is the sequence numbers [From, To).
type Range struct{ From, To uint64 }

// PeerSACKs notes that the peer acknowledges selectively.
func (o *reordering) PeerSACKs() { o.sacks = true }

// SACKs reports whether the peer has acknowledged selectively.
func (o *reordering) SACKs() bool { return o.sacks }

// isLatest reports whether packet seq, which was sent at a time, was sent later than all that have arrived.
func (o *reordering) isLatest(at time.Duration, seq uint64) bool {
	return at > o.latestAt || at == o.latestAt && seq > o.latest
}

// setLatest makes packet seq the latest that has arrived. held says that the peer holds it.
func (o *reordering) setLatest(now, at time.Duration, seq uint64, held bool) {
	o.latest, o.latestAt, o.latestRTT, o.latestHeld = seq, at, rttSince(now, at), held
}

// dueAt makes the loss timer come at a time, or earlier.
func (o *reordering) dueAt(t time.Duration) { o.lossTimer = min(o.lossTimer, t) }

// Arrived notes that the packets of [from, to) that are in flight have arrived, and that some before them have not.
func (s *State) Arrived(now time.Duration, from, to uint64) {
	if from < to {
		s.delivered(now, from, to, true)
		s.arrive(from, to)
	}
}

// Overtook notes that an answer to packet seq has come before answers that are due earlier.
func (s *State) Overtook(now time.Duration, seq uint64) { s.delivered(now, seq, seq+1, false) }

// delivered finds the latest of the packets in [from, to), which arrive, and how late the others are. If measures says
// that each of them has arrived now, they are RTT samples.
func (s *State) delivered(now time.Duration, from, to uint64, measures bool) {
	sample := time.Duration(-1)
	for i := s.index(from); i < len(s.ranges) && s.begin(i) < to; i++ {
		x, begin := &s.ranges[i], max(from, s.begin(i))
		if x.arrived {
			continue
		}
		rtt := rttSince(now, x.at)
		if x.lost || x.repeated && rtt < s.leastRepeatRTT() { // the first copy has arrived
			s.spuriousLoss(now, begin)
			continue
		}
		if x.repeated && (!s.known && x.path == responsePath || rtt < s.shortestRepeatRTT(x.at)) { // perhaps the first copy
			continue
		}
		// Packets that one acknowledgement tells of are not late. Between paths that differ one packet is always late.
		if !x.repeated && s.paths == nil && s.latestAt+s.latestRTT < now {
			if at, ok := s.expectedAt(x, begin); ok {
				if s.sackPermitted {
					s.reorder.widen(now, now-at, s.srtt)
				}
				if !s.isProbing() {
					sample = rtt
				}
			}
		}
		last := min(x.end, to) - 1
		if s.paths != nil {
			s.paths.arrived(now, x.path, x.at, last+1-begin, last)
		}
		if s.isLatest(x.at, last) {
			s.setLatest(now, x.at, last, false)
			if !x.repeated && !s.isProbing() {
				sample = rtt
			}
		}
	}
	if sample >= 0 && measures {
		s.sampleRTT(now, sample)
	}
}

// leastRepeatRTT is an RTT that no repeat is below. The acknowledgements of a peer that sends SACKs may all have come late,
// the earliest too.
func (s *State) leastRepeatRTT() time.Duration {
	if s.sackPermitted {
		return s.minRTT / 2
	}
	return s.minRTT
}

// shortestRepeatRTT is the least RTT of a repeat that was sent at a time. A probe goes alone, after a silence in which queues
// become empty: it may be a little faster than all packets before it.
func (s *State) shortestRepeatRTT(at time.Duration) time.Duration {
	if s.wasProbeAt(at) {
		return s.minRTT - s.minRTT/8
	}
	return s.minRTT
}

// DetectLost makes packets due to be sent again that were overtaken for long enough, and returns them. The slice holds
// until the next call.
func (s *State) DetectLost(now time.Duration) []Range {
	s.lossTimer, s.reordering.lost = Never, s.reordering.lost[:0]
	if s.latestAt < 0 {
		return nil
	}
	s.reorder.decay(now, s.srtt)
	limit := s.max
	if !s.sacks {
		limit = max(s.executed, s.heardTo) // only a NAK tells of packets behind
	}
	begin, behind := s.una, false
	for i := range s.ranges {
		x, from := &s.ranges[i], begin
		if begin = x.end; from >= limit {
			break
		}
		if x.arrived {
			continue
		}
		if x.path == responsePath && s.awaits(from) { // of several requests that wait, only the first can be judged
			if x.held || behind && !s.latestHeld {
				continue
			}
			behind = true
		}
		if x.lost {
			continue
		}
		at, ok := s.expectedAt(x, from)
		switch {
		case !ok:
			continue
		case at+s.reorder.size > now:
			s.dueAt(at + s.reorder.size)
			continue
		}
		s.declare(from, x.end, at, s.reorder.size)
		s.loseRange(i)
		if s.paths != nil {
			s.paths.missed(now, s.srtt, x.path, from, x.end)
		}
		s.reordering.lost = append(s.reordering.lost, Range{from, x.end})
	}
	if len(s.reordering.lost) > 0 {
		s.wentBack = false
		s.bursts.stop()
		s.findNext()
	}
	return s.reordering.lost
}

// expectedAt reports whether [from, x.end) was overtaken, and when it should have arrived by the RTT of the first packet
// that has overtaken it. Later ones may take less, while a queue becomes shorter.
func (s *State) expectedAt(x *sentRange, from uint64) (at time.Duration, ok bool) {
	if s.paths != nil {
		return s.paths.expectedAt(s, x, from)
	}
	if x.at > s.latestAt || x.at == s.latestAt && from >= s.latest {
		return 0, false
	}
	if x.expected == 0 {
		x.expect(x.at + s.latestRTT)
	}
	return x.expected, true
}

// NoteLost notes that DetectLost has found so many ranges, which count as n packets.
func (s *State) NoteLost(now time.Duration, n uint64, ranges int) {
	before := s.before(0)
	s.remembers().delay.lost(now)
	if s.onLosses(now, n) {
		s.ring.narrowed(before, min(ranges, maxDeclared))
	}
}

package transport

import "time"

// A packet that others have overtaken is lost or late. Which of the two, time tells: the latest packet that
// has arrived shows how long the way and back take now, and some patience is added. There is none at first.
// Each packet that was sent again in vain makes for more, up to a round trip, and calm for less. So a network
// of one path is repaired in a round trip, and one of several is not repaired where nothing is broken. RACK
// (RFC 8985) does the same for TCP.
//
// What the peer has beyond a gap is known in two ways. READ responses come to us, and every peer's may come in
// any order. Of all else the peer tells, if it is one like us.
type overtaken struct {
	selective bool // the peer acknowledges ranges

	latest     uint64        // of what has arrived, what was sent last: the highest sequence number
	latestAt   time.Duration // when it was sent; -1 before
	latestTrip time.Duration // and how long it took
	patience   time.Duration
	patientAt  time.Duration // when patience changed
	due        time.Duration // when a packet that was overtaken is lost; Never when there is none

	executed uint64 // the peer has executed everything before, though responses may be missing
	heardTo  uint64 // responses have come up to here

	repeatedAt time.Duration // when something was sent again; Never before
	fresh      []seqRange    // what overtook has found
	suspect    seqRange      // the latest of these
}

// seqRange is [from, to).
type seqRange struct{ from, to uint64 }

// arrivals takes note that the part of [from, to) that is on its way has arrived, though not all before it.
func (r *recovery) arrivals(now time.Duration, from, to uint64) {
	r.delivered(now, from, to)
	r.arrive(from, to)
}

// delivered finds the latest of what arrives in [from, to), and measures the round trip by it.
func (r *recovery) delivered(now time.Duration, from, to uint64) {
	measure := time.Duration(-1)
	for i := r.index(from); i < len(r.ranges) && r.begin(i) < to; i++ {
		x := &r.ranges[i]
		if x.arrived || x.lost || x.repeated && now-x.at < r.shortest(x.at) { // then it is not the repeat that has arrived
			continue
		}
		last := min(x.end, to) - 1
		if r.spread != nil {
			r.spread.arrived(now, x.path, x.at, last+1-max(from, r.begin(i)), last)
		}
		if x.at > r.latestAt || x.at == r.latestAt && last > r.latest {
			r.latest, r.latestAt, r.latestTrip = last, x.at, now-x.at
			if !x.repeated && r.sampled.to == 0 {
				measure = now - x.at
			}
		}
	}
	if measure >= 0 && r.selective {
		r.took(now, measure)
	}
}

// shortest is how long what was sent again at a time takes at least. A probe goes alone, after a silence in which
// queues become empty: it may be a little faster than all before.
func (r *recovery) shortest(at time.Duration) time.Duration {
	if r.sampled.to != 0 && at == r.sampled.at {
		return r.leastTrip - r.leastTrip/8
	}
	return r.leastTrip
}

// overtook makes due to be sent again what was overtaken for long enough, and returns it. The slice holds
// until the next call.
func (r *recovery) overtook(now time.Duration) []seqRange {
	r.due, r.fresh = Never, r.fresh[:0]
	if r.latestAt < 0 {
		return nil
	}
	if r.patience > 0 && now-r.patientAt > calmTrips*r.roundTrip {
		r.patience, r.patientAt = r.patience/2, now
	}
	limit := r.max
	if !r.selective {
		limit = max(r.executed, r.heardTo) // of what is behind, only a NAK tells
	}
	begin := r.una
	for i := range r.ranges {
		x, from := &r.ranges[i], begin
		if begin = x.end; from >= limit {
			break
		}
		if x.arrived || x.lost {
			continue
		}
		at, ok := x.at+r.latestTrip+r.patience, x.at < r.latestAt || x.at == r.latestAt && from < r.latest
		if r.spread != nil {
			at, ok = r.spread.overtaken(r, x, from)
		}
		switch {
		case !ok:
			continue
		case at > now:
			r.due = min(r.due, at)
			continue
		}
		x.lost = true
		if r.spread != nil {
			r.spread.missed(now, r, x.path, from, x.end)
		}
		r.fresh = append(r.fresh, seqRange{from, x.end})
	}
	if n := len(r.fresh); n > 0 {
		r.suspect = r.fresh[n-1]
		r.nxt = r.firstLost()
	}
	return r.fresh
}

// repeats reports whether something was sent again not long ago.
func (r *recovery) repeats(now time.Duration) bool {
	return r.repeatedAt != Never && now-r.repeatedAt < 2*r.roundTrip+r.patience
}

// wasLate reports whether seq, which arrives now, was taken for lost and is too early to be a repeat.
func (r *recovery) wasLate(now time.Duration, seq uint64) bool {
	if seq < r.suspect.from || seq >= r.suspect.to {
		return false
	}
	i := r.index(seq)
	return i < len(r.ranges) && (r.ranges[i].lost || r.ranges[i].repeated && now-r.ranges[i].at < r.leastTrip)
}

// inVain takes note that a packet was sent again and had arrived.
func (r *recovery) inVain(now time.Duration) {
	r.patience = min(r.patience+max(r.leastTrip/4, 1), 2*r.roundTrip)
	r.patientAt = now
	r.regain()
}

// held takes note that the peer has the request for [from, to) and will answer it in its turn. It is as if it
// were sent now. Where a part of the answer has come, that is old news.
func (r *recovery) held(now time.Duration, from, to uint64) {
	if from < r.una || to > r.max {
		return
	}
	for i := r.index(from); i < len(r.ranges) && r.begin(i) < to; i++ {
		if r.ranges[i].arrived {
			return
		}
	}
	r.set(from, to, sentRange{at: now, repeated: true, path: responsePath})
	r.nxt = r.firstLost()
}

// lostRun returns how many packets from nxt on are lost together.
func (r *recovery) lostRun() uint64 { return r.ranges[r.index(r.nxt)].end - r.nxt }

package transport

import "time"

// A packet that others have overtaken is lost or late. Which of the two, time tells: the latest packet that
// has arrived shows how long the way and back take now, and some patience is added. There is none at first.
// A packet that was overtaken and arrives nevertheless shows how much it takes, and so much there is, up to two
// round trips, as long as such packets come. So a network of one path is repaired in a round trip, and one of
// several is not repaired where nothing is broken. RACK (RFC 8985) does something like it for TCP.
//
// A peer answers READs and atomics in their order. So behind a request that it lacks it has the others, and says
// so, but cannot answer them. They count as sent when that one was sent again.
//
// What the peer has beyond a gap is known in two ways. READ responses come to us, and every peer's may come in
// any order. Of all else the peer tells, if it is one like us.
type overtaken struct {
	selective  bool // the peer acknowledges ranges
	latestHeld bool // latest is a request that the peer holds
	parks      bool // answers may wait at the peer: see parked

	latest     uint64        // of what has arrived, what was sent last: the highest sequence number
	latestAt   time.Duration // when it was sent; -1 before
	latestTrip time.Duration // and how long it took
	needed     time.Duration // the most patience (see congestion) that a packet has needed since
	since      time.Duration // when patience became what packets had needed before
	due        time.Duration // when a packet that was overtaken counts as lost; Never when there is none

	executed uint64 // the peer has executed everything before, though responses may be missing
	heardTo  uint64 // responses have come up to here
	begun    uint64 // the peer answers the requests before, or has

	fresh []seqRange // what overtook has found
	suspects
}

// seqRange is [from, to).
type seqRange struct{ from, to uint64 }

// tellsRanges takes note that the peer acknowledges ranges, and so repeats selectively.
func (o *overtaken) tellsRanges() { o.selective = true }

// executedTo takes note that the peer has executed everything before seq.
func (o *overtaken) executedTo(seq uint64) { o.executed = max(o.executed, seq) }

// respondedTo takes note that a response has come, and none from seq on.
func (o *overtaken) respondedTo(seq uint64) { o.heardTo = max(o.heardTo, seq) }

// begunTo takes note that the peer answers the requests before seq, or has.
func (o *overtaken) begunTo(seq uint64) { o.begun = max(o.begun, seq) }

// arrivals takes note that the part of [from, to) that is on its way has arrived, though not all before it.
func (r *recovery) arrivals(now time.Duration, from, to uint64) {
	if from < to {
		r.delivered(now, from, to, true)
		r.arrive(from, to)
	}
}

// delivered finds the latest of what arrives in [from, to), and how late the others are. It measures the round trip
// by them if measures says that each of them has arrived now.
func (r *recovery) delivered(now time.Duration, from, to uint64, measures bool) {
	measure := time.Duration(-1)
	for i := r.index(from); i < len(r.ranges) && r.begin(i) < to; i++ {
		x, begin := &r.ranges[i], max(from, r.begin(i))
		if x.arrived {
			continue
		}
		if x.lost || x.repeated && tripSince(now, x.at) < r.tooSoon() { // it was not lost
			r.notLost(now, begin)
			continue
		}
		if x.repeated && (!r.known && x.path == responsePath || tripSince(now, x.at) < r.shortest(x.at)) { // perhaps not either
			continue
		}
		if !x.repeated && r.spread == nil && r.latestAt+r.latestTrip < now { // else one acknowledgement tells of both
			if at, ok := r.overtakenAt(x, begin); ok { // and between paths that differ one is always late
				if *r.ours {
					r.late(now, now-at)
				}
				if !r.samples() {
					measure = tripSince(now, x.at)
				}
			}
		}
		last := min(x.end, to) - 1
		if r.spread != nil {
			r.spread.arrived(now, x.path, x.at, last+1-begin, last)
		}
		if x.at > r.latestAt || x.at == r.latestAt && last > r.latest {
			r.latest, r.latestAt, r.latestTrip, r.latestHeld = last, x.at, tripSince(now, x.at), false
			if !x.repeated && !r.samples() {
				measure = tripSince(now, x.at)
			}
		}
	}
	if measure >= 0 && measures {
		r.took(now, measure)
	}
}

// shortest is the least time that a repeat takes which was sent at a time. A probe goes alone, after a silence in which
// queues become empty: it may be a little faster than all before.
func (r *recovery) shortest(at time.Duration) time.Duration {
	if r.samples() && at == r.asked.sampled.at {
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
	r.calmDown(now)
	limit := r.max
	if !r.selective {
		limit = max(r.executed, r.heardTo) // of what is behind, only a NAK tells
	}
	begin, behind := r.una, false
	for i := range r.ranges {
		x, from := &r.ranges[i], begin
		if begin = x.end; from >= limit {
			break
		}
		if x.arrived {
			continue
		}
		if x.path == responsePath && r.awaits(from) { // only what holds requests tells of more than the first
			if x.held || behind && !r.latestHeld {
				continue
			}
			behind = true
		}
		if x.lost {
			continue
		}
		at, ok := r.overtakenAt(x, from)
		switch {
		case !ok:
			continue
		case at+r.patience > now:
			r.due = min(r.due, at+r.patience)
			continue
		}
		r.suspect(from, x.end, at, r.patience)
		r.loseRange(i)
		if r.spread != nil {
			r.spread.missed(now, r, x.path, from, x.end)
		}
		r.fresh = append(r.fresh, seqRange{from, x.end})
	}
	if n := len(r.fresh); n > 0 {
		r.goesBack, r.bursts.on = false, false
		r.findNext()
	}
	return r.fresh
}

// calmDown has the patience drop, from time to time, to what packets have needed.
func (r *recovery) calmDown(now time.Duration) {
	if r.patience > 0 && now-r.since > calmTrips*r.roundTrip {
		r.patience, r.needed, r.since = r.needed, 0, now
	}
}

// overtakenAt reports whether [from, x.end) was overtaken, and when it should have arrived by what the packet has taken
// that was the first to overtake it. What later ones take may be less, while a queue becomes shorter.
func (r *recovery) overtakenAt(x *sentRange, from uint64) (at time.Duration, ok bool) {
	if r.spread != nil {
		return r.spread.overtaken(r, x, from)
	}
	if x.at > r.latestAt || x.at == r.latestAt && from >= r.latest {
		return 0, false
	}
	if x.expected == 0 {
		x.expected = x.at + r.latestTrip
	}
	return x.expected, true
}

// late takes note that so much patience was needed, and a little is added.
func (r *recovery) late(now, by time.Duration) {
	if by <= 0 {
		return
	}
	by = min(by+by/8, 2*r.roundTrip)
	r.needed = max(r.needed, by)
	if r.patience == 0 {
		r.since = now
	}
	r.patience = max(r.patience, by)
}

// tooSoon is how long no repeat takes. Among the acknowledgements of a peer like us the shortest may have been long.
func (r *recovery) tooSoon() time.Duration {
	if *r.ours {
		return r.leastTrip / 2
	}
	return r.leastTrip
}

// notLost takes note that seq has arrived, which was taken for lost. A peer that goes back answers more than once.
func (r *recovery) notLost(now time.Duration, seq uint64) {
	s := r.find(seq)
	if !*r.ours && s == r.latestSuspect() {
		r.inVain(now, seq)
	}
	if s == nil || !*r.ours {
		return
	}
	r.late(now, now-s.expected)
	r.restore(s)
}

// inVain takes note that seq has come twice. It reports whether that is because it was taken for lost.
func (r *recovery) inVain(now time.Duration, seq uint64) bool {
	s := r.find(seq)
	if s == nil {
		return false
	}
	if !s.counted { // a READ's answer is many packets
		s.counted = true
		r.late(now, s.patience+max(r.leastTrip/4, 1))
	}
	r.restore(s)
	return true
}

// missed takes note that n packets were taken for lost, which the latest suspects stand for.
func (r *recovery) missed(now time.Duration, n uint64, latest int) {
	before := undo{window: r.window, threshold: r.threshold}
	r.memory().slow.lost(now)
	if r.lostSome(now, n) {
		r.ring.narrowed(before, min(latest, maxSuspects))
	}
}

// restore gives the window back what the loss of a suspect has cost, which was none. What waits in the path has
// narrowed it for all that were missed at once, so it is what it was when all of these have come.
func (r *recovery) restore(s *suspect) {
	r.regain()
	if !s.narrowed {
		return
	}
	s.narrowed = false
	if r.ring.missing--; r.ring.missing == 0 {
		r.ring.before.restore(&r.congestion)
		r.lostAt = Never
	}
}

// suspects are the latest ranges that were taken for lost because others had overtaken them.
type suspects struct {
	ring *suspectRing // made with the first
}

type suspectRing struct {
	list [maxSuspects]suspect
	next int

	before  undo // what the window was before the latest suspects that have narrowed it
	missing int  // of those
}

// narrowed takes note that the latest n suspects have narrowed the window.
func (s *suspectRing) narrowed(before undo, n int) {
	for k := range s.list {
		s.list[k].narrowed = false
	}
	for k := range n {
		s.list[(s.next+maxSuspects-1-k)%maxSuspects].narrowed = true
	}
	s.before, s.missing = before, n
}

// suspect is [from, to).
type suspect struct {
	from, to uint64
	expected time.Duration // when it should have arrived
	patience time.Duration // that there was with it
	counted  bool          // as needless, since it was not lost
	narrowed bool          // the window, with others that were missed at once
}

func (s *suspects) suspect(from, to uint64, expected, patience time.Duration) {
	if s.ring == nil {
		s.ring = new(suspectRing)
	}
	s.ring.list[s.ring.next] = suspect{from: from, to: to, expected: expected, patience: patience}
	s.ring.next = (s.ring.next + 1) % maxSuspects
}

// latestSuspect returns the latest, or nil.
func (s *suspects) latestSuspect() *suspect {
	if s.ring == nil {
		return nil
	}
	return &s.ring.list[(s.ring.next+maxSuspects-1)%maxSuspects]
}

// find returns the one that has seq, or nil.
func (s *suspects) find(seq uint64) *suspect {
	if s.ring == nil {
		return nil
	}
	for k := range s.ring.list {
		if x := &s.ring.list[k]; x.from <= seq && seq < x.to {
			return x
		}
	}
	return nil
}

// peerHolds takes note that the peer has the request for [from, to) and will answer it in its turn: behind all that is
// sent before. Where a part of the answer has come, that is old news, and where it was told before.
func (r *recovery) peerHolds(now time.Duration, from, to uint64) {
	if from < r.una || to > r.max {
		return
	}
	i := r.index(from)
	x := &r.ranges[i]
	if x.held {
		return
	}
	for k := i; k < len(r.ranges) && r.begin(k) < to; k++ {
		if r.ranges[k].arrived {
			return
		}
	}
	if !x.lost && !x.repeated && (x.at > r.latestAt || x.at == r.latestAt && from > r.latest) {
		r.latest, r.latestAt, r.latestTrip, r.latestHeld = from, x.at, tripSince(now, x.at), true
	}
	r.set(from, to, sentRange{at: x.at, repeated: true, path: responsePath, held: true})
	r.parks = true
	r.findNext()
}

// postpone takes note that a request before seq is sent again now. The peer answers requests in their order, so
// it is as if those behind it that it has not answered yet were sent now.
func (r *recovery) postpone(now time.Duration, seq uint64) {
	for i := r.index(seq); i < len(r.ranges); i++ {
		if x := &r.ranges[i]; x.path == responsePath && !x.arrived && !x.lost && r.awaits(r.begin(i)) {
			x.at, x.expected, x.repeated = now, 0, true
		}
	}
}

// awaits reports whether the peer has not executed the request for seq yet, as far as one knows.
func (r *recovery) awaits(seq uint64) bool { return seq >= max(r.executed, r.begun) }

// parked returns how many answers wait at the peer for a request before theirs.
func (r *recovery) parked() (n uint64) {
	if !r.parks { // most often
		return 0
	}
	for i := range r.ranges {
		if x := &r.ranges[i]; x.held && !x.arrived && !x.lost && r.awaits(r.begin(i)) {
			n += x.end - r.begin(i)
		}
	}
	r.parks = n > 0
	return n
}

// lostRun returns how many packets from nxt on are lost together.
func (r *recovery) lostRun() uint64 { return r.ranges[r.index(r.nxt)].end - r.nxt }

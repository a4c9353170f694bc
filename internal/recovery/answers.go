package recovery

import "time"

// answers is how far the peer has come with READs and atomics, whose responses have sequence numbers here. A peer answers
// them in their order. So behind a request that the peer lacks, it has later ones, and says so, but cannot answer them. They
// count as sent when the missing request was sent again.
type answers struct {
	executed uint64 // the peer has executed all requests before it, though responses may be missing
	heardTo  uint64 // responses have come up to here
	begun    uint64 // the peer answers the requests before it, or has answered them
	mayPark  bool   // answers may wait at the peer: see Parked
}

// responsePath stands for the path of READ responses and atomics' results.
const responsePath = MaxPaths

// ExecutedTo notes that the peer has executed all requests before seq.
func (a *answers) ExecutedTo(seq uint64) { a.executed = max(a.executed, seq) }

// Executed returns the end of the requests that the peer has executed.
func (a *answers) Executed() uint64 { return a.executed }

// RespondedTo notes that a response has come, and none from seq on.
func (a *answers) RespondedTo(seq uint64) { a.heardTo = max(a.heardTo, seq) }

// HeardTo returns the end of the responses that have come.
func (a *answers) HeardTo() uint64 { return a.heardTo }

// BegunTo notes that the peer answers the requests before seq, or has answered them.
func (a *answers) BegunTo(seq uint64) { a.begun = max(a.begun, seq) }

// parks notes whether answers may wait at the peer.
func (a *answers) parks(may bool) { a.mayPark = may }

// awaits reports whether the peer has not executed the request for seq yet, as far as this end knows.
func (a *answers) awaits(seq uint64) bool { return seq >= max(a.executed, a.begun) }

// PeerHolds notes that the peer has the request for [from, to), and will answer it behind all requests before it. Where a
// part of the answer has come, that is no news.
func (s *State) PeerHolds(now time.Duration, from, to uint64) {
	if from < s.una || to > s.max {
		return
	}
	i := s.index(from)
	x := &s.ranges[i]
	if x.held {
		return
	}
	for k := i; k < len(s.ranges) && s.begin(k) < to; k++ {
		if s.ranges[k].arrived {
			return
		}
	}
	if !x.lost && !x.repeated && s.isLatest(x.at, from) {
		s.setLatest(now, x.at, from, true)
	}
	s.set(from, to, sentRange{at: x.at, repeated: true, path: responsePath, held: true})
	s.parks(true)
	s.findNext()
}

// postpone notes that a request before seq is sent again now. The peer answers requests in their order. So those behind it
// that it has not answered yet count as sent now.
func (s *State) postpone(now time.Duration, seq uint64) {
	for i := s.index(seq); i < len(s.ranges); i++ {
		if x := &s.ranges[i]; x.path == responsePath && !x.arrived && !x.lost && s.awaits(s.begin(i)) {
			x.resent(now)
		}
	}
}

// parked returns how many answers wait at the peer for a request before theirs.
func (s *State) parked() (n uint64) {
	if !s.mayPark { // most often
		return 0
	}
	for i := range s.ranges {
		if x := &s.ranges[i]; x.held && !x.arrived && !x.lost && s.awaits(s.begin(i)) {
			n += x.end - s.begin(i)
		}
	}
	s.parks(n > 0)
	return n
}

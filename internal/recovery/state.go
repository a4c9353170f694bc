package recovery

import "time"

// State is the loss recovery and congestion control of a reliable connection's requester. Its owner asks it for the
// next packet, and tells it of packets that leave and of answers that come. If the peer goes back, all packets from
// the one in a NAK on are sent again. If the peer acknowledges selectively, only the missing ones are.
type State struct {
	rate          *Rate
	retry         Retry
	needless      uint64 // probes: see Counts
	sackPermitted bool   // the peer can acknowledge selectively: it is an adverb
	flight
	congestion
	probing
	reordering
	answers
	declaredLost
	undo   undo
	bursts bursts // while the peer goes back
	paths  *Paths // nil: there is one path

	ackDeadline  time.Duration // when the acknowledge timeout comes; Never when nothing is in flight
	waitUntil    time.Duration // until when nothing may go; Never when packets may
	rnrWait      bool          // the wait is an RNR NAK's: the peer has no receive
	wentBack     bool          // the latest loss makes all packets that were in flight go again
	peerAnswered bool          // the peer has acknowledged something, or told of a gap

	silent     bool  // the latest retry was for an acknowledge timeout
	retries    uint8 // left of Retry.Count
	rnrRetries uint8 // left of Retry.RNRCount

	// repeatedFrom is the sequence number, plus 1, from which a NAK has made us repeat. Further NAKs for that number
	// are no news.
	repeatedFrom uint64
	chargedFrom  uint64 // the sequence number, plus 1, at which a sign of loss has cost a retry
}

// Retry is how long a peer may be silent, or without a receive, before it counts as dead.
type Retry struct {
	Timeout  time.Duration // the acknowledge timeout; 0: there is none, and no probe
	Count    uint8         // acknowledge timeouts and signs of loss in a row (retry_cnt)
	RNRCount uint8         // RNR NAKs in a row (rnr_retry); Forever has no end
}

// Forever is an RNRCount without an end.
const Forever = 7

// Counts are the counters of a State, over all resets.
type Counts struct {
	NeedlessProbes uint64 // probes that were answered though nothing was lost
	PathsLeft      uint64 // how often a path was left that lost more than others
	PathProbes     uint64 // packets that tried paths that were left, or had been idle
}

// Init makes s the state of a QP that sends by rate.
func (s *State) Init(rate *Rate) { s.rate = rate }

// Reset forgets all but the paths' number and Counts.
func (s *State) Reset() { s.reset(FarWindow, false) }

func (s *State) reset(allowed uint64, sackPermitted bool) {
	*s = State{rate: s.rate, needless: s.needless, sackPermitted: sackPermitted, paths: s.paths.fresh(),
		congestion: newCongestion(allowed), ackDeadline: Never, waitUntil: Never, probing: probing{at: Never},
		reordering: reordering{latestAt: -1, lossTimer: Never, lost: s.reordering.lost[:0]}, flight: flight{ranges: s.ranges[:0]}}
}

// Start begins with seq, the first sequence number to send.
func (s *State) Start(seq uint64) {
	s.reset(s.allowed, s.sackPermitted)
	s.flight.start(seq)
}

// SetRetry changes the retries, and starts the timers anew.
func (s *State) SetRetry(now time.Duration, r Retry) {
	s.retry = r
	s.refill()
	s.restartTimers(now)
}

// PermitSACK notes that the peer can acknowledge selectively. It is an adverb, and answers READs for any part.
func (s *State) PermitSACK() { s.sackPermitted = true }

// SetPaths makes the connection have n paths. Fewer than two are one. The Counts of paths begin anew.
func (s *State) SetPaths(n int) {
	if s.paths = nil; n >= 2 {
		s.paths = newPaths(n)
	}
}

// Paths returns the paths, or nil if there is one.
func (s *State) Paths() *Paths { return s.paths }

// Counts returns the counters.
func (s *State) Counts() Counts {
	c := Counts{NeedlessProbes: s.needless}
	if s.paths != nil {
		c.PathsLeft, c.PathProbes = s.paths.lefts, s.paths.probes
	}
	return c
}

// SRTT returns the smoothed RTT, or 0 while it is unknown.
func (s *State) SRTT() time.Duration { return s.srtt }

// rateChanged ends the bounds that the controller before has set to the window and the pace.
func (s *State) rateChanged() {
	s.allow(FarWindow)
	if !s.rnrWait {
		s.waitUntil = Never
	}
}

// refill gives all retries back: there was progress, or Modify changed how many there are.
func (s *State) refill() { s.retries, s.rnrRetries = s.retry.Count, s.retry.RNRCount }

// MayGo reports whether count packets may go now, with limit in flight at most.
func (s *State) MayGo(now time.Duration, count, limit uint64) bool {
	if s.nxt != s.una && (s.nxt+count-s.una > MaxAhead || s.InFlight()+count > limit) {
		return false
	}
	if s.waitUntil == Never && s.rate.IsPausing(now) {
		s.waitUntil = s.rate.hold() // the timer then calls
	}
	return s.waitUntil == Never
}

// IsWaiting reports whether nothing may go before a timer has come.
func (s *State) IsWaiting() bool { return s.waitUntil != Never }

// WaitsForReceiver reports whether nothing may go because the peer has no receive.
func (s *State) WaitsForReceiver() bool { return s.rnrWait }

// Room returns how many packets may be sent beyond those in flight, by the limit, and by how far the first missing one may
// be left behind.
func (s *State) Room(limit, ahead uint64) uint64 {
	return min(limit-min(limit, s.InFlight()), ahead-min(ahead, s.nxt-s.una))
}

// ReadLimit returns how many packets may be in flight with a READ request for count responses. chunk is the most that a
// request asks for. limit is the window's.
func (s *State) ReadLimit(count, chunk, limit uint64) uint64 {
	if s.window >= backWindow && !s.probesRTT() {
		// With a second chunk in flight, as max_rd_atomic permits, the loss of the first one's end does not go unnoticed.
		limit = max(limit, 2*chunk)
	}
	// A chunk that fits in part may go, and more beside answers that wait at the peer: else nothing would show that the
	// request they wait for was lost again. Where packets are reordered, a chunk may go beyond the largest window: a QP
	// that waits for late packets has fewer on the path.
	most := uint64(MaxWindow)
	if s.reorder.size > 0 {
		most += chunk - 1
	}
	if limit >= 2*chunk {
		limit = max(limit, min(limit+count-1+s.parked(), most))
	}
	return limit
}

// Sent notes that the next n packets leave, or that a request leaves for as many responses. It reports whether they were
// sent before.
func (s *State) Sent(now time.Duration, n uint64, responses bool) (repeated bool) {
	path := uint8(0)
	if s.paths != nil {
		path = s.paths.choose(now, s, n, responses)
	} else if responses {
		path = responsePath
	}
	if s.IsProbe() {
		s.memory.sent(now)
	}
	seq := s.nxt
	if repeated = s.send(now, n, path); repeated && responses && s.awaits(seq) {
		s.postpone(now, seq+n)
	}
	if s.ackDeadline == Never { // IBTA C9-139
		s.restartTimers(now)
	}
	s.bursts.sent()
	return repeated
}

// Adopt takes over n packets of the fast path that are in flight. Their acknowledgement is no RTT sample.
func (s *State) Adopt(now time.Duration, n uint64) {
	s.Sent(now, n, false)
	s.repeatedLast()
}

// Skip notes that all packets before seq were acknowledged, and that nothing is in flight.
func (s *State) Skip(seq uint64) {
	s.flight.start(seq)
	s.refill()
}

// Acknowledged notes that all packets before seq have arrived. spurious says that some of them were to be sent again, and
// have arrived without.
func (s *State) Acknowledged(now time.Duration, seq uint64) (spurious bool) {
	n := seq - s.una
	s.peerAnswered = true
	s.reorder.decay(now, s.srtt)
	spurious = seq > s.nxt
	s.delivered(now, s.una, seq, s.sacks)
	if at, ok := s.acknowledge(seq); ok && !s.isProbing() && !s.sacks { // a probe may have asked for it
		s.sampleRTT(now, rttSince(now, at))
	}
	s.grow(n, s.overfullGrowth(seq), s.sackPermitted)
	spurious = spurious && s.revoke()
	s.probeAnswered(now, seq)
	if seq >= s.undo.until {
		s.undo = undo{}
	}
	s.refill()
	s.restartTimers(now)
	return spurious
}

// overfullGrowth is by how many packets the window grows in a round trip, with all packets before seq acknowledged, while
// more is in flight than the path holds.
func (s *State) overfullGrowth(seq uint64) uint64 {
	switch {
	case !s.wentBack:
		return growth
	case seq < s.repeatedFrom+rareLoss:
		return 0
	}
	return 1
}

// sampleRTT takes an RTT sample.
func (s *State) sampleRTT(now, rtt time.Duration) {
	if rtt > MinPTO && rtt > s.pto(MinPTO) {
		s.remembers().delay.learn(now, rtt) // a probe would have been needless
	}
	s.sample(now, rtt)
	s.rate.control.measured(now, rtt)
}

// restartTimers starts the timers of packets in flight anew, or stops them when there are none.
func (s *State) restartTimers(now time.Duration) {
	s.stopTimers()
	if s.retry.Timeout != 0 && s.nxt > s.una {
		s.ackDeadline = now + s.retry.Timeout
		s.backoff = 0
		s.RestartProbe(now)
	}
}

// stopTimers stops the timers of packets in flight.
func (s *State) stopTimers() {
	s.ackDeadline = Never
	s.stopProbing()
}

// NextTimeout returns when the next timer is due, or Never.
func (s *State) NextTimeout() time.Duration {
	return min(s.ackDeadline, s.waitUntil, s.probing.at, s.lossTimer)
}

// LossDue reports whether it is time for DetectLost.
func (s *State) LossDue(now time.Duration) bool { return now >= s.lossTimer }

// EndWait ends a wait whose time has come.
func (s *State) EndWait(now time.Duration) {
	if now < s.waitUntil {
		return
	}
	s.waitUntil = Never
	if s.rnrWait {
		s.rnrWait = false
		s.restartTimers(now)
	}
}

// FirstSign reports whether a NAK for seq is the first sign of this loss.
func (s *State) FirstSign(now time.Duration, seq uint64) bool {
	if s.repeatedFrom == seq+1 {
		return false
	}
	s.noteLoss()
	s.remembers().delay.lost(now)
	s.wentBack = !s.sacks
	switch {
	case !s.wentBack:
		s.onLoss()
	case s.chooseBursts(seq):
		s.narrow(BurstWindow)
	default:
		s.onGoBack()
	}
	s.repeatedFrom, s.peerAnswered = seq+1, true
	return true
}

// AckTimedOut reports whether the acknowledge timeout has come: IBTA §9.7.6.1.3. Then it costs a retry, and exhausted says
// that none is left.
func (s *State) AckTimedOut(now time.Duration) (due, exhausted bool) {
	if now < s.ackDeadline {
		return false, false
	}
	s.silent = true
	if s.retries == 0 {
		s.stopTimers()
		return true, true
	}
	s.retries--
	s.restartTimers(now)
	s.persistentCongestion()
	return true, false
}

// GoBack goes back to seq because the peer has shown that it lacks that packet. A sign costs a retry, but only one
// for each place: the peer is alive, and repeats may get lost as well. GoBack returns false when no retry is left.
func (s *State) GoBack(now time.Duration, seq uint64) bool {
	s.silent = false
	charge := seq == s.una && s.chargedFrom != seq+1 // behind a READ whose response is missing, the peer has gone on
	if charge && s.retries == 0 {
		return false
	}
	s.forgetProbe()
	if seq == s.una {
		s.loseAll()
	} else {
		s.Lose(seq, s.max)
	}
	if charge {
		s.chargedFrom = seq + 1
		s.retries--
		s.restartTimers(now)
	}
	return true
}

// WasSilent reports whether the latest retry was for an acknowledge timeout, and not for a sign of loss.
func (s *State) WasSilent() bool { return s.silent }

// PeerAnswers gives the retries of the acknowledge timeout back, which are for a silent peer: the peer has the packet una,
// and takes its time.
func (s *State) PeerAnswers() { s.retries = s.retry.Count }

// WaitForReceiver goes back to una at a time, at the expense of one RNR retry. It returns false when none is left.
// A network that loses a packet now and then would use up the retries of the acknowledge timeout while the peer has no
// receive, perhaps for long.
func (s *State) WaitForReceiver(until time.Duration) bool {
	if s.rnrWait {
		return true // the same NAK again
	}
	s.PeerAnswers()
	if s.retry.RNRCount != Forever {
		if s.rnrRetries == 0 {
			return false
		}
		s.rnrRetries--
	}
	s.loseAll()
	s.waitUntil, s.rnrWait = until, true
	s.stopTimers()
	s.forgetProbe()
	return true
}

// Stop ends all timers: the QP is in error.
func (s *State) Stop() {
	s.stopTimers()
	s.waitUntil, s.lossTimer = Never, Never
}

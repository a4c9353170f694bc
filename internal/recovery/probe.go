package recovery

import (
	"math"
	"time"
)

// The acknowledge timeout that a program has chosen is for the worst of its networks, and retry_cnt of them must pass
// before a peer counts as dead. A lost packet need not wait for it. After the probe timeout (PTO), which RTTs determine,
// the oldest packet that is not acknowledged is sent again and asks for an acknowledgement. That is a probe. A probe costs
// no retry, and doubles the time to the next one. The acknowledge timeout sends a probe too, at the cost of a retry. TCP
// has tail loss probes, and QUIC has PTOs (RFC 9002), for the same end.
//
// A peer may be slow, or its program may hold an acknowledgement back: then nothing was lost. So probes come later where a
// peer was found to be slow: see ackDelay.
//
// Every peer answers a probe, and only one packet is needless if nothing was lost:
//
//   - If the peer has had the packet, it acknowledges all packets that it has.
//   - If it lacked just this packet, the same.
//   - If it acknowledges just the probe, it has dropped or never seen the packets behind it. They are sent again, a few at
//     first: an acknowledgement of the first copy looks the same. If acknowledgements then go beyond the repeats, nothing
//     was lost. The losses are taken back, and the window is as wide as before.
//
// An answer that comes too early for the probe, or too late, is one to the first copy: the peer is slow. But the shortest
// RTT may have been a long one, as where many packets came together. So an answer to the probe alone is in doubt. If the
// packets behind the probe are acknowledged without another probe, the peer was slow. If they are not, the answer was the
// probe's, and RTTs may be as short.
type probing struct {
	at      time.Duration // when a probe is due; Never when none is
	backoff uint8         // how often the PTO was doubled
	memory  *probeMemory  // nil before the first probe or sign of loss: most QPs never need the memory
}

// probeMemory remembers the probes of a QP, and the delay of its peer.
type probeMemory struct {
	current  probe // due, or in flight
	answered probe // the latest that was answered
	doubtful bool  // whether the first copy or the probe was answered
	delay    ackDelay
}

// remembers returns the memory, to be changed.
func (p *probing) remembers() *probeMemory {
	if p.memory == nil {
		p.memory = new(probeMemory)
	}
	return p.memory
}

// isProbing reports whether a probe is due or in flight.
func (p *probing) isProbing() bool { return p.memory != nil && p.memory.current.to != 0 }

// forgetProbe makes the answer to a probe an acknowledgement like any other.
func (p *probing) forgetProbe() {
	if p.memory != nil {
		p.memory.forget()
	}
}

func (m *probeMemory) forget() { m.current, m.doubtful = probe{}, false }

// sent notes that the probe leaves.
func (m *probeMemory) sent(now time.Duration) { m.current.at = now }

// peerDelay returns for how long a slow peer may be silent.
func (p *probing) peerDelay(now time.Duration) time.Duration {
	if p.memory == nil {
		return 0
	}
	return p.memory.delay.bound(now)
}

// wasProbeAt reports whether the packet that was sent at a time is the probe in flight.
func (p *probing) wasProbeAt(at time.Duration) bool {
	return p.isProbing() && at == p.memory.current.at
}

// stopProbing stops the timer.
func (p *probing) stopProbing() { p.at = Never }

// probe is a packet, or the rest of a READ's chunk, that was sent again: [from, to). Packets up to max were sent before.
// With to 0 there is no probe.
type probe struct {
	from, to, max uint64
	at            time.Duration // when the probe was sent; 0 before

	first    time.Duration // when the packet was sent before all probes
	n        uint8         // probes of the packet, of which the answer of each is due
	took     time.Duration // from first to the answer, or the first part of the answer; 0 before
	rtt      time.Duration // from at to the answer
	needless bool          // the answer has shown that the peer was slow
	undo     undo          // the window before the silence
}

// RestartProbe sets the time of the next probe. A probe is of use before the acknowledge timeout only, and once the peer has
// answered something.
func (s *State) RestartProbe(now time.Duration) {
	s.stopProbing()
	least := time.Duration(MinPTO)
	if s.wentBack && !s.sackPermitted {
		least = goBackPTO
	}
	pto := max(s.pto(least), s.peerDelay(now))
	switch {
	case s.known:
	case !s.peerAnswered:
		return
	default: // where much is lost, no packet may have been sent only once
		pto = max(pto, s.retry.Timeout/unknownPTO)
	}
	if at := now + pto<<s.backoff; at < s.ackDeadline {
		s.probing.at = at
	}
}

// ProbeDue reports whether the time of a probe has come. Then the next one is set, and the caller calls Probe.
func (s *State) ProbeDue(now time.Duration) bool {
	if now < s.probing.at {
		return false
	}
	if s.backoff++; s.backoff >= persistentPTOs {
		s.persistentCongestion()
	}
	s.backoff = min(s.backoff, maxBackoff)
	s.RestartProbe(now)
	return true
}

// persistentCongestion notes a silence after which even a peer that acknowledges selectively must have got nothing. Of
// other peers an answered probe tells.
func (s *State) persistentCongestion() {
	if s.sacks {
		s.noteLoss()
		s.onTimeout()
	}
}

// noteLoss remembers the window before a loss, unless an earlier loss is remembered.
func (s *State) noteLoss() {
	if s.undo.until == 0 {
		s.undo = s.before(s.max)
	}
}

// Probe makes up to n packets from una on due to be sent again as a probe. They are those with the same fate as the first.
func (s *State) Probe(n uint64) {
	s.repeatedFrom = 0 // a sign of loss from now on is news
	if s.memory != nil && s.memory.doubtful {
		s.lower(s.memory.refute())
	}
	n = min(n, s.ranges[0].end-s.una)
	s.remembers().start(probe{from: s.una, to: s.una + n, max: s.max, first: s.ranges[0].at, n: 1, undo: s.undo})
	s.Lose(s.una, s.una+n)
}

// start makes p the probe. It may be a further one of the same packet.
func (m *probeMemory) start(p probe) {
	if old := &m.current; old.to != 0 && old.from == p.from {
		p.first, p.n = old.first, old.n
		if old.at != 0 && p.n < math.MaxUint8 {
			p.n++
		}
	}
	m.current = p
}

// IsProbe reports whether the next packet to send is a probe.
func (s *State) IsProbe() bool {
	return s.isProbing() && s.memory.current.at == 0 && s.nxt == s.memory.current.from
}

// probeAnswered notes that all packets before seq have arrived. If only the probe has, the packets behind it are
// lost.
func (s *State) probeAnswered(now time.Duration, seq uint64) {
	if !s.isProbing() {
		if s.memory != nil && s.memory.doubtful {
			s.needless += s.memory.confirm(now)
		}
		return
	}
	m := s.memory
	if p := &m.current; seq > p.from && p.took == 0 {
		fits := rttSince(now, p.at) >= s.leastRepeatRTT() && now-p.at <= s.pto(0)
		m.noteAnswer(now, s.known && p.at != 0 && m.delay.isLossFree(now) && !fits)
	}
	if seq < m.current.to {
		return
	}
	alone := seq == m.current.to && seq < m.current.max
	p, needless := m.end(now, alone)
	s.needless += needless
	if alone && p.rtt >= s.minRTT && !s.sacks {
		s.noteLoss()
		m.delay.lost(now) // or the peer is late
		s.onTimeout()
		for seq < p.max { // but responses that have come
			x := s.ranges[s.index(seq)]
			end := min(x.end, p.max)
			if !x.arrived {
				s.Lose(seq, end)
			}
			seq = end
		}
	}
}

// noteAnswer notes the first part of the answer to the probe.
func (m *probeMemory) noteAnswer(now time.Duration, needless bool) {
	m.current.took, m.current.needless = rttSince(now, m.current.first), needless
}

// end notes the whole answer to the probe, and returns the probe and how many probes were needless. alone says that
// packets behind the probe are not acknowledged.
func (m *probeMemory) end(now time.Duration, alone bool) (p probe, needless uint64) {
	p = m.current
	p.rtt = rttSince(now, p.at)
	m.current, m.answered = probe{}, p
	switch {
	case p.at == 0: // the probe was not sent
		m.answered.n--
	case p.needless && alone:
		m.doubtful = true
	case p.needless:
		needless = m.confirm(now)
	}
	return p, needless
}

// confirm notes that the latest answer was one to the first copy: the peer is slow. It returns how many probes were
// needless.
func (m *probeMemory) confirm(now time.Duration) (needless uint64) {
	m.doubtful = false
	m.delay.learn(now, m.answered.took)
	return uint64(m.answered.n)
}

// refute notes that the latest answer was one to the probe. It returns the probe's RTT.
func (m *probeMemory) refute() (rtt time.Duration) {
	m.doubtful, m.answered.needless = false, false
	return m.answered.rtt
}

// repeats notes that the peer has had packet seq twice. ok says that this is the answer to a probe, and uncounted that the
// probe was not yet counted as needless.
func (m *probeMemory) repeats(now time.Duration, seq uint64) (u undo, ok, uncounted bool) {
	p := &m.answered
	if p.n == 0 || seq < p.from || seq >= p.to {
		return undo{}, false, false
	}
	if p.n--; !p.needless {
		m.delay.learn(now, p.took)
	}
	return p.undo, true, !p.needless
}

// NeedlessProbe notes that the peer has had packet seq twice. It reports whether this is the answer to a probe: then
// the peer was slow to answer, and lost nothing. Not every peer tells: some answer several packets together.
func (s *State) NeedlessProbe(now time.Duration, seq uint64) bool {
	if s.memory == nil {
		return false
	}
	u, ok, uncounted := s.memory.repeats(now, seq)
	if uncounted {
		s.needless++
	}
	if u.until != 0 {
		s.restore(u)
	}
	return ok
}

// AnsweredProbe returns the first packet of the latest probe that was answered. ok is false if there is none.
func (s *State) AnsweredProbe() (seq uint64, ok bool) {
	if s.memory == nil {
		return 0, false
	}
	return s.memory.answered.from, true
}

// revoke takes the losses back that are still to be repaired: an acknowledgement has come for a packet of them that was
// not sent again.
func (s *State) revoke() (done bool) {
	if s.undo.until == 0 {
		return false
	}
	s.restore(s.undo)
	s.undo = undo{}
	s.keep()
	return true
}

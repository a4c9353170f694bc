package transport

import (
	"math"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// The acknowledge timeout that a program has chosen is for the worst of its networks, and retry_cnt of them
// must pass before a peer counts as dead. A packet that is lost need not wait for it. After some silence,
// which the round trips determine, the oldest packet that is not acknowledged is sent again and asks for an
// acknowledgement. That is a probe. It costs no retry, and the time to the next one is twice as long. The
// acknowledge timeout sends one too, at the cost of a retry.
//
// A peer may be slow, or its program may hold an acknowledgement back: then nothing was lost. So probes come later
// where a peer was found to be slow: see slowness.
//
// Every peer answers a probe, and only one packet is in vain if nothing was lost:
//
//   - If the peer has had the packet, it acknowledges all that it has.
//   - If it lacked just this one, the same.
//   - If it acknowledges just the probe, it has dropped or never seen what followed. That is sent again, a
//     few packets at first: an acknowledgement of the first copy looks the same. What they acknowledge
//     beyond themselves tells. Then all is taken back, the window's narrowing too.
type probing struct {
	at      time.Duration // when a probe is due; Never when none is
	backoff uint8         // how often the time was doubled
	counts  *Counters
	asked   *asked // nil before the first probe or sign of loss: most QPs never need it
}

// asked is what is known of the probes of a QP.
type asked struct {
	sampled probe // on its way
	settled probe // the latest that was answered
	slow    slowness
}

// memory returns what is known, to be changed.
func (p *probing) memory() *asked {
	if p.asked == nil {
		p.asked = new(asked)
	}
	return p.asked
}

// samples reports whether a probe is due or on its way.
func (p *probing) samples() bool { return p.asked != nil && p.asked.sampled.to != 0 }

// forgetSample has the answer to a probe be any other acknowledgement.
func (p *probing) forgetSample() {
	if p.asked != nil {
		p.asked.sampled = probe{}
	}
}

// slowness is for how long a silence may be the peer's slowness.
func (p *probing) slowness(now time.Duration) time.Duration {
	if p.asked == nil {
		return 0
	}
	return p.asked.slow.patience(now)
}

// probe is a packet, or the rest of a READ's chunk, that was sent again as a sample: [from, to). Up to max was
// sent before. With to 0 there is none.
type probe struct {
	from, to, max uint64
	at            time.Duration // when it was sent; 0 before

	first time.Duration // when the packet was sent before all probes
	n     uint8         // probes of it, of which the answer of each is due
	took  time.Duration // from first to the answer, or the first part of it; 0 before
	vain  bool          // the answer has shown that the peer was slow
	undo  undo          // what the window was before the silence
}

// setProbe sets the time of the next probe, which is of use only before the acknowledge timeout. There is none before
// the peer has answered.
func (r *recovery) setProbe(now time.Duration) {
	r.probing.at = Never
	least := time.Duration(leastProbe)
	if r.goesBack && !*r.ours {
		least = backProbe
	}
	silence := max(r.silence(least), r.slowness(now))
	switch {
	case r.known:
	case !r.heard:
		return
	default: // where much is lost, no packet may have been sent only once
		silence = max(silence, wire.ACKTimeout(r.attr.Timeout)/unknownProbe)
	}
	if at := now + silence<<r.backoff; at < r.ackDeadline {
		r.probing.at = at
	}
}

// backOff takes note that the time of a probe has come.
func (r *recovery) backOff(now time.Duration) {
	if r.backoff++; r.backoff >= silentProbes {
		r.silenced()
	}
	r.backoff = min(r.backoff, maxBackoff)
	r.setProbe(now)
}

// silenced takes note of a silence after which even a peer that tells what it has must have had nothing. Of
// others an answered probe tells.
func (r *recovery) silenced() {
	if r.selective {
		r.before.note(&r.congestion, r.max)
		r.restarted()
	}
}

// ask makes the first n packets from una on due to be sent again as a probe.
func (r *recovery) ask(n uint64) {
	r.repeatedFrom = 0 // a sign of loss from now on is news
	p := probe{from: r.una, to: r.una + n, max: r.max, first: r.ranges[0].at, n: 1, undo: r.before}
	m := r.memory()
	if old := &m.sampled; old.to != 0 && old.from == p.from {
		p.first, p.n = old.first, old.n
		if old.at != 0 && p.n < math.MaxUint8 {
			p.n++
		}
	}
	m.sampled = p
	r.lose(r.una, min(r.una+n, r.max))
}

// asks reports whether the next packet is a probe.
func (r *recovery) asks() bool {
	return r.samples() && r.asked.sampled.at == 0 && r.nxt == r.asked.sampled.from
}

// probeAnswered takes note that everything before seq has arrived. If that is the probe alone, what followed it is
// lost.
func (r *recovery) probeAnswered(now time.Duration, seq uint64) {
	if !r.samples() {
		return
	}
	a := r.asked
	if s := &a.sampled; seq > s.from && s.took == 0 {
		s.took = tripSince(now, s.first)
		s.vain = r.known && s.at != 0 && a.slow.losesNothing(now) && (tripSince(now, s.at) < r.tooSoon() || now-s.at > r.silence(0)) // it does not fit the probe
	}
	p := a.sampled
	if seq < p.to {
		return
	}
	a.sampled, a.settled = probe{}, p
	if p.at == 0 { // it was not sent
		a.settled.n--
	} else if p.vain {
		a.slow.learn(now, p.took)
		r.counts.NeedlessProbes += uint64(p.n)
	}
	if seq == p.to && seq < p.max && tripSince(now, p.at) >= r.leastTrip && !r.selective {
		r.before.note(&r.congestion, r.max)
		a.slow.lost(now) // or it is late
		r.restarted()
		for seq < p.max { // but for responses that have come
			x := r.ranges[r.index(seq)]
			end := min(x.end, p.max)
			if !x.arrived {
				r.lose(seq, end)
			}
			seq = end
		}
	}
}

// wasVain takes note that the peer has had seq twice. It reports whether that was for a probe: then the peer was slow to
// answer, and lost nothing. Not every peer tells: some answer together what comes at once.
func (p *probing) wasVain(now time.Duration, c *congestion, seq uint64) bool {
	if p.asked == nil {
		return false
	}
	s := &p.asked.settled
	if s.n == 0 || seq < s.from || seq >= s.to {
		return false
	}
	if s.n--; !s.vain {
		p.asked.slow.learn(now, s.took)
		p.counts.NeedlessProbes++
	}
	if s.undo.until != 0 {
		s.undo.restore(c)
	}
	return true
}

// slowness is how long the peer has taken to answer what was not lost, at most. It counts for slowMemory, and for twice that
// at most. A sign of loss halves it: where packets are lost, it does not pay to wait.
type slowness struct {
	most   [2]time.Duration // of the present part of the memory, and of the one before
	since  time.Duration    // when the present part began
	lossy  bool             // there was a sign of loss
	lostAt time.Duration    // the latest
}

// learn takes note that the peer has taken d to answer.
func (s *slowness) learn(now, d time.Duration) {
	s.turn(now)
	s.most[0] = max(s.most[0], d)
}

func (s *slowness) turn(now time.Duration) {
	if now-s.since >= slowMemory {
		if s.most[1] = s.most[0]; now-s.since >= 2*slowMemory {
			s.most[1] = 0
		}
		s.most[0], s.since = 0, now
	}
}

// patience is for how long a silence may be the peer's slowness.
func (s *slowness) patience(now time.Duration) time.Duration {
	if s.most == [2]time.Duration{} { // as most often
		return 0
	}
	s.turn(now)
	most := max(s.most[0], s.most[1])
	return most + most/4
}

// lost takes note of a sign of loss.
func (s *slowness) lost(now time.Duration) {
	s.most[0], s.most[1] = s.most[0]/2, s.most[1]/2
	s.lossy, s.lostAt = true, now
}

// losesNothing reports whether there was no sign of loss lately. Else an answer that is late may be one to a repeat.
func (s *slowness) losesNothing(now time.Duration) bool { return !s.lossy || now-s.lostAt > slowMemory }

// undo is what the window was before a loss that may prove to be none.
type undo struct {
	window, threshold uint64
	until             uint64 // when all before it is acknowledged, the loss was one; 0: there is nothing to undo
}

// note remembers the window, unless one from before is remembered.
func (u *undo) note(c *congestion, until uint64) {
	if u.until == 0 {
		*u = undo{c.window, c.threshold, until}
	}
}

// restore makes the window what it was, if it is less.
func (u *undo) restore(c *congestion) {
	c.window = max(c.window, u.window)
	c.threshold = max(c.threshold, u.threshold)
}

// revoke takes back that what is to be sent again was lost: an acknowledgement has come for a part of it that
// was not sent again.
func (r *recovery) revoke() (done bool) {
	if r.before.until == 0 {
		return false
	}
	r.before.restore(&r.congestion)
	r.before = undo{}
	r.keep()
	return true
}

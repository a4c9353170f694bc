package transport

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// recovery owns all that is about loss: what was sent and not acknowledged, the window, the timers
// and the retries. The requester asks it what may go next. The completer tells it what has come. It
// repeats what is lost: everything behind the packet that a NAK is for, if the peer goes back, and what is
// missing, if the peer tells that.
type recovery struct {
	attr *verbs.QPAttr // Timeout, RetryCnt, RNRRetry
	*pacer
	control *controller
	ours    *bool // the peer is like us, and so answers READs for any part
	flight
	congestion
	probing
	overtaken
	before undo
	spread *spread // nil: there is one path

	ackDeadline time.Duration // when the acknowledge timeout comes; Never when nothing is on its way
	heldUntil   time.Duration // until when nothing may go out; Never when something may
	peerWaits   bool          // the hold is an RNR NAK's: the peer has no receive
	goesBack    bool          // the latest loss makes all that was under way go again
	heard       bool          // the peer has acknowledged something, or told of a gap
	bursts      bursts        // while it does

	retries    uint8 // left before WCRetryExceeded
	rnrRetries uint8 // left before WCRNRRetryExceeded

	// repeatedFrom is the sequence number, plus 1, from which a NAK has made us repeat. Further ones for it
	// are then no news.
	repeatedFrom uint64
	chargedFrom  uint64 // that, plus 1, for which a sign of loss has cost a retry
	cause        string // of the latest retry
}

func (r *recovery) reset() {
	*r = recovery{attr: r.attr, pacer: r.pacer, control: r.control, ours: r.ours, spread: r.spread.fresh(), congestion: newCongestion(), ackDeadline: Never, heldUntil: Never,
		probing: probing{at: Never, counts: r.counts}, overtaken: overtaken{latestAt: -1, due: Never, fresh: r.fresh[:0]}, flight: flight{ranges: r.ranges[:0]}}
}

func (r *recovery) start(seq uint64) {
	narrowed := r.narrowed // the controller's
	r.reset()
	r.narrowed = narrowed
	r.flight.start(seq)
}

// refill gives back all retries: there was progress, or Modify changed how many there are.
func (r *recovery) refill() { r.retries, r.rnrRetries = r.attr.RetryCnt, r.attr.RNRRetry }

// mayGo reports whether count packets may go now, of which limit may be outstanding.
func (r *recovery) mayGo(now time.Duration, count, limit uint64) bool {
	if r.nxt != r.una && (r.nxt+count-r.una > maxAhead || r.flying()+count > limit) {
		return false
	}
	if r.heldUntil == Never && r.notBefore > now {
		r.heldUntil, r.waits = r.notBefore, true // the timer then calls
	}
	return r.heldUntil == Never
}

// sent takes note that the next n packets are on their way, or that a request has gone for as many responses. It
// reports whether they were sent before.
func (r *recovery) sent(now time.Duration, n uint64, responses bool) (repeated bool) {
	path := uint8(0)
	if r.spread != nil {
		path = r.spread.choose(now, r, n, responses)
	} else if responses {
		path = responsePath
	}
	if r.asks() {
		r.asked.sampled.at = now
	}
	seq := r.nxt
	if repeated = r.send(now, n, path); repeated {
		if responses && r.awaits(seq) {
			r.postpone(now, seq+n)
		}
	}
	if r.ackDeadline == Never { // IBTA C9-139
		r.restartTimer(now)
	}
	return repeated
}

// acknowledged takes note that everything before seq has arrived. needless says that something was to be
// sent again, and has arrived without.
func (r *recovery) acknowledged(now time.Duration, seq uint64) (needless bool) {
	n := seq - r.una
	r.heard = true
	r.calmDown(now)
	needless = seq > r.nxt
	r.delivered(now, r.una, seq, r.selective)
	if at, ok := r.acknowledge(seq); ok && !r.samples() && !r.selective { // else the probe may have asked for it
		r.took(now, tripSince(now, at))
	}
	r.congestion.acknowledged(n, r.beyond(seq), *r.ours)
	needless = needless && r.revoke()
	r.probeAnswered(now, seq)
	if seq >= r.before.until {
		r.before = undo{}
	}
	r.refill()
	r.restartTimer(now)
	return needless
}

// beyond is by how many packets the window grows in the time of a window, with everything before seq acknowledged, if
// more is under way than the path holds.
func (r *recovery) beyond(seq uint64) uint64 {
	switch {
	case !r.goesBack:
		return growth
	case seq < r.repeatedFrom+rareLoss:
		return 0
	}
	return 1
}

// took takes note of a round trip.
func (r *recovery) took(now, trip time.Duration) {
	if trip > leastProbe && trip > r.silence(leastProbe) {
		r.memory().slow.learn(now, trip) // a probe would have been in vain
	}
	r.congestion.took(now, trip)
	(*r.control).measured(now, trip)
}

// restartTimer starts the timers of what is on its way anew, or stops them when nothing is.
func (r *recovery) restartTimer(now time.Duration) {
	r.ackDeadline, r.probing.at = Never, Never
	if d := wire.ACKTimeout(r.attr.Timeout); d != 0 && r.nxt > r.una {
		r.ackDeadline = now + d
		r.backoff = 0
		r.setProbe(now)
	}
}

// nextTimeout returns when the next timer is due, or Never.
func (r *recovery) nextTimeout() time.Duration {
	return min(r.ackDeadline, r.heldUntil, r.probing.at, r.due)
}

// endHold ends the hold whose time has come.
func (r *recovery) endHold(now time.Duration) {
	if now < r.heldUntil {
		return
	}
	r.heldUntil = Never
	if r.peerWaits {
		r.peerWaits = false
		r.restartTimer(now)
	}
}

// endPace ends a hold that is the pace's: another controller sets another one.
func (r *recovery) endPace() {
	if !r.peerWaits {
		r.heldUntil = Never
	}
}

// firstSign reports whether a NAK for seq is the first sign of this loss.
func (r *recovery) firstSign(now time.Duration, seq uint64) bool {
	if r.repeatedFrom == seq+1 {
		return false
	}
	r.before.note(&r.congestion, r.max)
	r.memory().slow.lost(now)
	r.goesBack = !r.selective
	switch {
	case !r.goesBack:
		r.lost()
	case r.chooseBursts(seq):
		r.narrow(burstWindow)
	default:
		r.wentBack()
	}
	r.repeatedFrom, r.heard = seq+1, true
	return true
}

// timedOut takes note that the acknowledge timeout has come: IBTA §9.7.6.1.3. It costs a retry, and false is
// returned when none is left.
func (r *recovery) timedOut(now time.Duration) bool {
	r.cause = fmt.Sprintf("nothing came for %v (timeout %d)", wire.ACKTimeout(r.attr.Timeout), r.attr.Timeout)
	if r.retries == 0 {
		r.ackDeadline, r.probing.at = Never, Never
		return false
	}
	r.retries--
	r.restartTimer(now)
	r.silenced()
	return true
}

// signed goes back to seq because the peer has shown that it lacks what is there. A sign costs a retry, but
// only one for each place: the peer is alive, and what is repeated may get lost as well. signed returns
// false when no retry is left.
func (r *recovery) signed(now time.Duration, seq uint64, cause string) bool {
	r.cause = cause
	charge := seq == r.una && r.chargedFrom != seq+1 // behind a READ whose response is missing, the peer has gone on
	if charge && r.retries == 0 {
		return false
	}
	r.forgetSample()
	if seq == r.una {
		r.loseAll()
	} else {
		r.lose(seq, r.max)
	}
	if charge {
		r.chargedFrom = seq + 1
		r.retries--
		r.restartTimer(now)
	}
	return true
}

// retryAt goes back to una when the time has come, at the expense of one RNR retry. It returns false
// when none is left. The retries of the acknowledge timeout are for a peer that is silent, so this one, which
// speaks, gives them back: a network that loses a packet now and then would use them up while the peer has no
// receive, which may be for long.
func (r *recovery) retryAt(t time.Duration) bool {
	if r.peerWaits {
		return true // the same NAK again
	}
	r.retries = r.attr.RetryCnt
	if r.attr.RNRRetry != retryForever {
		if r.rnrRetries == 0 {
			return false
		}
		r.rnrRetries--
	}
	r.loseAll()
	r.heldUntil, r.peerWaits = t, true
	r.ackDeadline, r.probing.at = Never, Never
	r.forgetSample()
	return true
}

// exhausted says what was retried in vain.
func (r *recovery) exhausted() *fault {
	a := r.attr
	return &fault{verbs.WCRetryExceeded, fmt.Errorf("qp %v at gid %v did not acknowledge psn %v: %d retries (retry_cnt), the last because %s",
		a.DestQPN, a.AH.DGID, psn(r.una), a.RetryCnt, r.cause)}
}

// stop ends all timers: the QP is in error.
func (r *recovery) stop() {
	r.ackDeadline, r.heldUntil, r.probing.at, r.due = Never, Never, Never, Never
}

package transport

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// recovery owns all that is about loss: what was sent and not acknowledged, the window, the timers
// and the retries. The requester asks it what may go next. The completer tells it what has come. It
// repeats by going back: everything that is not acknowledged is sent again.
type recovery struct {
	attr *verbs.QPAttr // Timeout, RetryCnt, RNRRetry
	flight
	congestion

	ackDeadline time.Duration // when the acknowledge timeout comes; Never when nothing is on its way
	heldUntil   time.Duration // until when nothing may go out; Never when something may
	peerWaits   bool          // the hold is an RNR NAK's: the peer has no receive

	retries    uint8 // left before WCRetryExceeded
	rnrRetries uint8 // left before WCRNRRetryExceeded

	// repeatedFrom is the una, plus 1, from which a NAK or a gap has made us repeat. Further signs
	// of the same loss are then no news.
	repeatedFrom uint64
	cause        string // of the latest retry
}

func (r *recovery) reset() {
	*r = recovery{attr: r.attr, congestion: newCongestion(), ackDeadline: Never, heldUntil: Never, flight: flight{ranges: r.ranges[:0]}}
}

func (r *recovery) start(seq uint64) {
	r.reset()
	r.flight.start(seq)
}

// refill gives back all retries: there was progress, or Modify changed how many there are.
func (r *recovery) refill() { r.retries, r.rnrRetries = r.attr.RetryCnt, r.attr.RNRRetry }

// mayGo reports whether count packets may go now, of which limit may be outstanding.
func (r *recovery) mayGo(now time.Duration, count, limit uint64) bool {
	if r.nxt+count-r.una > limit && r.nxt != r.una {
		return false
	}
	if r.heldUntil == Never && r.notBefore > now {
		r.heldUntil = r.notBefore // the timer then calls
	}
	return r.heldUntil == Never
}

// sent takes note that the next n packets are on their way. It reports whether they were sent before.
func (r *recovery) sent(now time.Duration, n uint64) (repeated bool) {
	repeated = r.send(now, n)
	if r.ackDeadline == Never { // IBTA C9-139, C9-140
		r.restartTimer(now)
	}
	return repeated
}

// acknowledged takes note that everything before seq has arrived.
func (r *recovery) acknowledged(now time.Duration, seq uint64) {
	n := seq - r.una
	if at, ok := r.acknowledge(seq); ok {
		r.measured(now - at)
	}
	r.congestion.acknowledged(n)
	r.refill()
	r.restartTimer(now)
}

// restartTimer starts the acknowledge timer anew, or stops it when nothing is on its way.
func (r *recovery) restartTimer(now time.Duration) {
	r.ackDeadline = Never
	if d := wire.ACKTimeout(r.attr.Timeout); d != 0 && r.nxt > r.una {
		r.ackDeadline = now + d
	}
}

// nextTimeout returns when the next timer is due, or Never.
func (r *recovery) nextTimeout() time.Duration { return min(r.ackDeadline, r.heldUntil) }

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

// firstSign reports whether a sign of loss, a NAK or a gap, is the first for this loss.
func (r *recovery) firstSign() bool {
	if r.repeatedFrom == r.una+1 {
		return false
	}
	r.repeatedFrom = r.una + 1
	r.lost()
	return true
}

// timedOut takes note that the acknowledge timeout has come: IBTA §9.7.6.1.3. It returns the cause that a
// retry has.
func (r *recovery) timedOut() string {
	r.ackDeadline = Never
	r.repeatedFrom = 0
	r.congestion.timedOut()
	return fmt.Sprintf("nothing came for %v (timeout %d)", wire.ACKTimeout(r.attr.Timeout), r.attr.Timeout)
}

// retry goes back to una at the expense of one retry. It returns false when none is left.
func (r *recovery) retry(now time.Duration, cause string) bool {
	r.cause = cause
	if r.retries == 0 {
		return false
	}
	r.retries--
	r.loseAll()
	r.restartTimer(now)
	return true
}

// retryAt goes back to una when the time has come, at the expense of one RNR retry. It returns false
// when none is left.
func (r *recovery) retryAt(t time.Duration) bool {
	if r.peerWaits {
		return true // the same NAK again
	}
	if r.attr.RNRRetry != retryForever {
		if r.rnrRetries == 0 {
			return false
		}
		r.rnrRetries--
	}
	r.loseAll()
	r.heldUntil, r.peerWaits = t, true
	r.ackDeadline = Never
	return true
}

// exhausted says what was retried in vain.
func (r *recovery) exhausted() *fault {
	a := r.attr
	return &fault{verbs.WCRetryExceeded, fmt.Errorf("qp %v at gid %v did not acknowledge psn %v: %d retries (retry_cnt), the last because %s",
		a.DestQPN, a.AH.DGID, psn(r.una), a.RetryCnt, r.cause)}
}

// stop ends all timers: the QP is in error.
func (r *recovery) stop() { r.ackDeadline, r.heldUntil = Never, Never }

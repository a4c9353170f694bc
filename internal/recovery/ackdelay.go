package recovery

import "time"

// ackDelay is the longest that the peer has taken to answer packets that were not lost. It counts for delayMemory, and for
// twice that at most. A sign of loss halves it: where packets are lost, it does not pay to wait.
type ackDelay struct {
	most   [2]time.Duration // of the present part of the memory, and of the part before
	since  time.Duration    // when the present part began
	lossy  bool             // there was a sign of loss
	lostAt time.Duration    // the latest sign
}

// learn notes that the peer has taken d to answer. More than delayMost is an outage rather, and a probe costs little then.
func (a *ackDelay) learn(now, d time.Duration) {
	a.turn(now)
	a.most[0] = max(a.most[0], min(d, delayMost))
}

func (a *ackDelay) turn(now time.Duration) {
	if now-a.since >= delayMemory {
		if a.most[1] = a.most[0]; now-a.since >= 2*delayMemory {
			a.most[1] = 0
		}
		a.most[0], a.since = 0, now
	}
}

// bound returns for how long a silence may be the peer's delay.
func (a *ackDelay) bound(now time.Duration) time.Duration {
	if a.most == [2]time.Duration{} { // as for most peers
		return 0
	}
	a.turn(now)
	most := max(a.most[0], a.most[1])
	return most + most/4
}

// lost notes a sign of loss.
func (a *ackDelay) lost(now time.Duration) {
	a.most[0], a.most[1] = a.most[0]/2, a.most[1]/2
	a.lossy, a.lostAt = true, now
}

// isLossFree reports whether there was no sign of loss lately. Else a late answer may be the answer to a repeat.
func (a *ackDelay) isLossFree(now time.Duration) bool { return !a.lossy || now-a.lostAt > delayMemory }

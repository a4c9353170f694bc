package transport

import "time"

// timeline is the time of a QP, which never goes back. Callers read the clock before they wait for the QP, or once for
// many packets. So what one of them calls now may be earlier than what another one has called so already. Each call
// that takes a time begins with notBefore. So no time that the QP remembers, but one that was set for later, is after now.
type timeline struct{ latest time.Duration }

// notBefore returns now, or the latest time that the QP was told if that is later.
func (l *timeline) notBefore(now time.Duration) time.Duration {
	l.latest = max(l.latest, now)
	return l.latest
}

// Latest returns the latest time that the QP was told. A caller who has an earlier one may look at the clock again: a
// round trip is measured by it.
func (l *timeline) Latest() time.Duration { return l.latest }

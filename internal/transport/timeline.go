package transport

import "time"

// timeline is the time of a QP, which never goes back. Callers read the clock before they wait for the QP, or once
// for many packets. So now may be earlier than the now of another caller before. Each call with a time begins with
// notBefore. So no time that the QP has taken from a caller is after now.
type timeline struct{ latest time.Duration }

// notBefore returns now, or the latest time that the QP was told if that is later.
func (l *timeline) notBefore(now time.Duration) time.Duration {
	l.latest = max(l.latest, now)
	return l.latest
}

// Latest returns the latest time that the QP was told. A caller with an earlier one may read the clock again, since
// round trips are measured by that time.
func (l *timeline) Latest() time.Duration { return l.latest }

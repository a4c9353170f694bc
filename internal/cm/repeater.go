package cm

import (
	"container/list"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// repeater is the message that a record may have to send again, and the record's timer. A question
// is repeated until it is answered. An answer is repeated when the question comes again.
type repeater struct {
	timer    timer
	attr     wire.CMAttr
	mad      []byte
	interval time.Duration // between repetitions
	early    time.Duration // before the next repetition, while it is shorter than interval
	retries  int           // left
	until    time.Duration // when to give up, whatever is left
}

// keep makes a message the one to repeat.
func (r *repeater) keep(attr wire.CMAttr, tid uint64, msg body) {
	r.attr, r.mad = attr, encode(r.mad[:0], attr, tid, msg)
}

// start waits for the answer to a message that was sent just now.
func (r *repeater) start(m *Machine, now, interval time.Duration, retries int, until time.Duration) {
	r.interval, r.early, r.retries, r.until = interval, interval, retries, until
	r.wait(m, now)
}

// hasten has further repetitions come before the first: after early, after twice as long, and so on up to the interval.
func (r *repeater) hasten(m *Machine, now, early time.Duration) {
	r.early = early
	r.wait(m, now)
}

// delay waits for the answer for interval from now on, and from each further repetition on. The number of repetitions
// stays, and so does the time at which the record gives up.
func (r *repeater) delay(m *Machine, now, interval time.Duration) {
	r.interval, r.early = interval, interval
	r.wait(m, now)
}

// repeat sends the message again and sets the timer, unless that was done often or long enough.
func (r *repeater) repeat(m *Machine, now time.Duration, p Path) bool {
	if r.retries == 0 || now >= r.until {
		return false
	}
	if r.early < r.interval {
		r.early *= 2
	} else {
		r.retries--
	}
	m.resend(p, r.attr, r.mad)
	r.wait(m, now)
	return true
}

// wait sets the timer for the next repetition, or for giving up.
func (r *repeater) wait(m *Machine, now time.Duration) {
	m.timers.set(&r.timer, min(now+min(r.early, r.interval), max(now, r.until)))
}

// stop ends the repetition.
func (r *repeater) stop(m *Machine) {
	m.timers.stop(&r.timer)
	r.mad = nil
}

// retiree is the place of a record among those that are kept only for late messages of their peers.
type retiree struct{ place *list.Element }

// retire gives a record its place there, the youngest. If there are too many, the oldest is
// forgotten.
func (r *retiree) retire(m *Machine, now time.Duration, rec record) {
	if r.place != nil {
		return
	}
	if m.retired.Len() >= maxRetired {
		m.retired.Front().Value.(record).evict(now)
		m.stats.Evicted++
	}
	r.place = m.retired.PushBack(rec)
}

func (r *retiree) remove(m *Machine) {
	if r.place != nil {
		m.retired.Remove(r.place)
		r.place = nil
	}
}

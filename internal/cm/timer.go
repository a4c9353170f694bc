package cm

import (
	"time"
)

// milliseconds returns what a timeout code stands for, reckoned as Linux does: 4.096 µs × 2^code is
// taken for 2^(code-8) ms, and what is less than one for one.
func milliseconds(code uint8) time.Duration {
	return time.Millisecond << (max(min(code, maxTimeoutCode), 8) - 8)
}

// ackTimeout returns the code of the time in which a packet is acknowledged on a path of this
// lifetime by a channel adapter of this delay: about twice the lifetime and the delay, IBTA 12.7.34,
// rounded as Linux does.
func ackTimeout(delay, lifetime uint8) uint8 {
	t := lifetime + 1
	switch {
	case t < delay && t+1 < delay:
		t = delay
	case t < delay:
		t = delay + 1
	case delay+1 >= t:
		t++
	}
	return min(t, maxTimeoutCode)
}

// record is what the machine keeps under a timer: a connection or a SIDR exchange.
type record interface {
	expire(now time.Duration) // the timer ran off
	evict(now time.Duration)  // there are too many that are kept only for late messages
}

// timer is the place of a record in the heap of timers.
type timer struct {
	at    time.Duration
	place int // in the heap, from 1; 0 if it is not there
	rec   record
}

// timers is a heap, the earliest one first.
type timers []*timer

// set sets t, or moves it when it is set already.
func (h *timers) set(t *timer, at time.Duration) {
	if t.place == 0 {
		*h = append(*h, t)
		t.place = len(*h)
	}
	t.at = at
	h.up(t.place)
	h.down(t.place)
}

func (h *timers) stop(t *timer) {
	if t.place == 0 {
		return
	}
	place, last := t.place, len(*h)
	h.swap(place, last)
	(*h)[last-1] = nil
	*h = (*h)[:last-1]
	t.place = 0
	if place < last {
		h.up(place)
		h.down(place)
	}
}

func (h timers) swap(i, j int) {
	h[i-1], h[j-1] = h[j-1], h[i-1]
	h[i-1].place, h[j-1].place = i, j
}

func (h timers) up(i int) {
	for i > 1 && h[i-1].at < h[i/2-1].at {
		h.swap(i, i/2)
		i /= 2
	}
}

func (h timers) down(i int) {
	for 2*i <= len(h) {
		child := 2 * i
		if child < len(h) && h[child].at < h[child-1].at {
			child++
		}
		if h[i-1].at <= h[child-1].at {
			return
		}
		h.swap(i, child)
		i = child
	}
}

// NextTimeout returns when HandleTimeout is due, or [Never].
func (m *Machine) NextTimeout() time.Duration {
	if len(m.timers) == 0 {
		return Never
	}
	return m.timers[0].at
}

// HandleTimeout does what is due at now. When very much is due at once it leaves the rest for
// another call, after Transmit: NextTimeout then lies in the past.
func (m *Machine) HandleTimeout(now time.Duration) {
	for len(m.timers) > 0 && m.timers[0].at <= now && m.queued() < maxQueue {
		t := m.timers[0]
		m.timers.stop(t)
		t.rec.expire(now)
	}
}

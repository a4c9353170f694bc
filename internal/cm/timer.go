package cm

import (
	"container/heap"
	"time"
)

// milliseconds returns the time of a timeout code, as Linux computes it: 4.096 µs × 2^code counts
// as 2^(code-8) ms, and a time below one millisecond as one.
func milliseconds(code uint8) time.Duration {
	return time.Millisecond << (max(min(code, maxTimeoutCode), 8) - 8)
}

// ackTimeout returns the code of the time within which a packet is acknowledged, on a path of this
// lifetime, by a channel adapter of this delay. The code stands for about twice the lifetime and
// the delay, IBTA §12.7.34, rounded as Linux does.
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

// record is a thing with a timer: a connection or a SIDR exchange.
type record interface {
	expire(now time.Duration) // the timer has run off
	evict(now time.Duration)  // too many records are kept for late messages only
}

// timer is the place of a record in the heap of timers.
type timer struct {
	at    time.Duration
	place int // in the heap, counted from 1; 0 if the timer is not set
	rec   record
}

// timers are those that are set. They implement heap.Interface, with the earliest first.
type timers []*timer

// set sets t, or moves it if it is set already.
func (h *timers) set(t *timer, at time.Duration) {
	t.at = at
	if t.place == 0 {
		heap.Push(h, t)
	} else {
		heap.Fix(h, t.place-1)
	}
}

func (h *timers) stop(t *timer) {
	if t.place > 0 {
		heap.Remove(h, t.place-1)
	}
}

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at < h[j].at }

func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *timers) Push(t any) {
	*h = append(*h, t.(*timer))
	t.(*timer).place = len(*h)
}

func (h *timers) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.place = 0
	return t
}

// NextTimeout returns when HandleTimeout is due, or [Never].
func (m *Machine) NextTimeout() time.Duration {
	if len(m.timers) == 0 {
		return Never
	}
	return m.timers[0].at
}

// HandleTimeout runs the timers that are due at now. If very many are due at once, it leaves the
// rest for another call, after Transmit. NextTimeout then lies in the past.
func (m *Machine) HandleTimeout(now time.Duration) {
	for len(m.timers) > 0 && m.timers[0].at <= now && m.queued() < maxQueue {
		t := m.timers[0]
		m.timers.stop(t)
		t.rec.expire(now)
	}
}

package recovery

import "time"

// reorderWindow is how much longer than expected a packet may be in flight before it counts as lost (RACK's reo_wnd,
// RFC 8985). It is 0 at first. A packet that others have overtaken and that arrives nevertheless shows how much time
// it needed. The window is as long then, up to two round trips, as long as such packets come.
type reorderWindow struct {
	size   time.Duration
	needed time.Duration // the most that a packet has needed since
	since  time.Duration // when decay has set size
}

// widen notes that a packet has needed so much. A little is added.
func (w *reorderWindow) widen(now, by, srtt time.Duration) {
	if by <= 0 {
		return
	}
	by = min(by+by/8, 2*srtt)
	w.needed = max(w.needed, by)
	if w.size == 0 {
		w.since = now
	}
	w.size = max(w.size, by)
}

// decay makes the window, from time to time, as long as packets have needed.
func (w *reorderWindow) decay(now, srtt time.Duration) {
	if w.size > 0 && now-w.since > ReorderDecay*srtt {
		w.size, w.needed, w.since = w.needed, 0, now
	}
}

package link

import (
	"sync/atomic"
	"time"
)

// Waiter has the Wait and the Wake of a link whose datagrams are brought by goroutines of this process.
type Waiter struct {
	filled atomic.Bool
	woken  atomic.Bool
	closed atomic.Bool
	done   chan struct{}
	signal chan struct{} // cap 1: look again
	timer  *time.Timer   // Wait's
}

// NewWaiter returns the Waiter of a link without datagrams.
func NewWaiter() *Waiter {
	return &Waiter{done: make(chan struct{}), signal: make(chan struct{}, 1)}
}

// Fill says whether datagrams can be received. Those who bring and take them say so under the lock of the datagrams.
func (w *Waiter) Fill(yes bool) {
	w.filled.Store(yes)
	if yes {
		w.look()
	}
}

// Filled reports what Fill has said last.
func (w *Waiter) Filled() bool { return w.filled.Load() }

// Wait implements Link.
func (w *Waiter) Wait(d time.Duration) error {
	var expired <-chan time.Time
	if d >= 0 {
		if w.timer == nil {
			w.timer = time.NewTimer(d)
		} else {
			w.timer.Reset(d)
		}
		defer w.timer.Stop()
		expired = w.timer.C
	}
	for !w.closed.Load() {
		if w.woken.Swap(false) || w.filled.Load() {
			return nil
		}
		select {
		case <-w.signal:
		case <-expired:
			return nil
		case <-w.done:
		}
	}
	return ErrClosed
}

// Wake implements Link.
func (w *Waiter) Wake() {
	w.woken.Store(true)
	w.look()
}

func (w *Waiter) look() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// Closed reports whether Shut was called.
func (w *Waiter) Closed() bool { return w.closed.Load() }

// Shut ends Wait. It fails with ErrClosed from the second call on.
func (w *Waiter) Shut() error {
	if w.closed.Swap(true) {
		return ErrClosed
	}
	close(w.done)
	return nil
}

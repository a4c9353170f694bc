package rsocket

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// deadline is a time from which calls fail. Its zero value is none.
type deadline struct {
	over atomic.Bool // it has passed

	mu     sync.Mutex // guards the fields below, and changes of over
	timer  *time.Timer
	at     time.Time     // on the monotonic clock; zero for none
	passed chan struct{} // closed when over becomes true; nil until somebody asks for it
}

// set moves the deadline. The zero time takes it away.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop() // if it fires all the same, fire looks at the time
	}
	d.at = time.Time{}
	if t.IsZero() {
		d.renew()
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		d.expire()
		return
	}
	d.renew()
	d.at = time.Now().Add(wait)
	if d.timer == nil {
		d.timer = time.AfterFunc(wait, d.fire)
	} else {
		d.timer.Reset(wait)
	}
}

// within makes a call of a side, which fails when ctx ends. The side is of no use then.
func within(ctx context.Context, s *side, call func() error) error {
	stop := context.AfterFunc(ctx, func() { s.deadline.set(time.Unix(1, 0)) })
	err := call()
	if !stop() {
		return context.Cause(ctx)
	}
	return err
}

// renew makes a deadline that had passed one that has not.
func (d *deadline) renew() {
	if d.over.Load() {
		d.over.Store(false)
		d.passed = nil
	}
}

func (d *deadline) fire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.at.IsZero() && time.Until(d.at) <= 0 {
		d.expire()
	}
}

func (d *deadline) expire() {
	if !d.over.Swap(true) && d.passed != nil {
		close(d.passed)
	}
}

// done returns a channel that is closed when the deadline has passed. If the deadline is moved before,
// the channel goes by the new one.
func (d *deadline) done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.passed == nil {
		d.passed = make(chan struct{})
		if d.over.Load() {
			close(d.passed)
		}
	}
	return d.passed
}

package hca

import (
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// failing tells somebody who has asked, once, that the QP has failed.
type failing struct{ notify func(error) } // or nil

// tell calls notify without q.mu, which the caller holds.
func (e *failing) tell(d *Device, cause error) {
	if f := e.notify; f != nil {
		e.notify = nil
		d.background(func() { f(cause) })
	}
}

// NotifyError implements verbs.ProviderEnd.
func (q *qp) NotifyError(f func(cause error)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.failing.notify = f
	if q.t.State() == verbs.QPStateErr {
		q.failing.tell(q.dev, q.t.Failure())
	}
}

// Err implements verbs.ProviderEnd.
func (q *qp) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.t.Failure()
}

// SetKeepAlive implements verbs.ProviderKeepAlive.
func (q *qp) SetKeepAlive(period time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.ErrClosed
	}
	now := q.dev.now()
	if err := q.t.SetKeepAlive(now, period); err != nil {
		return err
	}
	q.transmit(now) // which sets the timer
	return nil
}

package hca

import (
	"context"
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

// maxEvents bounds the asynchronous events that wait for NextEvent. Beyond it the oldest go.
const maxEvents = 4096

// events is the queue of asynchronous events.
type events struct {
	mu      sync.Mutex
	queue   []verbs.AsyncEvent
	closed  bool
	changed chan struct{} // closed and made anew at every change that somebody waits for
}

func (e *events) add(ev verbs.AsyncEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == maxEvents {
		e.queue = e.queue[1:]
	}
	e.queue = append(e.queue, ev)
	e.signal()
}

func (e *events) signal() {
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.signal()
}

func (e *events) next(ctx context.Context) (verbs.AsyncEvent, error) {
	for {
		e.mu.Lock()
		if len(e.queue) > 0 {
			ev := e.queue[0]
			e.queue = e.queue[1:]
			e.mu.Unlock()
			return ev, nil
		}
		if e.closed {
			e.mu.Unlock()
			return verbs.AsyncEvent{}, verbs.ErrClosed
		}
		if e.changed == nil {
			e.changed = make(chan struct{})
		}
		changed := e.changed
		e.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return verbs.AsyncEvent{}, ctx.Err()
		}
	}
}

// drop forgets the events of a QP or CQ that is destroyed.
func (e *events) drop(of func(verbs.AsyncEvent) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	kept := e.queue[:0]
	for _, ev := range e.queue {
		if !of(ev) {
			kept = append(kept, ev)
		}
	}
	e.queue = kept
}

package queue

import (
	"context"
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

// maxEvents bounds the asynchronous events that wait for Next. Beyond it the oldest are dropped.
const maxEvents = 4096

// Events is the feed of a device's asynchronous events.
type Events struct {
	mu      sync.Mutex
	queue   []verbs.AsyncEvent
	closed  bool
	changed chan struct{} // closed at the next change; nil while nobody waits
}

// Add raises an event.
func (e *Events) Add(ev verbs.AsyncEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == maxEvents {
		e.queue = e.queue[1:]
	}
	e.queue = append(e.queue, ev)
	e.signal()
}

func (e *Events) signal() {
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// Close makes Next return verbs.ErrClosed once no event is left.
func (e *Events) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.signal()
}

// Next waits for an event. Of several waiters one gets it.
func (e *Events) Next(ctx context.Context) (verbs.AsyncEvent, error) {
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

// Drop forgets the events of an object that is destroyed.
func (e *Events) Drop(of func(verbs.AsyncEvent) bool) {
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

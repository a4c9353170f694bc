package hca

import (
	"sync"
	"sync/atomic"
	"time"
)

// turns are the QPs of an engine that have more to send than one turn allows, in the order in which
// they get their next turn.
type turns struct {
	n atomic.Int32 // how many, for a look without the lock

	mu    sync.Mutex
	queue []*qp
	last  []*qp // empty: the memory of the latest round, for the next
}

func (t *turns) due() bool { return t.n.Load() > 0 }

// queue queues q, which has a path, for another turn. The caller holds q.mu.
func (q *qp) queue() {
	if q.queued {
		return
	}
	q.queued = true
	e := q.out.eng
	t := &e.turns
	t.mu.Lock()
	t.queue = append(t.queue, q)
	t.n.Store(int32(len(t.queue)))
	t.mu.Unlock()
	if e.sleepUntil.Load() != 0 {
		e.link.Wake()
	}
}

// serveTurns gives one turn to every QP that is queued for one. The caller holds e.rx.
// late says that what waited for a poll has waited in vain.
func (e *engine) serveTurns(now time.Duration, late bool) {
	t := &e.turns
	if !t.due() {
		return
	}
	t.mu.Lock()
	round := t.queue
	t.queue, t.last = t.last, nil
	t.n.Store(0)
	t.mu.Unlock()
	for i, q := range round {
		q.mu.Lock()
		q.queued = false
		if late && q.gather.waits {
			q.gather.late(now)
		}
		if !q.closed {
			q.transmitBy(&e.batch, now)
		}
		q.mu.Unlock()
		round[i] = nil
	}
	t.mu.Lock()
	t.last = round[:0]
	t.mu.Unlock()
}

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

// add puts a QP behind the others.
func (t *turns) add(q *qp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = append(t.queue, q)
	t.n.Store(int32(len(t.queue)))
}

// round takes out the QPs that wait now. The caller hands the list back to finish.
func (t *turns) round() []*qp {
	t.mu.Lock()
	defer t.mu.Unlock()
	round := t.queue
	t.queue, t.last = t.last, nil
	t.n.Store(0)
	return round
}

// finish takes back the memory of a round.
func (t *turns) finish(round []*qp) {
	clear(round)
	t.mu.Lock()
	t.last = round[:0]
	t.mu.Unlock()
}

// queue queues q, which has a path, for another turn. The caller holds q.mu.
func (q *qp) queue() {
	if q.queued {
		return
	}
	q.queued = true
	e := q.out.eng
	e.turns.add(q)
	if e.near.inbox.Leave() {
		return
	}
	if e.sleepUntil.Load() != 0 {
		e.link.Wake()
	}
}

// turn is called when the engine has taken q out of the queue. It sends by the caller's batch. late is serveTurns'.
func (q *qp) turn(b *batch, now time.Duration, late bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queued = false
	if late && q.gather.waits {
		q.gather.late(now)
	}
	if !q.closed {
		q.transmitBy(b, now)
	}
}

// serveTurns gives one turn to every QP that is queued for one. The caller holds e.rx.
// late says whether the delay of posts has ended without a poll.
func (e *engine) serveTurns(now time.Duration, late bool) {
	if !e.turns.due() {
		return
	}
	round := e.turns.round()
	for _, q := range round {
		q.turn(&e.batch, now, late)
	}
	e.turns.finish(round)
}

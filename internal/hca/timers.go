package hca

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/transport"
)

// timers hold the QPs of an engine that wait for a timeout, the earliest first. A QP whose timeout
// moves to later keeps its place, and is called too early. An early call is cheaper than a move with
// each acknowledgement.
type timers struct {
	next atomic.Int64 // the earliest, in ns; never when there is none

	mu sync.Mutex
	q  timerHeap
}

const never = int64(transport.Never)

type timerHeap []*qp

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].timer.at < h[j].timer.at }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer.place, h[j].timer.place = i, j
}
func (h *timerHeap) Push(v any) {
	q := v.(*qp)
	q.timer.place = len(*h)
	*h = append(*h, q)
}
func (h *timerHeap) Pop() any {
	old := *h
	q := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	q.timer.place = -1
	return q
}

// qpTimer is a QP's place among the timers; timers.mu guards it.
type qpTimer struct {
	at    time.Duration
	place int
}

// set makes q due at the given time, unless it is due earlier.
func (t *timers) set(q *qp, at time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case q.timer.place < 0:
		q.timer.at = at
		heap.Push(&t.q, q)
	case at < q.timer.at:
		q.timer.at = at
		heap.Fix(&t.q, q.timer.place)
	}
	t.next.Store(int64(t.q[0].timer.at))
}

// due takes out a QP whose time has come. It returns nil if there is none.
func (t *timers) due(now time.Duration) *qp {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.q) == 0 || t.q[0].timer.at > now {
		return nil
	}
	q := heap.Pop(&t.q).(*qp)
	t.storeNext()
	return q
}

func (t *timers) remove(q *qp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q.timer.place >= 0 {
		heap.Remove(&t.q, q.timer.place)
		t.storeNext()
	}
}

func (t *timers) storeNext() {
	next := never
	if len(t.q) > 0 {
		next = int64(t.q[0].timer.at)
	}
	t.next.Store(next)
}

// setTimer is called after every change of q's timeout, while q has a path. The caller holds q.mu.
func (q *qp) setTimer() {
	at := int64(q.t.NextTimeout())
	if at >= q.timerAt {
		return // the timers call early enough
	}
	q.timerAt = at
	e := q.out.eng
	e.timers.set(q, time.Duration(at))
	if at < e.sleepUntil.Load() {
		e.link.Wake()
	}
}

// dropTimer takes q, which has a path, out of the timers. The caller holds q.mu.
func (q *qp) dropTimer() {
	q.out.eng.timers.remove(q)
	q.timerAt = never
}

// timeout is called when the timers have taken q out. It sends by the caller's batch.
func (q *qp) timeout(b *batch, now time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.timerAt = never
	if q.closed {
		return
	}
	if q.t.NextTimeout() <= now {
		q.t.HandleTimeout(now)
		if q.migrating {
			q.takeAlternate()
		}
	}
	q.transmitBy(b, now)
}

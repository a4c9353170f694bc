package fault

import (
	"container/heap"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// A Queue holds datagrams between sender and receiver. Those that are delayed or held are late, and ordered by the
// time at which they arrive. Those that have arrived are ready, in order. A Queue copies datagrams, and uses the
// copies again. It has no lock: its owner guards the queue together with the paths that lead to it.
type Queue struct {
	limit   int           // on the number of ready datagrams; 0 is none
	busy    time.Duration // when Faults.Rate has let everything through
	dropped uint64

	ready []*parcel // a ring of count parcels, from head on
	head  int
	count int
	bytes int // of the payloads of ready

	late lateHeap
	seq  uint64 // of the parcel that became late last

	lent []*parcel // handed out by the latest Pop
	free []*parcel
}

// A parcel is a queue's copy of a datagram.
type parcel struct {
	d    link.Datagram // Payload is the copy
	due  time.Duration
	seq  uint64
	slot int   // in the heap of late parcels
	path *Path // the path that holds the datagram, or nil
	to   way
}

// A way is the rest of a datagram's route.
type way struct {
	path  *Path   // of the datagram
	ports []*Port // still to pass
}

// NewQueue returns a queue that drops arriving datagrams while limit datagrams are ready; 0 sets no limit.
func NewQueue(limit int) *Queue { return &Queue{limit: limit} }

// Len returns the number of datagrams in the queue, late and ready.
func (q *Queue) Len() int { return q.count + len(q.late) }

// Dropped returns the number of datagrams that arrived when the queue was full.
func (q *Queue) Dropped() uint64 { return q.dropped }

// Next returns when a datagram can be popped, 0 if one is ready. It reports false if the queue is
// empty.
func (q *Queue) Next() (time.Duration, bool) {
	if q.count > 0 {
		return 0, true
	}
	if len(q.late) > 0 {
		return q.late[0].due, true
	}
	return 0, false
}

// Push adds a datagram that arrives now.
func (q *Queue) Push(d *link.Datagram) {
	if q.full() {
		q.drop()
		return
	}
	q.arrive(q.copy(d, way{}))
}

// full reports whether a datagram that arrives is dropped.
func (q *Queue) full() bool { return q.limit > 0 && q.count >= q.limit }

// drop counts a datagram that arrived when the queue was full.
func (q *Queue) drop() { q.dropped++ }

// Late reports whether there are late datagrams, which need Arrive.
func (q *Queue) Late() bool { return len(q.late) > 0 }

// Arrive makes the late datagrams ready that are due.
func (q *Queue) Arrive(now time.Duration) {
	for len(q.late) > 0 && q.late[0].due <= now {
		p := heap.Pop(&q.late).(*parcel)
		if p.path != nil {
			p.path.forget(p)
		}
		if len(p.to.ports) > 0 {
			q.hop(p, p.due)
			continue
		}
		if q.full() {
			q.drop()
			q.free = append(q.free, p)
			continue
		}
		q.arrive(p)
	}
}

// Pop moves ready datagrams into batch. Their payloads are valid until the next call.
func (q *Queue) Pop(batch []link.Datagram) int {
	for n := len(q.lent) - 1; n >= 0; n-- { // to append all at once takes longer for one
		q.free = append(q.free, q.lent[n])
	}
	q.lent = q.lent[:0]
	n := min(len(batch), q.count)
	for i := range n {
		p := q.ready[q.head]
		q.head = (q.head + 1) & (len(q.ready) - 1)
		batch[i] = p.d
		q.lent = append(q.lent, p)
		q.bytes -= len(p.d.Payload)
	}
	q.count -= n
	return n
}

// Clear empties the queue, and makes paths forget the datagrams that they hold of it. Payloads that Pop has returned
// stay valid.
func (q *Queue) Clear() {
	for _, p := range q.late {
		if p.path != nil {
			p.path.forget(p)
		}
	}
	*q = Queue{limit: q.limit, dropped: q.dropped, busy: q.busy}
}

// copy returns a copy of a datagram, which has the rest of a way before it.
func (q *Queue) copy(d *link.Datagram, to way) *parcel {
	var p *parcel
	if n := len(q.free); n > 0 {
		p = q.free[n-1]
		q.free = q.free[:n-1]
	} else {
		p = new(parcel)
	}
	payload := append(p.d.Payload[:0], d.Payload...)
	*p = parcel{d: *d, to: to}
	p.d.Payload = payload
	return p
}

func (q *Queue) arrive(p *parcel) {
	if q.count == len(q.ready) {
		q.grow()
	}
	q.ready[(q.head+q.count)&(len(q.ready)-1)] = p
	q.count++
	q.bytes += len(p.d.Payload)
}

func (q *Queue) grow() {
	ring := make([]*parcel, max(64, 2*len(q.ready))) // a power of two
	for i := range q.count {
		ring[i] = q.ready[(q.head+i)&(len(q.ready)-1)]
	}
	q.ready, q.head = ring, 0
}

// backlog returns how many bytes wait for f.Rate and for the receiver.
func (q *Queue) backlog(f *Faults, now time.Duration) int {
	n := q.bytes
	if f.Rate > 0 && q.busy > now {
		n += int((q.busy - now).Seconds() * float64(f.Rate))
	}
	return n
}

// through sends n more bytes through at f.Rate, and returns when they are through.
func (q *Queue) through(f *Faults, now time.Duration, n int) time.Duration {
	q.busy = max(q.busy, now) + time.Duration(float64(n)/float64(f.Rate)*float64(time.Second))
	return q.busy
}

// pushLate adds a parcel that arrives at due.
func (q *Queue) pushLate(p *parcel, due time.Duration) {
	q.seq++
	p.seq = q.seq
	p.due = due
	heap.Push(&q.late, p)
}

// advance makes a late parcel arrive at due, behind the parcels that are due at that time already.
func (q *Queue) advance(p *parcel, due time.Duration) {
	q.seq++
	p.seq = q.seq
	p.due = due
	heap.Fix(&q.late, p.slot)
}

// lateHeap is a heap.Interface. The first parcel is the one that is due first or, of several, was
// added first.
type lateHeap []*parcel

func (h lateHeap) Len() int { return len(h) }

func (h lateHeap) Less(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].seq < h[j].seq
}

func (h lateHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i, j
}

func (h *lateHeap) Push(x any) {
	p := x.(*parcel)
	p.slot = len(*h)
	*h = append(*h, p)
}

func (h *lateHeap) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}

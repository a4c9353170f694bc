package queue

import (
	"math/bits"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/release"
	"github.com/adverb-rdma/adverb/verbs"
)

// RecvQueue is the receive queue of one QP: a ring. Places are counted from the last Reset on. Those
// before freed are free; those before taken, in use or done; those before posted, waiting.
//
// Any goroutine may post. Take, Complete, Enter and Flush are called by one at a time.
type RecvQueue struct {
	pd     *mem.PD
	recvs  []Recv // a power of two
	sges   []verbs.SGE
	maxSGE int32
	state  verbs.QPState // of the QP; mu guards it
	posted atomic.Uint64
	taken  atomic.Uint64

	mu    release.Mutex  // held while posting, and while the state changes
	freed *atomic.Uint64 // set by polling; a new one after each RESET, which old completions must not touch

	source verbs.RecvSource // of receives that nobody posts, or nil; set before the first
}

// SetSource has the queue take its receives from a source. It is called before the queue has a receive.
func (q *RecvQueue) SetSource(s verbs.RecvSource) { q.source = s }

// pull posts what the source has, and reports whether a receive waits now.
func (q *RecvQueue) pull() bool {
	if q.source == nil {
		return false
	}
	q.source.Pull(func(wrs []verbs.RecvWR) int {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.post(wrs)
	})
	return q.taken.Load() != q.posted.Load()
}

// RingSize returns the number of places in the ring of a work queue that has to hold n: the next power of two.
func RingSize(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}

// NewRecvQueue makes a queue for cap.MaxRecvWR receives, which is of RingSize. Its QP is in RESET.
func NewRecvQueue(pd *mem.PD, cap verbs.QPCap) *RecvQueue {
	return &RecvQueue{
		pd:     pd,
		recvs:  make([]Recv, cap.MaxRecvWR),
		sges:   make([]verbs.SGE, cap.MaxRecvWR*cap.MaxRecvSGE),
		maxSGE: int32(cap.MaxRecvSGE),
		freed:  new(atomic.Uint64),
	}
}

// Enter takes note of another state of the QP. RESET forgets all receives, without completions.
//
// State and receives have one lock. So a receive that is posted while the QP goes to ERR is there for the Flush that
// follows Enter, or else Post tells its caller of ERR.
func (q *RecvQueue) Enter(state verbs.QPState) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.state = state
	if state == verbs.QPStateReset {
		q.posted.Store(0)
		q.taken.Store(0)
		q.freed = new(atomic.Uint64)
	}
}

// Post adds receives until one does not fit, and returns how many it has added, and the QP's state at that moment. In
// ERR the caller flushes them. In RESET none is added, and the error is verbs.ErrState.
func (q *RecvQueue) Post(wrs []verbs.RecvWR) (n int, state verbs.QPState, err error) {
	q.mu.Lock()
	if state = q.state; state != verbs.QPStateReset {
		n = q.post(wrs)
	}
	q.mu.Unlock()
	switch {
	case state == verbs.QPStateReset:
		err = verbs.Errorf(verbs.ErrState, "the QP is in QPS_RESET: receives can be posted from INIT on") // IBTA C10-97.2.1
	case n < len(wrs):
		err = verbs.Errorf(verbs.ErrQueueFull, "the receive queue is full: %d work requests are in it (max_recv_wr), "+
			"of which %d wait for messages; poll the receive CQ, which frees the others", len(q.recvs), q.Credits())
	}
	return n, state, err
}

// post is Post under q.mu.
func (q *RecvQueue) post(wrs []verbs.RecvWR) int {
	freed, posted := q.freed.Load(), q.posted.Load()
	for i := range wrs {
		if posted-freed >= uint64(len(q.recvs)) {
			return i
		}
		at := int(posted) & (len(q.recvs) - 1)
		r := &q.recvs[at]
		r.place = posted
		r.setUp(q.pd, q.sges[at*int(q.maxSGE):][:0:q.maxSGE])
		r.fill(&wrs[i])
		posted++
		release.Store(&q.posted, posted) // Take may have it now
	}
	return len(wrs)
}

// Take returns the oldest waiting receive, or nil. The receive is the caller's until Complete.
func (q *RecvQueue) Take() *Recv {
	taken := q.taken.Load()
	if taken == q.posted.Load() && !q.pull() {
		return nil
	}
	release.Store(&q.taken, taken+1)
	return &q.recvs[int(taken)&(len(q.recvs)-1)]
}

// TakeFor is Take for a message of n bytes. It leaves a receive that is shorter where it is, and reports that.
func (q *RecvQueue) TakeFor(n uint32) (r *Recv, short bool) {
	taken := q.taken.Load()
	if (taken != q.posted.Load() || q.pull()) && q.recvs[int(taken)&(len(q.recvs)-1)].Length < n {
		return nil, true
	}
	return q.Take(), false
}

// Complete gives back a receive that is done. It returns the counter of free places that a poll of
// the receive's completion must set, and its value.
func (q *RecvQueue) Complete(r *Recv) (slots *atomic.Uint64, freed uint64) {
	return q.freed, r.place + 1
}

// Flush takes all waiting receives of a QP that has entered ERR, and returns their completions with WCFlushErr.
func (q *RecvQueue) Flush(qpn verbs.QPN, user *verbs.QP) []CQE {
	var flushed []CQE
	for r := q.Take(); r != nil; r = q.Take() {
		slots, freed := q.Complete(r)
		flushed = append(flushed, CQE{
			WC:        verbs.WC{ID: r.ID, Status: verbs.WCFlushErr, Op: verbs.WCRecv, QPN: qpn, QP: user},
			Solicited: true, Slots: slots, Freed: freed,
		})
	}
	return flushed
}

// Credits returns how many receives are waiting.
func (q *RecvQueue) Credits() int {
	taken := q.taken.Load() // first: posted never falls behind it
	n := int(q.posted.Load() - taken)
	if q.source != nil {
		n += q.source.Waiting()
	}
	return n
}

// RecvLook is a receive that waits for a message.
type RecvLook struct {
	ID     uint64
	Length uint32
}

// Look returns the receives that wait, the oldest first, for those who show a queue. Nobody may take one meanwhile.
func (q *RecvQueue) Look() (list []RecvLook) {
	for at := q.taken.Load(); at != q.posted.Load(); at++ {
		r := &q.recvs[int(at)&(len(q.recvs)-1)]
		list = append(list, RecvLook{r.ID, r.Length})
	}
	return list
}

package hca

import (
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/verbs"
)

// recvQueue is a ring of posted receives. Places are counted: those before freed are free,
// before taken in use or done, before posted waiting.
type recvQueue struct {
	mu     sync.Mutex
	wqes   []transport.RecvWQE // a power of two
	sges   []verbs.SGE
	maxSGE int

	posted, taken uint64
	freed         *atomic.Uint64 // set by polling; anew after each RESET, which old completions must not touch
}

func newRecvQueue(cap verbs.QPCap) recvQueue {
	return recvQueue{
		wqes:   make([]transport.RecvWQE, cap.MaxRecvWR),
		sges:   make([]verbs.SGE, cap.MaxRecvWR*cap.MaxRecvSGE),
		maxSGE: cap.MaxRecvSGE,
		freed:  new(atomic.Uint64),
	}
}

func (r *recvQueue) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.posted, r.taken, r.freed = 0, 0, new(atomic.Uint64)
}

// post adds receives until one does not fit.
func (r *recvQueue) post(wrs []verbs.RecvWR) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	freed := r.freed.Load()
	for i := range wrs {
		if r.posted-freed >= uint64(len(r.wqes)) {
			return i, verbs.Errorf(verbs.ErrQueueFull, "the receive queue is full: %d work requests are in it (max_recv_wr), "+
				"of which %d wait for messages; poll the receive CQ, which frees the others", len(r.wqes), r.posted-r.taken)
		}
		wr := &wrs[i]
		place := int(r.posted) & (len(r.wqes) - 1)
		w := &r.wqes[place]
		w.Index = r.posted
		w.SGList = r.sges[place*r.maxSGE:][:0:r.maxSGE]
		putRecv(w, wr)
		r.posted++
	}
	return len(wrs), nil
}

// putRecv copies a receive into its place, whose SGList has room for it.
func putRecv(w *transport.RecvWQE, wr *verbs.RecvWR) {
	w.ID = wr.ID
	w.SGList = append(w.SGList[:0], wr.SGList...)
	total := uint64(0)
	for i := range wr.SGList {
		total += uint64(wr.SGList[i].Length)
	}
	w.Length = uint32(min(total, verbs.MaxMessageSize))
}

// take returns the oldest waiting receive, or nil.
func (r *recvQueue) take() *transport.RecvWQE {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken == r.posted {
		return nil
	}
	w := &r.wqes[int(r.taken)&(len(r.wqes)-1)]
	r.taken++
	return w
}

func (r *recvQueue) waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int(r.posted - r.taken)
}

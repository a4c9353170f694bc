//go:build linux

package uverbs

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// receives are the receives of a QP or an SRQ. The program posts them into a ring without a call, so nobody hears of them
// until a message needs one: receives is the source that the receive queue asks.
type receives struct {
	mu    sync.Mutex // while the ring is another, and while elements are taken
	ring  *ring      // nil once the queue is destroyed, of which the device may still ask
	elem  []byte
	wrs   []verbs.RecvWR
	sges  []verbs.SGE
	limit int // SGEs in one receive
}

// pullAtOnce is how many receives are taken in one go.
const pullAtOnce = 16

func newReceives(a *area, n, sges int) (*receives, error) {
	sges = max(1, sges)
	r, err := newRing(a, n, uapi.RecvWQESize+uapi.SGESize*sges)
	if err != nil {
		return nil, err
	}
	return &receives{ring: r, elem: make([]byte, r.elem), wrs: make([]verbs.RecvWR, pullAtOnce), sges: make([]verbs.SGE, pullAtOnce*sges), limit: sges}, nil
}

// Waiting implements verbs.RecvSource.
func (r *receives) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring == nil {
		return 0
	}
	return r.ring.waiting()
}

// drop gives the ring back.
func (r *receives) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring != nil {
		r.ring.drop()
		r.ring = nil
	}
}

// Pull implements verbs.RecvSource. A receive that says that it has more SGEs than the ring has room for has as many as
// there is room for.
func (r *receives) Pull(add func([]verbs.RecvWR) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring == nil {
		return
	}
	for n := r.ring.waiting(); n > 0; {
		k := min(n, pullAtOnce)
		for i := range k {
			var w uapi.RecvWQE
			r.ring.take(r.elem)
			w.Decode(r.elem)
			r.wrs[i] = verbs.RecvWR{ID: w.WRID, SGList: appendSGEs(r.sges[i*r.limit:i*r.limit:(i+1)*r.limit], r.elem[uapi.RecvWQESize:], min(int(w.NumSGE), r.limit))}
		}
		added := add(r.wrs[:k])
		for range k - added {
			r.ring.untake()
		}
		r.ring.freeTaken()
		if added < k {
			return
		}
		n -= k
	}
}

// move moves the receives that wait into another ring.
func (r *receives) move(to *ring) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.ring.waiting()
	if n > to.cap() {
		to.drop()
		return unix.EINVAL
	}
	for range n {
		r.ring.take(r.elem)
		copy(to.at(to.own), r.elem)
		to.publish()
	}
	to.rewind()
	r.ring.drop()
	r.ring = to
	return nil
}

// appendSGEs appends the n SGEs that b begins with.
func appendSGEs(s []verbs.SGE, b []byte, n int) []verbs.SGE {
	for i := range n {
		e := uapi.SGEAt(b, i)
		s = append(s, verbs.SGE{Addr: e.Addr, Length: e.Length, LKey: verbs.LKey(e.LKey)})
	}
	return s
}

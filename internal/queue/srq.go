package queue

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/verbs"
)

// SRQ is a shared receive queue. The messages of all its QPs take receives in the order of posting,
// and complete them in any order.
type SRQ struct {
	pd           *mem.PD
	limitReached func() // raises the event

	mu     sync.Mutex
	attr   verbs.SRQAttr
	places int     // allocated
	free   []*Recv // not posted
	posted []*Recv // a ring
	first  int
	count  int
	closed bool
	source verbs.RecvSource // of receives that nobody posts, or nil
}

// SetRecvSource implements verbs.ProviderRecvSource.
func (s *SRQ) SetRecvSource(src verbs.RecvSource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.source = src
}

// NewSRQ makes a queue of attr.MaxWR receives of attr.MaxSGE SGEs. It calls limitReached, under its
// lock, when fewer receives are waiting than the armed limit.
func NewSRQ(pd *mem.PD, attr verbs.SRQAttr, limitReached func()) *SRQ {
	attr.MaxSGE = max(1, attr.MaxSGE)
	s := &SRQ{pd: pd, attr: attr, limitReached: limitReached}
	s.grow(attr.MaxWR)
	return s
}

// grow makes room for n receives. Those that are in use stay where they are.
func (s *SRQ) grow(n int) {
	more := n - s.places
	if more <= 0 {
		return
	}
	recvs := make([]Recv, more)
	sges := make([]verbs.SGE, more*s.attr.MaxSGE)
	for i := range recvs {
		recvs[i].setUp(s.pd, sges[i*s.attr.MaxSGE:][:0:s.attr.MaxSGE])
		s.free = append(s.free, &recvs[i])
	}
	ring := make([]*Recv, n)
	for i := range s.count {
		ring[i] = s.posted[(s.first+i)%len(s.posted)]
	}
	s.posted, s.first, s.places = ring, 0, n
}

// Query implements verbs.ProviderSRQ.
func (s *SRQ) Query() (verbs.SRQAttr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attr, nil
}

// Modify implements verbs.ProviderSRQ.
func (s *SRQ) Modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mask&verbs.SRQMaskMaxWR != 0 {
		if attr.MaxWR < s.count {
			return verbs.Errorf(verbs.ErrBusy, "max_wr %d: %d receives are posted", attr.MaxWR, s.count)
		}
		if err := HoldsSRQ(verbs.SRQAttr{MaxWR: attr.MaxWR, MaxSGE: s.attr.MaxSGE}); err != nil {
			return err
		}
		s.grow(attr.MaxWR)
		s.attr.MaxWR = attr.MaxWR
	}
	if mask&verbs.SRQMaskLimit != 0 {
		s.attr.Limit = attr.Limit
		s.checkLimit()
	}
	return nil
}

// checkLimit raises the event of the limit, once. The caller holds s.mu.
func (s *SRQ) checkLimit() {
	n := s.count
	if s.source != nil {
		n += s.source.Waiting()
	}
	if n < s.attr.Limit {
		s.attr.Limit = 0
		s.limitReached()
	}
}

// PostRecv implements verbs.ProviderSRQ.
func (s *SRQ) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.post(wrs)
}

// post is PostRecv under s.mu.
func (s *SRQ) post(wrs []verbs.RecvWR) (int, error) {
	if s.closed {
		return 0, verbs.ErrClosed
	}
	for i := range wrs {
		wr := &wrs[i]
		if len(wr.SGList) > s.attr.MaxSGE {
			return i, verbs.Errorf(verbs.ErrLimit, "work request %d of the list: %d SGEs: the SRQ was created for %d (max_sge)",
				i, len(wr.SGList), s.attr.MaxSGE)
		}
		if len(s.free) == 0 || s.count >= s.attr.MaxWR {
			return i, verbs.Errorf(verbs.ErrQueueFull, "work request %d of the list: the SRQ is full: %d receives wait for messages (max_wr)",
				i, s.count)
		}
		r := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		r.fill(wr)
		s.posted[(s.first+s.count)%len(s.posted)] = r
		s.count++
	}
	return len(wrs), nil
}

// Close implements verbs.ProviderSRQ.
func (s *SRQ) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.posted, s.free, s.count = nil, nil, 0
	return nil
}

// take returns the oldest receive, or nil. It leaves one of fewer than n bytes where it is, and reports that.
func (s *SRQ) take(n uint32) (r *Recv, short bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.source != nil {
		s.source.Pull(func(wrs []verbs.RecvWR) int {
			n, _ := s.post(wrs)
			return n
		})
	}
	if s.count == 0 {
		return nil, false
	}
	if r = s.posted[s.first]; r.Length < n {
		return nil, true
	}
	s.first = (s.first + 1) % len(s.posted)
	s.count--
	s.checkLimit()
	return r, false
}

// putBack makes a receive the oldest again.
func (s *SRQ) putBack(r *Recv) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.first = (s.first + len(s.posted) - 1) % len(s.posted)
	s.posted[s.first] = r
	s.count++
}

// release frees the place of a receive that is complete.
func (s *SRQ) release(r *Recv) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, r)
}

// SRQUser is one QP's access to a shared receive queue. It has the receives that the QP has taken
// and not completed. Its methods are called by one goroutine at a time.
type SRQUser struct {
	SRQ   *SRQ
	taken []*Recv
}

// Take returns the oldest waiting receive, or nil. The receive is the caller's until Complete.
func (u *SRQUser) Take() *Recv {
	r, _ := u.TakeFor(0)
	return r
}

// TakeFor is Take for a message of n bytes. It leaves a receive that is shorter to the others, and reports that.
func (u *SRQUser) TakeFor(n uint32) (r *Recv, short bool) {
	if r, short = u.SRQ.take(n); r != nil {
		u.taken = append(u.taken, r)
	}
	return r, short
}

// Complete gives back a receive that is done. The place of a shared receive is free at once, so its
// completion frees nothing.
func (u *SRQUser) Complete(r *Recv) (slots *atomic.Uint64, freed uint64) {
	u.taken = slices.DeleteFunc(u.taken, func(t *Recv) bool { return t == r })
	u.SRQ.release(r)
	return nil, 0
}

// Credits returns -1: no QP can count on a number of shared receives.
func (u *SRQUser) Credits() int { return -1 }

// Reset puts back the receives that the QP has taken, in the order of posting.
func (u *SRQUser) Reset() {
	for _, r := range slices.Backward(u.taken) {
		u.SRQ.putBack(r)
	}
	u.taken = u.taken[:0]
}

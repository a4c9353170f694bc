package hca

import (
	"sync"

	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/verbs"
)

// srq is a shared receive queue: receives are taken in the order of posting, by the messages of
// all its QPs in the order in which they come, and completed in any order.
type srq struct {
	dev  *Device
	pd   *pd
	user *verbs.SRQ

	mu     sync.Mutex
	attr   verbs.SRQAttr
	places int                  // allocated
	free   []*transport.RecvWQE // not posted
	posted []*transport.RecvWQE // a ring
	first  int
	count  int
	closed bool
}

// CreateSRQ implements verbs.ProviderPD.
func (p *pd) CreateSRQ(attr verbs.SRQAttr, user *verbs.SRQ) (verbs.ProviderSRQ, error) {
	if !p.dev.take(&p.dev.srqs, maxSRQ) {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d SRQs (max_srq)", maxSRQ)
	}
	attr.MaxSGE = max(1, attr.MaxSGE)
	s := &srq{dev: p.dev, pd: p, user: user, attr: attr}
	s.grow(attr.MaxWR)
	return s, nil
}

// grow makes room for n receives. Those that are in use stay where they are.
func (s *srq) grow(n int) {
	more := n - s.places
	if more <= 0 {
		return
	}
	wqes := make([]transport.RecvWQE, more)
	sges := make([]verbs.SGE, more*s.attr.MaxSGE)
	for i := range wqes {
		wqes[i].SGList = sges[i*s.attr.MaxSGE:][:0:s.attr.MaxSGE]
		s.free = append(s.free, &wqes[i])
	}
	ring := make([]*transport.RecvWQE, n)
	for i := range s.count {
		ring[i] = s.posted[(s.first+i)%len(s.posted)]
	}
	s.posted, s.first, s.places = ring, 0, n
}

// Query implements verbs.ProviderSRQ.
func (s *srq) Query() (verbs.SRQAttr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attr, nil
}

// Modify implements verbs.ProviderSRQ.
func (s *srq) Modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mask&verbs.SRQMaskMaxWR != 0 {
		if attr.MaxWR < s.count {
			return verbs.Errorf(verbs.ErrBusy, "max_wr %d: %d receives are posted", attr.MaxWR, s.count)
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
func (s *srq) checkLimit() {
	if s.count < s.attr.Limit {
		s.attr.Limit = 0
		s.dev.events.add(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: s.user})
	}
}

// PostRecv implements verbs.ProviderSRQ.
func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
		w := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		putRecv(w, wr)
		s.posted[(s.first+s.count)%len(s.posted)] = w
		s.count++
	}
	return len(wrs), nil
}

// take returns the oldest receive, or nil.
func (s *srq) take() *transport.RecvWQE {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == 0 {
		return nil
	}
	w := s.posted[s.first]
	s.first = (s.first + 1) % len(s.posted)
	s.count--
	s.checkLimit()
	return w
}

// putBack makes a receive the oldest again.
func (s *srq) putBack(w *transport.RecvWQE) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first = (s.first + len(s.posted) - 1) % len(s.posted)
	s.posted[s.first] = w
	s.count++
}

// release frees the place of a receive that is complete.
func (s *srq) release(w *transport.RecvWQE) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, w)
}

func (s *srq) Close() error {
	s.mu.Lock()
	s.closed = true
	s.posted, s.free = nil, nil
	s.mu.Unlock()
	s.dev.srqs.Add(-1)
	s.dev.events.drop(func(e verbs.AsyncEvent) bool { return e.SRQ == s.user })
	return nil
}

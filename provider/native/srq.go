//go:build linux && (amd64 || arm64)

package native

import (
	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// srq is a shared receive queue.
type srq struct {
	d    *device
	user *verbs.SRQ
	r    ibv.Ref[ibv.SRQ]
	rq   recvQueue
	sges int
	cq   *cq // of an XRC SRQ, or nil
}

// CreateSRQ implements verbs.ProviderPD.
func (p *pd) CreateSRQ(a verbs.SRQAttr, user *verbs.SRQ) (verbs.ProviderSRQ, error) {
	r, err := p.d.lib.CreateSRQ(p.r, ibv.SRQAttr{MaxWR: uint32(a.MaxWR), MaxSGE: uint32(a.MaxSGE)})
	if err != nil {
		return nil, fault(err)
	}
	s, err := p.newSRQ(r, a, user, nil)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// newSRQ returns our side of an SRQ that C has made, which has a CQ if it is an XRC SRQ.
func (p *pd) newSRQ(r ibv.Ref[ibv.SRQ], a verbs.SRQAttr, user *verbs.SRQ, c *cq) (*srq, error) {
	d := p.d
	s := &srq{d: d, user: user, r: r, sges: a.MaxSGE, cq: c}
	if now, err := d.lib.QuerySRQ(r); err == nil {
		s.sges = max(s.sges, int(now.MaxSGE))
	}
	var err error
	if s.rq.mem, err = ibv.NewSRQQueue(r, s.sges); err != nil {
		_ = d.lib.DestroySRQ(r) // the first error is the one to tell
		return nil, fault(err)
	}
	s.rq.least = d.quirks.least(true)
	d.srqs.put(r, s)
	return s, nil
}

// Query implements verbs.ProviderSRQ.
func (s *srq) Query() (verbs.SRQAttr, error) {
	a, err := s.d.lib.QuerySRQ(s.r)
	return verbs.SRQAttr{MaxWR: int(a.MaxWR), MaxSGE: int(a.MaxSGE), Limit: int(a.SRQLimit)}, fault(err)
}

// Modify implements verbs.ProviderSRQ.
func (s *srq) Modify(a verbs.SRQAttr, mask verbs.SRQAttrMask) error {
	s.rq.mu.Lock() // a driver may move the queue
	defer s.rq.mu.Unlock()
	return fault(s.d.lib.ModifySRQ(s.r, ibv.SRQAttr{MaxWR: uint32(a.MaxWR), MaxSGE: uint32(a.MaxSGE), SRQLimit: uint32(a.Limit)}, uint32(mask)))
}

// PostRecv implements verbs.ProviderSRQ.
func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if err := s.d.usable(); err != nil {
		return 0, err
	}
	for i := range wrs {
		if len(wrs[i].SGList) > s.sges {
			n, err := s.rq.post(wrs[:i])
			if err == nil {
				err = verbs.Errorf(verbs.ErrLimit, "%d SGEs: the queue was created for %d (max_sge)", len(wrs[i].SGList), s.sges)
			}
			return n, err
		}
	}
	return s.rq.post(wrs)
}

// Close implements verbs.ProviderSRQ.
func (s *srq) Close() error {
	s.d.srqs.remove(s.r)
	s.rq.mu.Lock()
	defer s.rq.mu.Unlock()
	if s.cq != nil {
		s.cq.keep() // what drivers would drop
	}
	if err := s.d.destroyed(s.d.lib.DestroySRQ(s.r)); err != nil {
		s.d.srqs.put(s.r, s)
		return fault(err)
	}
	s.rq.close()
	s.d.events.Drop(func(e verbs.AsyncEvent) bool { return e.SRQ == s.user })
	return nil
}

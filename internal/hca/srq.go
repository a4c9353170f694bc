package hca

import (
	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// srq is a shared receive queue of the device.
type srq struct {
	*queue.SRQ
	dev  *Device
	user *verbs.SRQ
}

// CreateSRQ implements verbs.ProviderPD.
func (p *pd) CreateSRQ(attr verbs.SRQAttr, user *verbs.SRQ) (verbs.ProviderSRQ, error) {
	if err := queue.HoldsSRQ(attr); err != nil {
		return nil, err
	}
	d := p.dev
	if !limits.Take(&d.srqs, limits.MaxSRQ) {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d SRQs (max_srq)", limits.MaxSRQ)
	}
	limitReached := func() { d.event(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: user}) }
	return &srq{SRQ: queue.NewSRQ(p.PD, attr, limitReached), dev: d, user: user}, nil
}

func (s *srq) Close() error {
	err := s.SRQ.Close()
	s.dev.srqs.Add(-1)
	s.dev.events.Drop(func(e verbs.AsyncEvent) bool { return e.SRQ == s.user })
	return err
}

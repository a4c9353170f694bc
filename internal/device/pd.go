package device

import (
	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// PD is a protection domain. Its memory is that of package mem.
type PD struct {
	*mem.PD
	base *Base
}

// NewPD makes a PD, which counts against the limit until Close.
func (b *Base) NewPD() (PD, error) {
	if !limits.Take(&b.PDs, limits.MaxPD) {
		return PD{}, verbs.Errorf(verbs.ErrLimit, "the device has its %d PDs (max_pd)", limits.MaxPD)
	}
	return PD{b.Keys.NewPD(), b}, nil
}

// Close implements verbs.ProviderPD.
func (p *PD) Close() error {
	p.base.PDs.Add(-1)
	return nil
}

// SRQ is a shared receive queue.
type SRQ struct {
	*queue.SRQ
	base *Base
	user *verbs.SRQ
}

// CreateSRQ implements verbs.ProviderPD.
func (p *PD) CreateSRQ(attr verbs.SRQAttr, user *verbs.SRQ) (verbs.ProviderSRQ, error) {
	if err := queue.HoldsSRQ(attr); err != nil {
		return nil, err
	}
	b := p.base
	if !limits.Take(&b.SRQs, limits.MaxSRQ) {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d SRQs (max_srq)", limits.MaxSRQ)
	}
	limitReached := func() { b.Raise(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: user}) }
	return &SRQ{SRQ: queue.NewSRQ(p.PD, attr, limitReached), base: b, user: user}, nil
}

// CreateXRCSRQ is CreateSRQ for an SRQ of an XRC domain.
func (p *PD) CreateXRCSRQ(attr verbs.SRQAttr, user *verbs.SRQ) (*SRQ, error) {
	s, err := p.CreateSRQ(attr, user)
	if err != nil {
		return nil, err
	}
	return s.(*SRQ), nil
}

// Close implements verbs.ProviderSRQ.
func (s *SRQ) Close() error {
	err := s.SRQ.Close()
	s.base.SRQs.Add(-1)
	s.base.events.Drop(func(e verbs.AsyncEvent) bool { return e.SRQ == s.user })
	return err
}

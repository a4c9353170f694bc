package queue

import (
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/mem"
)

// XRCDomain has the SRQs of an XRC domain, by their numbers.
type XRCDomain struct {
	mu   sync.RWMutex
	srqs map[uint32]xrcSRQ
}

// xrcSRQ is an XRC SRQ, and the CQ of its completions.
type xrcSRQ struct {
	*SRQ
	cq *CQ
}

// Add gives the domain an SRQ of a number that it does not have.
func (d *XRCDomain) Add(n uint32, s *SRQ, cq *CQ) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.srqs == nil {
		d.srqs = map[uint32]xrcSRQ{}
	}
	d.srqs[n] = xrcSRQ{s, cq}
}

// Remove takes an SRQ away. A QP of the domain may use it until its lock has been held once more.
func (d *XRCDomain) Remove(n uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.srqs, n)
}

// get returns an SRQ, which has none if there is none of the number.
func (d *XRCDomain) get(n uint32) xrcSRQ {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.srqs[n]
}

// XRCUser is the access of one target QP to the SRQs of its domain. It has one receive at most that was taken and is not
// complete: that of the message under way. Its methods are called by one goroutine at a time.
type XRCUser struct {
	Domain *XRCDomain

	number  uint32
	named   xrcSRQ // by the latest request
	taken   *Recv
	from    uint32 // the number of the SRQ of taken
	fromSRQ xrcSRQ
	to      []*CQ // of the completions that CQ has not returned; nil for an SRQ that is closed
}

var _ Receives = (*XRCUser)(nil)

// Name implements transport.XRC.
func (u *XRCUser) Name(n uint32) *mem.PD {
	s := u.Domain.get(n)
	if s.SRQ == nil {
		return nil
	}
	u.number, u.named = n, s
	return s.pd
}

// Take implements Receives.
func (u *XRCUser) Take() *Recv {
	r, _ := u.TakeFor(0)
	return r
}

// TakeFor implements Receives.
func (u *XRCUser) TakeFor(n uint32) (r *Recv, short bool) {
	if u.named.SRQ == nil {
		return nil, false
	}
	if r, short = u.named.take(n); r != nil {
		u.taken, u.from, u.fromSRQ = r, u.number, u.named
	}
	return r, short
}

// Complete implements Receives. The completion belongs to the CQ that the next call of CQ returns.
func (u *XRCUser) Complete(r *Recv) (slots *atomic.Uint64, freed uint64) {
	u.fromSRQ.release(r)
	to := u.fromSRQ.cq
	if u.Domain.get(u.from).SRQ != u.fromSRQ.SRQ {
		to = nil
	}
	u.to = append(u.to, to)
	u.taken, u.fromSRQ = nil, xrcSRQ{}
	return nil, 0
}

// Credits implements Receives: no peer can count on a number of shared receives.
func (u *XRCUser) Credits() int { return -1 }

// CQ returns the CQ of the oldest completion that Complete was called for, and forgets it. It is nil if the SRQ has been
// closed: then nobody takes the completion.
func (u *XRCUser) CQ() *CQ {
	to := u.to[0]
	u.to = u.to[:copy(u.to, u.to[1:])]
	return to
}

// Reset puts the receive of the message under way back.
func (u *XRCUser) Reset() {
	if u.taken != nil {
		u.fromSRQ.putBack(u.taken)
	}
	u.taken, u.named, u.fromSRQ, u.to = nil, xrcSRQ{}, xrcSRQ{}, u.to[:0]
}

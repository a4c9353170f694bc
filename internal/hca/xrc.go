package hca

import (
	"io"
	"os"
	"slices"
	"sync"

	"github.com/adverb-rdma/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/idtable"
	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// xrc has the XRC domains of a device that is open. A kernel would have those of all processes: here a target's packets come
// to the device that has made it, and no other has the memory.
type xrc struct {
	mu      sync.Mutex
	named   []*xrcDomain // by files
	domains int          // open handles
	next    uint32       // the number of the next SRQ
	inUse   map[uint32]bool
}

// xrcDomain is an XRC domain. The mutex of xrc guards the fields, but srqs has its own.
type xrcDomain struct {
	dev   *Device
	file  os.FileInfo // or nil
	hold  io.Closer   // keeps the file, or nil
	users int         // handles
	srqs  queue.XRCDomain
	cqs   map[*cq]int        // of the SRQs, by how many
	qps   map[uint32]*target // by their numbers
}

// target is a target QP of a domain, and the handles of it.
type target struct {
	q       *qp
	handles []*verbs.QP
}

// xrcd is a handle of a domain.
type xrcd struct {
	*xrcDomain
}

// xrcSRQ is an XRC SRQ.
type xrcSRQ struct {
	*device.SRQ
	domain *xrcDomain
	num    uint32
	cq     *cq
}

// targetHandle is a handle of a target QP.
type targetHandle struct {
	*qp
	domain *xrcDomain
	user   *verbs.QP
}

var (
	_ verbs.ProviderXRC  = (*Device)(nil)
	_ verbs.ProviderXRCD = (*xrcd)(nil)
	_ verbs.ProviderQP   = (*targetHandle)(nil)
	_ verbs.ProviderSRQ  = (*xrcSRQ)(nil)
)

// OpenXRCD implements verbs.ProviderXRC.
func (d *Device) OpenXRCD(attr verbs.XRCDAttr) (verbs.ProviderXRCD, error) {
	var file os.FileInfo
	if attr.File != nil {
		var err error
		if file, err = attr.File.Stat(); err != nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, "File: %w", err)
		}
	}
	return d.xrc.open(d, attr, file)
}

// open returns a handle of a domain.
func (x *xrc) open(d *Device, attr verbs.XRCDAttr, file os.FileInfo) (verbs.ProviderXRCD, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.domains == limits.MaxXRCD {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d XRC domains", limits.MaxXRCD)
	}
	var found *xrcDomain
	if i := slices.IndexFunc(x.named, func(o *xrcDomain) bool { return file != nil && os.SameFile(o.file, file) }); i >= 0 {
		found = x.named[i]
	}
	switch {
	case found != nil && attr.Exclusive:
		return nil, verbs.Errorf(verbs.ErrBusy, "file %s has an XRC domain already, and Exclusive is set", attr.File.Name())
	case found == nil && file != nil && !attr.Create:
		return nil, verbs.Errorf(verbs.ErrNotFound, "file %s has no XRC domain of this device: set Create to make one. Domains of others who have "+
			"opened the device, in this process or another, cannot be opened: packets to their QPs come to them", attr.File.Name())
	case found == nil:
		found = &xrcDomain{dev: d, file: file, cqs: map[*cq]int{}, qps: map[uint32]*target{}}
		if file != nil {
			var err error
			if found.hold, err = holdFile(attr.File); err != nil {
				return nil, verbs.Errorf(verbs.ErrLimit, "keep file %s open for the XRC domain: %w", attr.File.Name(), err)
			}
			x.named = append(x.named, found)
		}
	}
	found.users++
	x.domains++
	return &xrcd{found}, nil
}

// close ends a handle of a domain.
func (x *xrc) close(h *xrcDomain) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.domains--
	if h.users--; h.users == 0 {
		x.named = slices.DeleteFunc(x.named, func(o *xrcDomain) bool { return o == h })
		if h.hold != nil {
			h.hold.Close()
		}
	}
}

// Close implements verbs.ProviderXRCD.
func (h *xrcd) Close() error {
	h.dev.xrc.close(h.xrcDomain)
	return nil
}

// CreateSRQ implements verbs.ProviderXRCD.
func (h *xrcd) CreateSRQ(p verbs.ProviderPD, c verbs.ProviderCQ, attr verbs.SRQAttr, user *verbs.SRQ) (verbs.ProviderSRQ, verbs.SRQN, error) {
	s, err := p.(*pd).CreateXRCSRQ(attr, user)
	if err != nil {
		return nil, 0, err
	}
	x, to := &h.dev.xrc, c.(*cq)
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.number(h.dev)
	h.addSRQ(n, s.SRQ, to)
	return &xrcSRQ{SRQ: s, domain: h.xrcDomain, num: n, cq: to}, verbs.SRQN(n), nil
}

// addSRQ adds an SRQ. The caller holds the lock.
func (h *xrcDomain) addSRQ(n uint32, s *queue.SRQ, to *cq) {
	h.srqs.Add(n, s, to.CQ.CQ)
	h.cqs[to]++
	for _, t := range h.qps {
		to.attach(t.q)
	}
}

// removeSRQ takes an SRQ away, and returns the QPs that may use it still. The caller holds the lock.
func (h *xrcDomain) removeSRQ(n uint32, of *cq) (qps []*qp) {
	h.srqs.Remove(n)
	for _, t := range h.qps {
		qps = append(qps, t.q)
		of.detach(t.q)
	}
	if h.cqs[of]--; h.cqs[of] == 0 {
		delete(h.cqs, of)
	}
	return qps
}

// eachCQ calls f for the CQ of each SRQ. The caller holds the lock.
func (h *xrcDomain) eachCQ(f func(*cq)) {
	for c, n := range h.cqs {
		for range n {
			f(c)
		}
	}
}

// opened and closed take note of a handle of the target. closed reports whether it was the last.
func (t *target) opened(user *verbs.QP) { t.handles = append(t.handles, user) }

func (t *target) closed(user *verbs.QP) (last bool) {
	t.handles = slices.DeleteFunc(t.handles, func(u *verbs.QP) bool { return u == user })
	return len(t.handles) == 0
}

// number returns a free number of an SRQ. There are fewer SRQs than numbers. The caller holds x.mu.
func (x *xrc) number(d *Device) uint32 {
	if x.inUse == nil {
		x.inUse, x.next = map[uint32]bool{}, d.Random32()
	}
	for {
		n := x.next & wire.MaxQPN
		x.next++
		if n != 0 && !x.inUse[n] {
			x.inUse[n] = true
			return n
		}
	}
}

// Close implements verbs.ProviderSRQ. When it returns, no QP uses the SRQ: messages under way to it are refused.
func (s *xrcSRQ) Close() error {
	h, x := s.domain, &s.domain.dev.xrc
	x.mu.Lock()
	qps := h.removeSRQ(s.num, s.cq)
	delete(x.inUse, s.num)
	x.mu.Unlock()
	for _, q := range qps {
		q.isClosed() // which takes the lock: whoever has found the SRQ has it
	}
	return s.SRQ.Close()
}

// CreateQP implements verbs.ProviderXRCD.
func (h *xrcd) CreateQP(attr *verbs.ProviderQPInitAttr, user *verbs.QP) (verbs.ProviderQP, error) {
	d, x := h.dev, &h.dev.xrc // targets are of the first shard: the CQs of their SRQs may be of any
	if !limits.Take(&d.qpCount, limits.MaxQP) {
		return nil, numberError(idtable.ErrFull)
	}
	own := d.newCQ() // never polled: no send queue, and the receives are those of SRQs
	if err := own.Init(&d.Base, verbs.CQAttr{Entries: 1}, nil, queue.CQHooks{Progress: own.progress, Overrun: func(bool) {}, Now: d.now}); err != nil {
		d.qpCount.Add(-1)
		return nil, err
	}
	attr.Cap = verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}
	q := &qp{dev: d, pd: &pd{dev: d}, user: user, typ: attr.Type, receives: device.NewXRCReceives(&h.srqs), schedule: newSchedule(), sendCQ: own, recvCQ: own,
		shard: d.shards[0], target: h.xrcDomain}
	if err := q.shard.qps.Add(q, func(n uint32) { q.number(n, attr) }); err != nil {
		d.qpCount.Add(-1)
		own.Close()
		return nil, numberError(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	h.qps[q.num] = &target{q, []*verbs.QP{user}}
	q.sendCQ.attach(q)
	q.recvCQ.attach(q)
	h.eachCQ(func(c *cq) { c.attach(q) })
	return &targetHandle{q, h.xrcDomain, user}, nil
}

// OpenQP implements verbs.ProviderXRCD.
func (h *xrcd) OpenQP(n verbs.QPN, user *verbs.QP) (verbs.ProviderQP, error) {
	x := &h.dev.xrc
	x.mu.Lock()
	defer x.mu.Unlock()
	t := h.qps[uint32(n)]
	if t == nil {
		return nil, verbs.Errorf(verbs.ErrNotFound, "the XRC domain has no target QP %v", n)
	}
	t.opened(user)
	return &targetHandle{t.q, h.xrcDomain, user}, nil
}

// Close implements verbs.ProviderQP. The last handle closes the QP.
func (t *targetHandle) Close() error {
	h, x := t.domain, &t.dev.xrc
	x.mu.Lock()
	last := h.qps[t.num].closed(t.user)
	if last {
		delete(h.qps, t.num)
		h.eachCQ(func(c *cq) { c.detach(t.qp) })
	}
	x.mu.Unlock()
	if !last {
		t.dev.DropQP(t.user)
		return nil
	}
	err := t.qp.Close()
	t.sendCQ.Close()
	return err
}

// users returns the handles of a QP that are told of its events.
func (q *qp) users() []*verbs.QP {
	if q.target == nil {
		return []*verbs.QP{q.user}
	}
	x := &q.dev.xrc
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := q.target.qps[q.num]; t != nil {
		return slices.Clone(t.handles)
	}
	return nil
}

// completeXRC puts completions of a target into the CQs of its SRQs.
func (q *qp) completeXRC(done []queue.CQE) {
	for i := range done {
		if to := q.receives.XRC().CQ(); to != nil {
			to.Push(done[i : i+1])
		}
	}
}

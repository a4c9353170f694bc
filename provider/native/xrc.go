//go:build linux && (amd64 || arm64)

package native

import (
	"errors"
	"slices"
	"sync"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// xrcd is an XRC domain.
type xrcd struct {
	d *device
	r ibv.Ref[ibv.XRCD]
}

var (
	_ verbs.ProviderXRC  = (*device)(nil)
	_ verbs.ProviderXRCD = (*xrcd)(nil)
)

// OpenXRCD implements verbs.ProviderXRC. The kernel knows the domains of all processes by their files.
func (d *device) OpenXRCD(a verbs.XRCDAttr) (verbs.ProviderXRCD, error) {
	flags := 0
	if a.Create || a.File == nil {
		flags |= syscall.O_CREAT
	}
	if a.Exclusive {
		flags |= syscall.O_EXCL
	}
	x := &xrcd{d: d}
	open := func(fd int) (err error) {
		x.r, err = d.lib.OpenXRCD(d.c, fd, flags)
		return err
	}
	var err error
	if a.File == nil {
		err = open(-1)
	} else {
		conn, cerr := a.File.SyscallConn()
		if cerr != nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, "File: %w", cerr)
		}
		if cerr := conn.Control(func(fd uintptr) { err = open(int(fd)) }); cerr != nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, "File: %w", cerr)
		}
	}
	switch {
	case err == nil:
		return x, nil
	case errors.Is(err, syscall.EAGAIN) && !a.Create: // the kernel's word for it
		return nil, verbs.Errorf(verbs.ErrNotFound, "%w: file %s has no XRC domain: set Create to make one", err, a.File.Name())
	case errors.Is(err, syscall.EINVAL) && a.Exclusive:
		return nil, verbs.Errorf(verbs.ErrBusy, "%w: file %s has an XRC domain already, and Exclusive is set", err, a.File.Name())
	}
	return nil, fault(err)
}

// Close implements verbs.ProviderXRCD.
func (x *xrcd) Close() error { return fault(x.d.destroyed(x.d.lib.CloseXRCD(x.r))) }

// CreateSRQ implements verbs.ProviderXRCD.
func (x *xrcd) CreateSRQ(in verbs.ProviderPD, c verbs.ProviderCQ, a verbs.SRQAttr, user *verbs.SRQ) (verbs.ProviderSRQ, verbs.SRQN, error) {
	d, p, to := x.d, in.(*pd), c.(*cq)
	r, err := d.lib.CreateXRCSRQ(x.r, p.r, to.r, ibv.SRQAttr{MaxWR: uint32(a.MaxWR), MaxSGE: uint32(a.MaxSGE)})
	if err != nil {
		return nil, 0, fault(err)
	}
	n, err := d.lib.SRQNum(r)
	if err != nil {
		_ = d.lib.DestroySRQ(r) // the first error is the one to tell
		return nil, 0, fault(err)
	}
	s, err := p.newSRQ(r, a, user, to)
	if err != nil {
		return nil, 0, err
	}
	return s, verbs.SRQN(n), nil
}

// CreateQP implements verbs.ProviderXRCD.
func (x *xrcd) CreateQP(a *verbs.ProviderQPInitAttr, user *verbs.QP) (verbs.ProviderQP, error) {
	x.d.closing.RLock()
	defer x.d.closing.RUnlock()
	r, err := x.d.lib.CreateXRCTarget(x.r)
	if err != nil {
		return nil, fault(err)
	}
	a.Cap = verbs.QPCap{}
	return x.d.newTarget(r, user), nil
}

// OpenQP implements verbs.ProviderXRCD.
func (x *xrcd) OpenQP(n verbs.QPN, user *verbs.QP) (verbs.ProviderQP, error) {
	x.d.closing.RLock()
	defer x.d.closing.RUnlock()
	r, err := x.d.lib.OpenXRCTarget(x.r, uint32(n))
	switch {
	case errors.Is(err, syscall.EINVAL):
		return nil, verbs.Errorf(verbs.ErrNotFound, "%w: the XRC domain has no target QP %v", err, n)
	case err != nil:
		return nil, fault(err)
	}
	return x.d.newTarget(r, user), nil
}

// newTarget returns our side of a handle of a target. The caller holds closing.
func (d *device) newTarget(r ibv.Ref[ibv.QP], user *verbs.QP) *qp {
	q := &qp{d: d, user: user, r: r, qpn: verbs.QPN(r.P().QPNum), typ: verbs.QPTypeXRCRecv}
	d.targets.opened(&d.qpns, q)
	d.qps.put(r, q)
	return q
}

// keepXRC takes the completions of all XRC SRQs out of C's hands: those of a target may be in any.
func (d *device) keepXRC() {
	var cqs []*cq
	d.srqs.each(func(s *srq) {
		if s.cq != nil && !slices.Contains(cqs, s.cq) {
			cqs = append(cqs, s.cq)
		}
	})
	for _, c := range cqs {
		c.keep()
	}
}

// targets are the handles of targets. Those of one target have one number: completions name the one that was opened first, of those
// that are open.
type targets struct {
	mu      sync.Mutex
	handles map[verbs.QPN][]*qp
}

// opened adds a handle.
func (t *targets) opened(n *numbers, q *qp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.handles == nil {
		t.handles = map[verbs.QPN][]*qp{}
	}
	t.handles[q.qpn] = append(t.handles[q.qpn], q)
	n.put(uint32(q.qpn), t.handles[q.qpn][0])
}

// closed takes a handle away.
func (t *targets) closed(n *numbers, q *qp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := slices.DeleteFunc(t.handles[q.qpn], func(o *qp) bool { return o == q })
	if len(left) == 0 {
		delete(t.handles, q.qpn)
		n.remove(uint32(q.qpn), q)
		return
	}
	t.handles[q.qpn] = left
	n.put(uint32(q.qpn), left[0])
}

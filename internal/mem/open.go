package mem

import (
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// The kinds of faults of an access, for protocols that tell the peer which it was. Each is
// verbs.ErrInvalid too. A key that leads nowhere is verbs.ErrNotFound.
var (
	ErrDomain = fmt.Errorf("another protection domain: %w", verbs.ErrInvalid)
	ErrAccess = fmt.Errorf("access right missing: %w", verbs.ErrInvalid)
	ErrBounds = fmt.Errorf("out of bounds: %w", verbs.ErrInvalid)
)

// Open opens the n bytes at va of the region or window that a peer's key names. qpn is the QP that
// asks, and p its protection domain. The error names the fault of the key, the bytes or the access.
// The caller releases the span.
func (p *PD) Open(key verbs.RKey, qpn verbs.QPN, va, n uint64, need verbs.Access) (Span, error) {
	return p.open(nil, key, qpn, va, n, need)
}

// open is Open, or that of k.
func (p *PD) open(k *Keeper, key verbs.RKey, qpn verbs.QPN, va, n uint64, need verbs.Access) (Span, error) {
	e := p.keys.table.Get(uint32(key) >> keyBits)
	switch {
	case e == nil:
		return Span{}, noRegion(uint32(key))
	case e.window != nil:
		return e.window.open(p, key, qpn, va, n, need)
	case e.region.rkey == key:
		return p.openRegion(k, e.region, uint32(key), va, n, need)
	case e.region.lkey == verbs.LKey(key):
		return Span{}, verbs.Errorf(verbs.ErrNotFound, "key %v is the lkey of a memory region: a peer needs its rkey", key)
	}
	return Span{}, noRegion(uint32(key))
}

// OpenWhole opens the whole region that a peer's key names. It is Open otherwise, but that no window has such rights.
func (p *PD) OpenWhole(key verbs.RKey, need verbs.Access) (Span, error) {
	e := p.keys.table.Get(uint32(key) >> keyBits)
	if e == nil || e.region == nil || e.region.rkey != key {
		return Span{}, noRegion(uint32(key))
	}
	return p.openRegion(nil, e.region, uint32(key), e.region.base, uint64(len(e.region.buf)), need)
}

// openLocal is Open for an SGE, whose key must be a region's lkey.
func (p *PD) openLocal(k *Keeper, key verbs.LKey, va, n uint64, need verbs.Access) (Span, error) {
	e := p.keys.table.Get(uint32(key) >> keyBits)
	if e != nil && e.region != nil && e.region.lkey == key {
		return p.openRegion(k, e.region, uint32(key), va, n, need)
	}
	return Span{}, notLocal(e, key)
}

// notLocal explains why key, by which e was found, or nil, is no region's lkey.
func notLocal(e *entry, key verbs.LKey) error {
	switch {
	case e == nil:
	case e.region == nil:
		return verbs.Errorf(verbs.ErrNotFound, "key %v is a memory window's: an SGE needs the lkey of a memory region", key)
	case e.region.rkey == verbs.RKey(key):
		return verbs.Errorf(verbs.ErrNotFound, "key %v is the rkey of a memory region: an SGE needs the lkey, %v", key, e.region.lkey)
	}
	return noRegion(uint32(key))
}

// OpenSGE opens the memory of an SGE, which is filled if need is verbs.AccessLocalWrite, and read if it is 0. The
// caller releases the span.
func (p *PD) OpenSGE(e *verbs.SGE, need verbs.Access) (Span, error) {
	return p.openOne(nil, e, need)
}

// openOne is OpenSGE, or that of k.
func (p *PD) openOne(k *Keeper, e *verbs.SGE, need verbs.Access) (Span, error) {
	s, err := p.openLocal(k, e.LKey, e.Addr, uint64(e.Length), need)
	tellUse(s.Bytes(), need) // none after an error
	return s, err
}

// tellUse tells the race detector of an access to the program's memory: see tellRead.
func tellUse(b []byte, need verbs.Access) {
	if need == 0 {
		tellRead(b)
	} else {
		tellWrite(b)
	}
}

func noRegion(key uint32) error {
	return verbs.Errorf(verbs.ErrNotFound, "key %#08x: no such memory region: was it deregistered, or the key mangled?", key)
}

// openRegion opens bytes of a region, which key, its lkey or its rkey, has led to. k may be nil.
func (p *PD) openRegion(k *Keeper, r *Region, key uint32, va, n uint64, need verbs.Access) (Span, error) {
	kept := k.keeps(r)
	if !kept && !r.hold() {
		return Span{}, noRegion(key)
	}
	b, ok := r.lets(p, va, n, need)
	switch {
	case ok:
	case kept:
		return Span{}, r.refuse(p, key, va, n, need)
	default:
		err := r.refuse(p, key, va, n, need)
		r.release()
		return Span{}, err
	}
	s := spanOf(r, b, r.guard)
	if kept || k.take(r) {
		s.region = nil
	}
	return s, nil
}

// lets returns n bytes of a region that stays in place, if p may use them so.
func (r *Region) lets(p *PD, va, n uint64, need verbs.Access) (b []byte, ok bool) {
	if r.pd != p || r.access&need != need {
		return nil, false
	}
	return r.slice(va, n)
}

// refuse explains why p cannot open bytes of a region that is held.
func (r *Region) refuse(p *PD, key uint32, va, n uint64, need verbs.Access) error {
	switch {
	case r.pd != p:
		return verbs.Errorf(ErrDomain, "key %#08x: the memory region belongs to another PD than the QP", key)
	case r.access&need != need:
		if r.access == 0 {
			return verbs.Errorf(ErrAccess, "key %#08x: the memory region has no access flags, and %v is needed", key, need)
		}
		return verbs.Errorf(ErrAccess, "key %#08x: the memory region has %v, and %v is needed", key, r.access, need)
	}
	return verbs.Errorf(ErrBounds, "key %#08x: bytes [%#x, %#x) are outside the memory region, [%#x, %#x)",
		key, va, va+n, r.base, r.base+uint64(len(r.buf)))
}

// Gather fills dst from the memory that a scatter/gather list names, from byte off of it on. Bytes
// beyond the list's end are left as they are.
func (p *PD) Gather(dst []byte, sg []verbs.SGE, off uint32) error { return p.gather(nil, dst, sg, off) }

// gather is Gather, or that of k.
func (p *PD) gather(k *Keeper, dst []byte, sg []verbs.SGE, off uint32) error {
	whole := len(dst)
	for i := range sg {
		if len(dst) == 0 {
			return nil
		}
		s, n, err := p.openSGE(k, sg, i, &off, len(dst), 0)
		if err != nil {
			return err
		}
		if n > 0 {
			tellRead(s.Bytes()[:n])
			if n == whole {
				err = k.Fetch(s, dst)
			} else {
				err = s.Fetch(dst[:n])
			}
			s.Release()
			if err != nil {
				return err
			}
			dst = dst[n:]
		}
	}
	return nil
}

// Scatter stores src in the memory that a scatter/gather list names, from byte off of it on. The
// memory needs local write access.
func (p *PD) Scatter(sg []verbs.SGE, off uint32, src []byte) error {
	return p.scatter(nil, sg, off, src, false)
}

// scatter is Scatter, or that of k, or ScatterShared.
func (p *PD) scatter(k *Keeper, sg []verbs.SGE, off uint32, src []byte, shared bool) error {
	for i := range sg {
		if len(src) == 0 {
			return nil
		}
		s, n, err := p.openSGE(k, sg, i, &off, len(src), verbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		if n > 0 {
			tellWrite(s.Bytes()[:n])
			if shared {
				err = s.PlaceShared(src[:n])
			} else {
				err = s.Place(src[:n])
			}
			s.Release()
			if err != nil {
				return err
			}
			src = src[n:]
		}
	}
	return nil
}

// OpenList opens the n bytes from byte off of a scatter/gather list on, and appends their spans to dst. need is
// verbs.AccessLocalWrite for memory that is to be filled, and 0 for memory that is read. After an error
// nothing of the list is open. The caller releases the spans.
func (p *PD) OpenList(dst []Span, sg []verbs.SGE, off, n uint32, need verbs.Access) ([]Span, error) {
	before := len(dst)
	left := int(n)
	for i := range sg {
		if left == 0 {
			break
		}
		s, got, err := p.openSGE(nil, sg, i, &off, left, need)
		if err != nil {
			for _, s := range dst[before:] {
				s.Release()
			}
			return dst[:before], err
		}
		if got > 0 {
			tellUse(s.Bytes()[:got], need)
			dst = append(dst, s)
			left -= got
		}
	}
	return dst, nil
}

// openSGE opens the part of SGE i that begins at byte off of the list's rest, limit bytes at most. It
// lowers off by the bytes over which it passes. n is 0 where off lies behind the SGE, and the span is
// then none.
func (p *PD) openSGE(k *Keeper, sg []verbs.SGE, i int, off *uint32, limit int, need verbs.Access) (s Span, n int, err error) {
	e := &sg[i]
	if *off >= e.Length {
		*off -= e.Length
		return Span{}, 0, nil
	}
	n = min(int(e.Length-*off), limit)
	s, err = p.openLocal(k, e.LKey, e.Addr+uint64(*off), uint64(n), need)
	if err != nil {
		return Span{}, 0, verbs.Errorf(err, "SGE %d: %v", i, err)
	}
	*off = 0
	return s, n, nil
}

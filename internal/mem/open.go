package mem

import "github.com/adverb-rdma/adverb/verbs"

// Open opens the n bytes at va of the region or window that a peer's key names. qpn is the QP that
// asks, and p its protection domain. The error says what is wrong with the key, the bytes or the
// access. The caller releases the span.
func (p *PD) Open(key verbs.RKey, qpn verbs.QPN, va, n uint64, need verbs.Access) (Span, error) {
	e := p.keys.table.Get(uint32(key) >> keyBits)
	if e != nil && e.window != nil {
		return e.window.open(p, key, qpn, va, n, need)
	}
	return p.openRegion(e, uint32(key), va, n, need)
}

// openLocal is Open for an SGE, whose key must be a region's.
func (p *PD) openLocal(key verbs.LKey, va, n uint64, need verbs.Access) (Span, error) {
	return p.openRegion(p.keys.table.Get(uint32(key)>>keyBits), uint32(key), va, n, need)
}

func (p *PD) openRegion(e *entry, key uint32, va, n uint64, need verbs.Access) (Span, error) {
	if e == nil || e.region == nil || e.region.key != key || !e.region.hold() {
		return Span{}, verbs.Errorf(verbs.ErrNotFound, "key %#08x: no such memory region: was it deregistered, or the key mangled?", key)
	}
	r := e.region
	b, inside := r.slice(va, n)
	switch {
	case r.pd != p:
		r.release()
		return Span{}, verbs.Errorf(verbs.ErrInvalid, "key %#08x: the memory region belongs to another PD than the QP", key)
	case r.access&need != need:
		r.release()
		return Span{}, verbs.Errorf(verbs.ErrInvalid, "key %#08x: the memory region has %v, and %v is needed", key, r.access, need)
	case !inside:
		r.release()
		return Span{}, verbs.Errorf(verbs.ErrInvalid, "key %#08x: bytes [%#x, %#x) are outside the memory region, [%#x, %#x)",
			key, va, va+n, r.base, r.base+uint64(len(r.buf)))
	}
	return Span{r, b}, nil
}

// Gather fills dst from the memory that a scatter/gather list names, from byte off of it on. Bytes
// beyond the list's end are left as they are.
func (p *PD) Gather(dst []byte, sg []verbs.SGE, off uint32) error {
	for i := range sg {
		if len(dst) == 0 {
			return nil
		}
		s, n, err := p.openSGE(sg, i, &off, len(dst), 0)
		if err != nil {
			return err
		}
		if n > 0 {
			s.Fetch(dst[:n])
			s.Release()
			dst = dst[n:]
		}
	}
	return nil
}

// Scatter stores src in the memory that a scatter/gather list names, from byte off of it on. The
// memory needs local write access.
func (p *PD) Scatter(sg []verbs.SGE, off uint32, src []byte) error {
	for i := range sg {
		if len(src) == 0 {
			return nil
		}
		s, n, err := p.openSGE(sg, i, &off, len(src), verbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		if n > 0 {
			s.Place(src[:n])
			s.Release()
			src = src[n:]
		}
	}
	return nil
}

// openSGE opens the part of SGE i that begins at byte off of the list's rest, limit bytes at most. It
// lowers off by what it passes over. n is 0 where off lies behind the SGE, and the span is then none.
func (p *PD) openSGE(sg []verbs.SGE, i int, off *uint32, limit int, need verbs.Access) (s Span, n int, err error) {
	e := &sg[i]
	if *off >= e.Length {
		*off -= e.Length
		return Span{}, 0, nil
	}
	n = min(int(e.Length-*off), limit)
	s, err = p.openLocal(e.LKey, e.Addr+uint64(*off), uint64(n), need)
	if err != nil {
		return Span{}, 0, verbs.Errorf(err, "SGE %d: %v", i, err)
	}
	*off = 0
	return s, n, nil
}

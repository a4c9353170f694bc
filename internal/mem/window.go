package mem

import (
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/verbs"
)

// Window is a memory window. It has an entry of its own in the table of keys. The entry's index stays;
// the lowest 8 bits of the key change with each binding.
type Window struct {
	entry entry // in the table of keys
	pd    *PD
	typ   verbs.MWType

	bound atomic.Pointer[binding]

	mu       sync.Mutex // held while bound, key, promised or closed change
	key      uint32
	promised uint32 // type 1: the key that the latest bind has taken or is going to take
	closed   bool
}

var _ verbs.ProviderMW = (*Window)(nil)

// binding is the memory that a window opens, and for which access. It does not change.
type binding struct {
	region *Region
	key    verbs.RKey
	base   uint64 // virtual address of the window's first byte
	off    uint64 // offset of the same byte in the region
	length uint64
	access verbs.Access
	qpn    verbs.QPN // type 2: the only QP that the window serves
}

// setKey takes the first key.
func (w *Window) setKey(index, random uint32) {
	w.key = index<<keyBits | random&(1<<keyBits-1)
	w.promised = w.key
}

// RKey returns the window's present key.
func (w *Window) RKey() verbs.RKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.typ == verbs.MWType1 {
		return verbs.RKey(w.promised)
	}
	return verbs.RKey(w.key)
}

// Promise gives a bind of a window of type 1 its key, when it is posted. The program tells its peer the key before
// the bind is carried out (ibv_bind_mw).
func Promise(b *verbs.MWBind) {
	w := b.MW.Provider().(*Window)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.typ == verbs.MWType1 {
		w.promised = uint32(verbs.IncRKey(verbs.RKey(w.promised)))
		b.RKey = verbs.RKey(w.promised)
	}
}

// Close takes the window and its key away. Spans that were opened by it stay open.
func (w *Window) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unbind()
	w.closed = true
	w.pd.keys.remove(w.key)
	return nil
}

// unbind takes back the window's binding. The caller holds w.mu.
func (w *Window) unbind() {
	if b := w.bound.Swap(nil); b != nil {
		b.region.windows.Add(-1)
	}
}

func bindError(format string, args ...any) error {
	return verbs.Errorf(verbs.ErrInvalid, format, args...)
}

// Bind carries out a bind for a QP: of a window of type 1 or 2, or, with length 0, the end of a type 1 window's
// binding. The window and the region of b are this package's. A type 1 window's bind has the key of Promise.
func Bind(b *verbs.MWBind, qpn verbs.QPN) error {
	w := b.MW.Provider().(*Window)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return bindError("the window was freed")
	}
	key := uint32(b.RKey)
	if w.typ == verbs.MWType2 {
		if w.bound.Load() != nil {
			return bindError("the window is bound: invalidate it first") // IBTA o10-37.2.30
		}
		if uint32(b.RKey)>>keyBits != w.key>>keyBits {
			return bindError("rkey %v is none of the window's: only the lowest 8 bits may differ from %#08x", b.RKey, w.key)
		}
		if b.Length == 0 {
			return bindError("length 0: a type 2 window is unbound by invalidating it") // IBTA o10-37.2.40
		}
	}
	if b.Length == 0 {
		w.unbind()
		w.key = key
		return nil
	}
	mr := b.MR.Provider().(*MR)
	mr.mu.Lock()
	defer mr.mu.Unlock()
	r := mr.Region
	n, err := w.check(b, r)
	if err != nil {
		return err
	}
	n.key, n.qpn = verbs.RKey(key), qpn
	if !r.addWindow() {
		return bindError("the memory region is being deregistered")
	}
	w.unbind()
	w.key = key
	w.bound.Store(n)
	return nil
}

// check checks a bind against the region: IBTA C10-72, C10-73, C10-74, C10-75.
func (w *Window) check(b *verbs.MWBind, r *Region) (*binding, error) {
	off := b.Addr - r.base
	n := &binding{region: r, base: b.Addr, off: off, length: b.Length, access: b.Access}
	if b.Access&verbs.AccessZeroBased != 0 {
		n.base = 0
		if w.typ == verbs.MWType1 {
			return nil, bindError("a type 1 window cannot be zero based") // IBTA o10-36.2.2
		}
	}
	_, inside := r.slice(b.Addr, b.Length)
	switch {
	case r.pd != w.pd:
		return nil, bindError("the memory region belongs to another PD than the window")
	case r.access&verbs.AccessMWBind == 0:
		return nil, bindError("the memory region has %v: register it with ACCESS_MW_BIND", r.access)
	case b.Access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && r.access&verbs.AccessLocalWrite == 0:
		return nil, bindError("a window for %v needs a region with ACCESS_LOCAL_WRITE", b.Access)
	case !inside:
		return nil, bindError("bytes [%#x, %#x) are outside the memory region, [%#x, %#x)",
			b.Addr, b.Addr+b.Length, r.base, r.base+uint64(len(r.buf)))
	}
	return n, nil
}

// Invalidate ends the binding of a type 2 window by its key, for a QP.
func (p *PD) Invalidate(key verbs.RKey, qpn verbs.QPN) error {
	e := p.keys.table.Get(uint32(key) >> keyBits)
	if e == nil || e.window == nil {
		return bindError("key %v is no memory window's", key)
	}
	w := e.window
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.bound.Load()
	switch {
	case w.typ != verbs.MWType2:
		return bindError("key %v: a type 1 window is not invalidated by its key: bind it anew", key) // IBTA o10-37.2.26
	case b == nil || b.key != key:
		return bindError("key %v: the window is not bound under this key", key)
	case b.qpn != qpn:
		return bindError("key %v: the window belongs to another QP", key)
	}
	w.unbind()
	return nil
}

// open opens the n bytes at va for a QP, as far as the window allows. open looks at the binding once: a
// binding that ends from then on ends as if the span were open already, and nobody waits for spans but the
// region's Close.
func (w *Window) open(p *PD, key verbs.RKey, qpn verbs.QPN, va, n uint64, need verbs.Access) (Span, error) {
	b := w.bound.Load()
	if b == nil || b.key != key || !b.region.hold() {
		return Span{}, verbs.Errorf(verbs.ErrNotFound, "key %v: the memory window is not bound under this key", key)
	}
	off := va - b.base
	var err error
	switch {
	case w.pd != p:
		err = verbs.Errorf(ErrDomain, "key %v: the memory window belongs to another PD than the QP", key)
	case w.typ == verbs.MWType2 && b.qpn != qpn:
		err = verbs.Errorf(ErrDomain, "key %v: the memory window was bound by another QP", key)
	case b.access&need != need:
		err = verbs.Errorf(ErrAccess, "key %v: the memory window has %v, and %v is needed", key, b.access, need)
	case off > b.length || n > b.length-off:
		err = verbs.Errorf(ErrBounds, "key %v: bytes [%#x, %#x) are outside the memory window, [%#x, %#x)",
			key, va, va+n, b.base, b.base+b.length)
	}
	if err != nil {
		b.region.release()
		return Span{}, err
	}
	off += b.off
	return spanOf(b.region, b.region.buf[off:off+n], b.region.guard), nil
}

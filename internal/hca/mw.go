package hca

import (
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/verbs"
)

// mw is a memory window. It has an entry of its own in the table of keys, whose index stays while
// the lowest 8 bits of the key change with each binding.
type mw struct {
	pd    *pd
	typ   verbs.MWType
	index uint32

	bound atomic.Pointer[binding]

	mu     sync.Mutex // over changes of bound
	key    uint32
	closed bool
}

// binding is what a window opens. It does not change.
type binding struct {
	mr     *mr
	key    uint32
	base   uint64 // virtual address of its first byte
	off    uint64 // of the same in the region
	length uint64
	access verbs.Access
	qpn    uint32 // type 2: the only QP that it serves
}

// AllocMW implements verbs.ProviderPD.
func (p *pd) AllocMW(t verbs.MWType) (verbs.ProviderMW, error) {
	w := &mw{pd: p, typ: t}
	entry := &mr{pd: p, window: w, drained: make(chan struct{})}
	err := p.dev.mrs.add(entry, func(n uint32) {
		w.index, w.key = n, n<<keyBits|random32()&(1<<keyBits-1)
		entry.key = w.key
	})
	if err != nil {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d MRs and MWs (max_mr)", maxMR)
	}
	return w, nil
}

func (w *mw) RKey() verbs.RKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	return verbs.RKey(w.key)
}

func (w *mw) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unbind()
	w.closed = true
	w.pd.dev.mrs.remove(w.index)
	return nil
}

// unbind takes the window back. The caller holds w.mu.
func (w *mw) unbind() {
	if b := w.bound.Swap(nil); b != nil {
		b.mr.windows.Add(-1)
	}
}

// bindError is the fault of a bind or invalidation that is refused.
func bindError(format string, args ...any) *transport.Fault {
	return &transport.Fault{Status: verbs.WCMWBindErr, Cause: verbs.Errorf(verbs.ErrInvalid, format, args...)}
}

// BindMW implements transport.Host.
func (q *qp) BindMW(b *verbs.MWBind) *transport.Fault {
	w := b.MW.Provider().(*mw)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return bindError("the window was freed")
	}
	key := w.key&^(1<<keyBits-1) | (w.key+1)&(1<<keyBits-1)
	if w.typ == verbs.MWType2 {
		if w.bound.Load() != nil {
			return bindError("the window is bound: invalidate it first") // IBTA o10-37.2.30
		}
		if uint32(b.RKey)>>keyBits != w.index {
			return bindError("rkey %v is none of the window's: only the lowest 8 bits may differ from %#08x", b.RKey, w.key)
		}
		if b.Length == 0 {
			return bindError("length 0: a type 2 window is unbound by invalidating it") // IBTA o10-37.2.40
		}
		key = uint32(b.RKey)
	}
	if b.Length == 0 {
		w.unbind()
		w.key = key
		return nil
	}
	m := b.MR.Provider().(*mrHandle).mr
	n, f := w.check(b, m)
	if f != nil {
		return f
	}
	n.key, n.qpn = key, q.num
	if !m.addWindow() {
		return bindError("the memory region is being deregistered")
	}
	w.unbind()
	w.key = key
	w.bound.Store(n)
	return nil
}

// check checks a bind against the region: IBTA C10-72 to C10-75.
func (w *mw) check(b *verbs.MWBind, m *mr) (*binding, *transport.Fault) {
	off := b.Addr - m.base
	n := &binding{mr: m, base: b.Addr, off: off, length: b.Length, access: b.Access}
	if b.Access&verbs.AccessZeroBased != 0 {
		n.base = 0
		if w.typ == verbs.MWType1 {
			return nil, bindError("a type 1 window cannot be zero based") // IBTA o10-36.2.2
		}
	}
	switch {
	case m.pd != w.pd:
		return nil, bindError("the memory region belongs to another PD than the window")
	case m.access&verbs.AccessMWBind == 0:
		return nil, bindError("the memory region has %v: register it with ACCESS_MW_BIND", m.access)
	case b.Access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && m.access&verbs.AccessLocalWrite == 0:
		return nil, bindError("a window for %v needs a region with ACCESS_LOCAL_WRITE", b.Access)
	case off > uint64(len(m.buf)) || b.Length > uint64(len(m.buf))-off:
		return nil, bindError("bytes [%#x, %#x) are outside the memory region, [%#x, %#x)",
			b.Addr, b.Addr+b.Length, m.base, m.base+uint64(len(m.buf)))
	}
	return n, nil
}

// Invalidate implements transport.Host.
func (q *qp) Invalidate(key verbs.RKey) *transport.Fault {
	entry := q.dev.mrs.get(uint32(key) >> keyBits)
	if entry == nil || entry.window == nil {
		return bindError("key %v is no memory window's", key)
	}
	w := entry.window
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.bound.Load()
	switch {
	case w.typ != verbs.MWType2:
		return bindError("key %v: a type 1 window is not invalidated by its key: bind it anew", key) // IBTA o10-37.2.26
	case b == nil || b.key != uint32(key):
		return bindError("key %v: the window is not bound under this key", key)
	case b.qpn != q.num:
		return bindError("key %v: the window belongs to another QP", key)
	}
	w.unbind()
	return nil
}

// open finds and acquires what a window gives a QP of the n bytes at va.
func (w *mw) open(q *qp, key uint32, va uint64, n uint32, need verbs.Access) (*mr, []byte, error) {
	b := w.bound.Load()
	if b == nil || b.key != key || !b.mr.acquire() {
		return nil, nil, verbs.Errorf(verbs.ErrNotFound, "key %#08x: the memory window is not bound under this key", key)
	}
	off := va - b.base
	var err error
	switch {
	case w.bound.Load() != b: // taken back meanwhile
		err = verbs.Errorf(verbs.ErrNotFound, "key %#08x: the memory window is not bound under this key", key)
	case w.pd != q.pd:
		err = verbs.Errorf(verbs.ErrInvalid, "key %#08x: the memory window belongs to another PD than the QP", key)
	case w.typ == verbs.MWType2 && b.qpn != q.num:
		err = verbs.Errorf(verbs.ErrInvalid, "key %#08x: the memory window was bound by another QP", key)
	case b.access&need != need:
		err = verbs.Errorf(verbs.ErrInvalid, "key %#08x: the memory window has %v, and %v is needed", key, b.access, need)
	case off > b.length || uint64(n) > b.length-off:
		err = verbs.Errorf(verbs.ErrInvalid, "key %#08x: bytes [%#x, %#x) are outside the memory window, [%#x, %#x)",
			key, va, va+uint64(n), b.base, b.base+b.length)
	}
	if err != nil {
		b.mr.release()
		return nil, nil, err
	}
	off += b.off
	return b.mr, b.mr.buf[off : off+uint64(n)], nil
}

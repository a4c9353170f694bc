package mem

import (
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/verbs"
)

// File is the memory of an allocated region, or of one in a file that the program gave, as other processes can map it:
// to read it and, where peers may change the region, to change it too. Small regions that share a mapping have no File: the pages of a file that
// others cannot change cannot be given back one by one.
type File struct {
	ID   uint64 // no other file of this process has it, now or later
	FD   int    // while a span of the region is open
	Off  int64  // in the file behind FD, of the region's first byte
	Size int64

	own  *mapping    // nil for a file that the program gave
	over atomic.Bool // others see the memory no more: see Detach

	ending sync.Mutex // held while those who watch are told

	mu    sync.Mutex
	watch map[any]func() (off, n uint64)
}

// Watch has f called when the memory is given back. f returns which bytes somebody does not stop writing to, if n is not
// 0. key names the watcher. Watch returns the function that ends the watch.
func (m *File) Watch(key any, f func() (off, n uint64)) (forget func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.watch == nil {
		m.watch = map[any]func() (off, n uint64){}
	}
	m.watch[key] = f
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watch, key)
	}
}

// Stays reports whether Detach cannot take the memory away: it is not the region's alone.
func (m *File) Stays() bool { return m.own == nil }

// Detach takes the memory away from those who have mapped it, since one of them does not stop writing to n bytes from
// an offset on. They go on seeing the memory as it was. The region keeps its memory, and is as one whose memory
// nobody can map. It is called for each that does not stop. Memory that stays is only not lent or shared any more.
func (m *File) Detach(off, n uint64) {
	m.over.Store(true)
	m.end() // first: the bytes that the others write until they are told are in the region, and must stay there
	m.detach(off, n)
}

// detach fails where no mapping can be made, and the region will soon be of no use anyway.
func (m *File) detach(off, n uint64) {
	if m.own != nil {
		_ = m.own.detach(off, n)
	}
}

// Detached reports whether Detach was called. Watchers that have begun before Detach are told of it.
func (m *File) Detached() bool { return m.over.Load() }

// end tells all who watch that the memory is given back. It is taken away from those who do not stop, once all were told.
func (m *File) end() {
	m.ending.Lock()
	defer m.ending.Unlock()
	m.mu.Lock()
	watch := m.watch
	m.watch = nil
	m.mu.Unlock()
	var stuck [][2]uint64
	for _, f := range watch {
		if off, n := f(); n > 0 {
			m.over.Store(true)
			stuck = append(stuck, [2]uint64{off, n})
		}
	}
	for _, s := range stuck {
		m.detach(s[0], s[1])
	}
}

// offered returns the file of the region's memory, or nil if others cannot map that.
func (r *Region) offered() *File {
	if r.lent == nil || r.lent.Detached() {
		return nil
	}
	return r.lent
}

// Loan is an open span of a region that has a file.
type Loan struct {
	Span
	File *File
	Off  uint64 // of the span in the file
}

// loan lends a span, or releases it where its region has no file.
func (s Span) loan() (Loan, bool) {
	r := s.region
	if r == nil || r.offered() == nil {
		s.Release()
		return Loan{}, false
	}
	return Loan{Span: s, File: r.lent, Off: addrOf(s.Bytes()) - addrOf(r.buf)}, true
}

// Lend opens the bytes [off, off+n) of a scatter/gather list to be lent to a peer, if they are in one region that
// has a file. If they are not, or may not be read, the caller sends a copy, or says why not.
func (p *PD) Lend(sg []verbs.SGE, off, n uint32) (Loan, bool) {
	i := 0
	for ; i < len(sg) && off >= sg[i].Length; i++ {
		off -= sg[i].Length
	}
	if i == len(sg) || n > sg[i].Length-off {
		return Loan{}, false
	}
	s, err := p.openLocal(nil, sg[i].LKey, sg[i].Addr+uint64(off), uint64(n), 0)
	if err != nil {
		return Loan{}, false
	}
	l, ok := s.loan()
	if ok {
		tellRead(s.Bytes())
	}
	return l, ok
}

// LendRemote is Lend for memory that a peer's key names: see Open. Memory by a window's key is not lent, since the
// window can end before the peer has read.
func (p *PD) LendRemote(key verbs.RKey, qpn verbs.QPN, va, n uint64) (Loan, bool) {
	s, err := p.Open(key, qpn, va, n, verbs.AccessRemoteRead)
	switch {
	case err != nil:
		return Loan{}, false
	case s.region.rkey != key:
		s.Release()
		return Loan{}, false
	}
	return s.loan()
}

// Shared is an open region that a peer may map, to carry out its requests itself.
type Shared struct {
	Span
	File   *File
	Base   uint64 // virtual address of the first byte, which is the file's first
	Access verbs.Access
}

// Share opens the whole region that a peer's key names, if it has a file. A window has none.
func (p *PD) Share(key verbs.RKey) (Shared, bool) {
	e := p.keys.table.Get(uint32(key) >> keyBits)
	if e == nil || e.region == nil || e.region.rkey != key || e.region.pd != p || debugMR() || !e.region.hold() {
		return Shared{}, false
	}
	r := e.region
	if r.offered() == nil {
		r.release()
		return Shared{}, false
	}
	return Shared{spanOf(r, r.buf, r.guard), r.lent, r.base, r.access}, true
}

// Foreign is memory of another process as a span.
func Foreign(b []byte) Span { return spanOf(nil, b, false) }

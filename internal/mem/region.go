package mem

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/adverb-rdma/adverb/verbs"
)

// Region is a memory region.
type Region struct {
	entry   entry // in the table of keys
	pd      *PD
	lkey    verbs.LKey
	rkey    verbs.RKey // differs from lkey in the lowest 8 bits
	access  verbs.Access
	base    uint64 // virtual address of buf[0]
	buf     []byte
	backing backing
	lent    *File // that others may map; nil for memory that another region had before
	guard   bool  // the memory is the program's, and may fault: see guard.go

	gate    gate
	drained chan struct{} // closed when the region closes and the last span is released
	keepers keepers
	windows atomic.Int32 // bound to the region; noWindows once it closes
}

// remoteChanges are the rights by which peers change memory.
const remoteChanges = verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// noWindows is further below zero than windows could make up for.
const noWindows = -1 << 30

// backing is where a region's memory comes from: the program, whose slice is pinned, an allocation, another process, or a
// file.
type backing struct {
	alloc   *allocation
	pin     *pin
	foreign *foreign
	unmap   func() error // of a file
}

// pin keeps a slice of the program's at its address.
type pin struct {
	pinner runtime.Pinner
	once   sync.Once
}

// register makes a region. ours says that attr.Buf is memory of an allocation.
func (p *PD) register(attr verbs.MRAttr, ours bool) (*Region, error) {
	r := &Region{pd: p, buf: attr.Buf, access: attr.Access, drained: make(chan struct{})}
	if (ours || r.buf == nil) && attr.Access&verbs.AccessFlushPersistent != 0 {
		return nil, notPersistent("memory of AllocMR has no file that stays")
	}
	if r.buf == nil {
		a, err := allocate(attr.Length, attr.Access&remoteChanges != 0)
		if err != nil {
			return nil, verbs.Errorf(verbs.ErrLimit, "allocate %d bytes: %w", attr.Length, err)
		}
		r.buf, r.backing.alloc, r.lent = a.bytes, a, a.lent()
	} else {
		if r.guard = !ours; r.guard {
			if err := probe(r.buf, attr.Access); err != nil {
				return nil, err
			}
			if err := checkPersistent(r.buf, attr.Access); err != nil {
				return nil, err
			}
		}
		r.backing.pin = new(pin)
		r.backing.pin.pinner.Pin(unsafe.SliceData(r.buf))
	}
	r.base = addrOf(r.buf)
	switch {
	case attr.HasIOVA:
		r.base = attr.IOVA
	case attr.Access&verbs.AccessZeroBased != 0:
		r.base = 0
	}
	return r, p.add(r)
}

// addOutside makes a region, of which the memory and the guard are given, one of memory that is not this process's alone. Zero
// as base comes before attr.IOVA.
func (p *PD) addOutside(attr verbs.MRAttr, r *Region) (verbs.ProviderMR, error) {
	r.pd, r.base, r.access, r.drained = p, attr.IOVA, attr.Access, make(chan struct{})
	if attr.Access&verbs.AccessZeroBased != 0 {
		r.base = 0
	}
	if err := p.add(r); err != nil {
		return nil, err
	}
	return &MR{Region: r}, nil
}

// add gives a region its keys. A region that gets none gives its memory back.
func (p *PD) add(r *Region) error {
	r.entry.region = r
	err := p.keys.add(&r.entry, r.setKeys)
	if err != nil {
		_ = r.backing.giveBack()
	}
	return err
}

// Bytes returns the memory.
func (r *Region) Bytes() []byte { return r.buf }

// Addr returns the virtual address of the first byte.
func (r *Region) Addr() uint64 { return r.base }

// LKey returns the key for SGEs.
func (r *Region) LKey() verbs.LKey { return r.lkey }

// RKey returns the key for peers.
func (r *Region) RKey() verbs.RKey { return r.rkey }

// setKeys takes the keys. They differ, so that a program which mixes them up hears of it here, and not
// only on cards that tell them apart.
func (r *Region) setKeys(index, random uint32) {
	const low = 1<<keyBits - 1
	lkey := index<<keyBits | random&low
	r.lkey, r.rkey = verbs.LKey(lkey), verbs.RKey(lkey^(1+random>>keyBits%low))
}

// Close takes the region's key away, and returns when no span of its memory is open any more. It fails
// with verbs.ErrBusy while windows are bound to the region: IBTA §10.6.7.2.6.
func (r *Region) Close() error {
	if n := r.windows.Load(); !r.windows.CompareAndSwap(0, noWindows) {
		return verbs.Errorf(verbs.ErrBusy, "%d memory windows are bound to it: invalidate, unbind or close them first", max(n, 1))
	}
	return r.retire()
}

// retire is Close from the moment on at which no window can be bound to the region.
func (r *Region) retire() error {
	r.pd.keys.remove(uint32(r.lkey))
	if !r.gate.close() {
		<-r.drained
	}
	r.keepers.end(r)
	if r.lent != nil {
		r.lent.end()
	}
	if r.backing.alloc != nil && debugMR() {
		r.tell()
	}
	return r.backing.giveBack()
}

// File returns where another process can map the region's memory: the descriptor of a file in memory,
// and the offset of the first byte in it. ok is false where it cannot: for memory that the program gave,
// and where the system has no memfd, denies it, or has no descriptor to spare.
func (r *Region) File() (fd int, off int64, ok bool) {
	if r.backing.alloc == nil {
		return -1, 0, false
	}
	return r.backing.alloc.file()
}

// hold keeps the memory in place until release. It returns false if the region is closing.
func (r *Region) hold() bool { return r.gate.enter() }

func (r *Region) release() {
	if r.gate.leave() {
		close(r.drained)
	}
}

// unpin is called by Close and by the device's end.
func (r *Region) unpin() { r.backing.unpin() }

// addWindow counts a window that is bound to the region, unless the region closes.
func (r *Region) addWindow() bool {
	for {
		n := r.windows.Load()
		if n < 0 {
			return false
		}
		if r.windows.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// slice returns the n bytes at va, or false where they are not all inside the region.
func (r *Region) slice(va, n uint64) ([]byte, bool) {
	off, size := va-r.base, uint64(len(r.buf))
	if off > size || n > size-off {
		return nil, false
	}
	return r.buf[off : off+n], true
}

func (b *backing) unpin() {
	if b.pin != nil {
		b.pin.once.Do(b.pin.pinner.Unpin)
	}
}

// giveBack gives the memory back.
func (b *backing) giveBack() error {
	b.unpin()
	switch {
	case b.alloc != nil:
		return b.alloc.free()
	case b.foreign != nil:
		return b.foreign.end()
	case b.unmap != nil:
		return b.unmap()
	}
	return nil
}

func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

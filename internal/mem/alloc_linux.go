//go:build !adverb_portable

package mem

import (
	"math"
	"math/bits"
	"slices"
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

// Sizes that we chose, in bytes.
const (
	// Regions up to ownLeast are cut from slabs, since a process has few mappings (vm.max_map_count) and
	// few file descriptors. A larger region has a mapping of its own, which can be lent to other processes. So
	// have ownSmall of the small ones: a program that has but a few of them sends from these.
	// Where half of the mappings are taken, regions up to maxPiece are cut from slabs. Pages that nobody
	// touches cost nothing.
	ownLeast = 32 << 10
	ownSmall = 16
	maxPiece = 256 << 10
	slabSize = 4 << 20

	// The addresses of closed regions go into quarantine, so that a program which uses one after Close meets no
	// other region's memory. Up to maxQuarantined regions are there, and up to maxQuarantineBytes. Their
	// addresses have no memory behind them.
	maxQuarantined       = 1024
	maxQuarantineBytes   = 64 << 30
	maxQuarantineBytes32 = 64 << 20 // where addresses have 32 bits
)

// allocation is the memory of one region: a piece of a slab, or a mapping.
type allocation struct {
	bytes []byte
	m     *mapping
	size  int // of the piece, or of the mapping
}

// file returns where another process can map the same memory: a descriptor and an offset. ok is false
// where it cannot.
func (a *allocation) file() (fd int, off int64, ok bool) {
	return a.m.fd, int64(addrOf(a.bytes) - addrOf(a.m.bytes)), a.m.fd >= 0
}

// lent returns the file that others can map, or nil. The memory begins where the file does.
func (a *allocation) lent() *File { return a.m.lent }

// allocate maps n zeroed bytes of shared memory, which peers may be allowed to change. They start on a page.
func allocate(n int, changes bool) (*allocation, error) { return memory.allocate(n, changes) }

// free takes the memory away. A program that touches it later gets a fault, until the addresses leave quarantine.
func (a *allocation) free() error { return memory.free(a) }

// allocator makes the allocations of a process.
type allocator struct {
	host  host
	debug bool // each region has its own mapping with a page on either side that faults, for ever

	mu             sync.Mutex
	answer         answer // of the host
	classes        [classCount]class
	areas          int           // places in the kernel's map of the process that are in use, at most
	small          int           // mappings of small regions
	quarantined    []*allocation // the memory of closed regions, the oldest first
	quarantineSize uint64
}

var memory = allocator{host: host{root: "/"}, debug: debugMR()}

// classCount is the number of sizes of pieces: a page, two, four … Larger pages need fewer.
const classCount = 7

// class holds the slabs for pieces of one size.
type class struct{ slabs []*slab }

// slab is a mapping that is cut into pieces of one size.
type slab struct {
	*mapping
	class int
	fresh int   // offset of the bytes that were never given out
	free  []int // offsets of pieces that were given back and have left quarantine
	used  int   // pieces that are given out or in quarantine
}

func classOf(n int) int { return bits.Len(uint((n - 1) / pageSize)) }

func (m *allocator) allocate(n int, changes bool) (*allocation, error) {
	if n > math.MaxInt-4*pageSize {
		return nil, verbs.Errorf(verbs.ErrLimit, "the address space ends before that")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if class := classOf(n); class < classCount && pageSize<<class <= maxPiece && !m.debug && (n <= ownLeast && m.small >= ownSmall || m.areas >= m.fresh().areas/2) {
		return m.piece(class, n)
	}
	size := (n + pageSize - 1) &^ (pageSize - 1)
	own, err := m.mapMemory(size, n)
	if err != nil {
		return nil, err
	}
	own.offer(changes)
	if n <= ownLeast {
		m.small++
	}
	return &allocation{bytes: own.bytes[:n:n], m: own, size: size}, nil
}

// piece cuts n bytes from a slab.
func (m *allocator) piece(class, n int) (*allocation, error) {
	c, size := &m.classes[class], pageSize<<class
	hasRoom := func(s *slab) bool { return len(s.free) > 0 || s.fresh < len(s.bytes) }
	i := slices.IndexFunc(c.slabs, hasRoom)
	if i < 0 {
		own, err := m.mapMemory(slabSize, size)
		if err != nil {
			if i = slices.IndexFunc(c.slabs, hasRoom); i < 0 { // pieces may have been in quarantine until now
				return nil, err
			}
			return c.slabs[i].cut(size, n), nil
		}
		own.slab = &slab{mapping: own, class: class}
		i, c.slabs = len(c.slabs), append(c.slabs, own.slab)
	}
	return c.slabs[i].cut(size, n), nil
}

// cut takes a piece of size bytes, of which n are used. The slab has room.
func (s *slab) cut(size, n int) *allocation {
	off := s.fresh
	if last := len(s.free) - 1; last >= 0 {
		off, s.free = s.free[last], s.free[:last]
	} else {
		s.fresh += size
	}
	s.used++
	return &allocation{bytes: s.bytes[off : off+n : off+n], m: s.mapping, size: size}
}

// putBack ends the use of the piece at an offset. If the piece is usable, cut gives it out again.
func (s *slab) putBack(off int, usable bool) {
	s.used--
	if usable {
		s.free = append(s.free, off)
	}
}

// mapMemory makes a mapping, if the host can hold the bytes of it that are wanted now. If addresses run out, those in
// quarantine must do.
func (m *allocator) mapMemory(size, wanted int) (*mapping, error) {
	err := m.holds(uint64(size), uint64(wanted))
	if err != nil && len(m.quarantined) > 0 { // addresses in quarantine count in RLIMIT_AS
		m.release(0)
		err = m.holds(uint64(size), uint64(wanted))
	}
	if err != nil {
		return nil, err
	}
	if m.isFull() {
		if m.release(0); m.isFull() {
			return nil, verbs.Errorf(verbs.ErrLimit, "the process has %d regions of more than %d bytes, and the kernel allows "+
				"few mappings (half of vm.max_map_count): register fewer, larger regions", m.areas, maxPiece)
		}
	}
	guard := 0
	if m.debug {
		guard = pageSize
	}
	own, err := newMapping(size, guard)
	if err != nil && len(m.quarantined) > 0 && !m.debug {
		m.release(0)
		own, err = newMapping(size, guard)
	}
	if err != nil {
		return nil, verbs.Errorf(verbs.ErrLimit, "%w%s", err, m.host.whyNoMapping(err))
	}
	m.answer.takes(uint64(size))
	m.areas++
	return own, nil
}

func (m *allocator) free(a *allocation) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.m.slab != nil {
		a.m.clear(a.whole())
		if protect(a.whole(), false) == nil {
			m.areas += 2
		}
	} else {
		m.answer.gives(uint64(a.size))
		if len(a.bytes) <= ownLeast {
			m.small--
		}
		if err := a.m.retire(); err != nil {
			return err
		}
		if m.debug {
			return nil // for ever
		}
	}
	m.quarantined = append(m.quarantined, a)
	m.quarantineSize += uint64(a.size)
	m.release(maxQuarantined)
	return nil
}

// whole returns all bytes of the piece or mapping.
func (a *allocation) whole() []byte {
	_, off, _ := a.file()
	return a.m.bytes[off:][:a.size]
}

// release ends the quarantine of the oldest, until at most limit are left, and few enough bytes.
func (m *allocator) release(limit int) {
	over := 0
	for ; len(m.quarantined)-over > limit || m.quarantineSize > m.host.quarantineBytes() && len(m.quarantined)-over > 1; over++ {
		a := m.quarantined[over]
		m.quarantineSize -= uint64(a.size)
		if a.m.slab == nil {
			m.areas--
			a.m.unmap()
			continue
		}
		m.reuse(a)
	}
	m.quarantined = slices.Delete(m.quarantined, 0, over)
}

// reuse makes a piece ready for another region, and unmaps the piece's slab if no other piece of the
// slab is in use and other slabs have room.
func (m *allocator) reuse(a *allocation) {
	s := a.m.slab
	usable := protect(a.whole(), true) == nil // otherwise the piece is lost: the kernel has no room for the change
	if usable {
		m.areas -= 2
	}
	_, off, _ := a.file()
	s.putBack(int(off), usable)
	c := &m.classes[s.class]
	if s.used > 0 || len(c.slabs) == 1 {
		return
	}
	c.slabs = slices.DeleteFunc(c.slabs, func(x *slab) bool { return x == s })
	m.answer.gives(uint64(len(s.bytes)))
	m.areas--
	s.unmap()
}

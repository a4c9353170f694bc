package mem

import (
	"encoding/binary"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// A region of another process's memory that this process cannot map is reached by calls of verbs.ForeignMemory. It has
// addresses here, behind which there is nothing: an access to them faults. So it is guarded, as memory that may fault is,
// and a guarded access to such addresses becomes a call. System calls that are given them say EFAULT.
//
// Copies go upward, as far as the calls do so, and the last word of a copy is not stored after the rest. Atomics are atomic
// among those of this process, as those of a card are, and not against the program's instructions.

// foreign is the memory behind addresses that have none.
type foreign struct {
	addresses []byte
	memory    verbs.ForeignMemory
	words     *sync.Mutex // held by atomics
}

// foreignList has all of a process, in the order of their addresses.
type foreignList struct {
	mu   sync.Mutex // while the list is replaced
	list atomic.Pointer[[]*foreign]
}

var foreigns foreignList

// addForeign makes addresses for n bytes of memory. The first has the same place in its page as start has.
func addForeign(memory verbs.ForeignMemory, n int, start uint64) (*foreign, error) {
	at := int(start % uint64(pageSize))
	b, err := reserve(at + n)
	if err != nil {
		return nil, err
	}
	f := &foreign{addresses: b[at : at+n : at+n], memory: memory, words: new(sync.Mutex)}
	foreigns.change(func(list []*foreign) []*foreign {
		i := sort.Search(len(list), func(i int) bool { return addrOf(list[i].addresses) > addrOf(f.addresses) })
		return slices.Insert(list, i, f)
	})
	return f, nil
}

// end gives the addresses back.
func (f *foreign) end() error {
	foreigns.change(func(list []*foreign) []*foreign {
		return slices.DeleteFunc(list, func(g *foreign) bool { return g == f })
	})
	return unreserve(f.addresses)
}

// change replaces the list, which others may be reading.
func (s *foreignList) change(f func([]*foreign) []*foreign) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*foreign
	if l := s.list.Load(); l != nil {
		list = slices.Clone(*l)
	}
	list = f(list)
	s.list.Store(&list)
}

// foreignAt returns the memory behind b, or nil if b is memory of this process.
func foreignAt(b []byte) *foreign {
	l := foreigns.list.Load()
	if l == nil || len(*l) == 0 || len(b) == 0 {
		return nil
	}
	list, addr := *l, addrOf(b)
	i := sort.Search(len(list), func(i int) bool { return addrOf(list[i].addresses) > addr }) - 1
	if i < 0 || !holds(list[i].addresses, addr) {
		return nil
	}
	return list[i]
}

func (f *foreign) offset(b []byte) uint64 { return addrOf(b) - addrOf(f.addresses) }

// foreignPiece is how much is copied by one call.
const foreignPiece = 64 << 10

// foreignPieces has buffers for calls. A call gets no memory of the caller's: the compiler would take it for kept, and move
// each small buffer of whoever copies, also where no memory is another process's, from the stack to the heap.
var foreignPieces = sync.Pool{New: func() any { return new([foreignPiece]byte) }}

// read fills dst from src, which is of f.
func (f *foreign) read(dst, src []byte) error {
	buf := foreignPieces.Get().(*[foreignPiece]byte)
	defer foreignPieces.Put(buf)
	for off := f.offset(src); len(dst) > 0; {
		piece := buf[:min(len(dst), foreignPiece)]
		if err := f.memory.ReadForeign(piece, off); err != nil {
			return verbs.Errorf(ErrFault, "read memory of another process: %w", err)
		}
		n := copy(dst, piece)
		dst, off = dst[n:], off+uint64(n)
	}
	return nil
}

// write copies src to dst, which is of f.
func (f *foreign) write(dst, src []byte) error {
	buf := foreignPieces.Get().(*[foreignPiece]byte)
	defer foreignPieces.Put(buf)
	for off := f.offset(dst); len(src) > 0; {
		n := copy(buf[:], src)
		if err := f.memory.WriteForeign(buf[:n], off); err != nil {
			return verbs.Errorf(ErrFault, "write memory of another process: %w", err)
		}
		src, off = src[n:], off+uint64(n)
	}
	return nil
}

// copyForeign is guarded where one side is another process's memory. ok is false where none is.
func copyForeign(how copying, dst, src []byte, fold *wire.Fold) (ok bool, err error) {
	to, from := foreignAt(dst), foreignAt(src)
	switch {
	case to == nil && from == nil:
		return false, nil
	case from == nil:
		return true, to.write(dst, src)
	case to == nil:
		if err = from.read(dst, src); err == nil && how == copyFolded {
			fetchFolded(fold, dst, dst)
		}
		return true, err
	}
	b := make([]byte, len(src))
	if err = from.read(b, src); err == nil {
		err = to.write(dst, b)
	}
	return true, err
}

// word changes a word of b, which is of f, to the value that change returns, unless change says that the word stays.
func (f *foreign) word(b []byte, change func(orig uint64) (next uint64, changes bool)) (orig uint64, err error) {
	f.words.Lock()
	defer f.words.Unlock()
	var w [8]byte
	if err := f.read(w[:], b); err != nil {
		return 0, err
	}
	orig = binary.NativeEndian.Uint64(w[:])
	next, changes := change(orig)
	if !changes {
		return orig, nil
	}
	binary.NativeEndian.PutUint64(w[:], next)
	return orig, f.write(b, w[:])
}

// RegForeignMR implements verbs.ProviderForeignMR.
func (p *PD) RegForeignMR(attr verbs.MRAttr, memory verbs.ForeignMemory) (verbs.ProviderMR, error) {
	if attr.Access&verbs.AccessFlushPersistent != 0 {
		return nil, notPersistent("the memory is another process's")
	}
	f, err := addForeign(memory, attr.Length, attr.IOVA)
	if err != nil {
		return nil, verbs.Errorf(verbs.ErrLimit, "reserve addresses for %d bytes: %w", attr.Length, err)
	}
	return p.addOutside(attr, &Region{buf: f.addresses, guard: true, backing: backing{foreign: f}})
}

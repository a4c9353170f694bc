package mem

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/adverb-rdma/adverb/verbs"
)

// Span is a piece of registered memory. It stays in place, and registered, until Release. The zero
// Span is no memory, and its Release does nothing.
//
// It has four words, and so no capacity of its bytes: the compiler keeps no larger one in registers.
type Span struct {
	region *Region
	start  *byte
	n      int
	guard  bool // of the region: see guard.go
}

// spanOf returns a span of b. It is of r, if r is held.
func spanOf(r *Region, b []byte, guard bool) Span { return Span{r, unsafe.SliceData(b), len(b), guard} }

// Release ends the use of the span. It is called once.
func (s Span) Release() {
	if s.region != nil {
		s.region.release()
	}
}

// Bytes returns the memory, for system calls that read or fill it. Go code uses Place and Fetch, or [Copy].
func (s Span) Bytes() []byte { return unsafe.Slice(s.start, s.n) }

// from returns the span without its first n bytes.
func (s Span) from(n int) Span { return spanOf(s.region, s.Bytes()[n:], s.guard) }

// Place copies src to the beginning of the span, which must be as long at least. See [place] for
// the order in which the bytes appear. It fails with ErrFault, as Fetch does: part of the bytes may be there then.
func (s Span) Place(src []byte) error {
	dst := s.Bytes()[:len(src)]
	if s.guard {
		return guarded(copyPlace, dst, src, nil)
	}
	place(dst, src)
	return nil
}

// Fetch fills dst from the beginning of the span, which must be as long at least.
func (s Span) Fetch(dst []byte) error {
	src := s.Bytes()[:len(dst)]
	if s.guard {
		return guarded(copyFetch, dst, src, nil)
	}
	copyFrom(dst, src)
	return nil
}

// word returns the span's 8 bytes as a word. Its memory must be aligned to 8 bytes, whatever its
// virtual address is.
func (s Span) word() (*uint64, error) {
	p := unsafe.Pointer(s.start)
	if uintptr(p)%8 != 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid,
			"the memory of the word is not aligned to 8 bytes: register aligned memory for atomics")
	}
	return (*uint64)(p), nil
}

// CompareSwap stores swap in the span's 8 bytes if they are compare, and returns their value before, in host order. It
// uses the CPU's instruction, so it is atomic against the program too. It fails with ErrFault where the memory faults,
// and then has changed nothing.
func (s Span) CompareSwap(compare, swap uint64) (orig uint64, err error) {
	p, err := s.word()
	if err != nil {
		return 0, err
	}
	if s.guard {
		if f := foreignAt(s.Bytes()); f != nil {
			return f.word(s.Bytes(), func(orig uint64) (uint64, bool) { return swap, orig == compare })
		}
		return guardedWord(s.Bytes(), func() uint64 { return compareSwap(p, compare, swap) })
	}
	return compareSwap(p, compare, swap), nil
}

func compareSwap(p *uint64, compare, swap uint64) (orig uint64) {
	for {
		if orig = atomic.LoadUint64(p); orig != compare || atomic.CompareAndSwapUint64(p, compare, swap) {
			return orig
		}
	}
}

// Store64 stores a value in the span's 8 bytes, at once. It fails as CompareSwap does.
func (s Span) Store64(value uint64) error {
	p, err := s.word()
	if err != nil {
		return err
	}
	if s.guard {
		if f := foreignAt(s.Bytes()); f != nil {
			_, err = f.word(s.Bytes(), func(uint64) (uint64, bool) { return value, true })
			return err
		}
		_, err = guardedWord(s.Bytes(), func() uint64 { atomic.StoreUint64(p, value); return 0 })
		return err
	}
	atomic.StoreUint64(p, value)
	return nil
}

// FetchAdd adds to the span's 8 bytes and returns their value before, in host order. It is as
// atomic as CompareSwap.
func (s Span) FetchAdd(add uint64) (orig uint64, err error) {
	p, err := s.word()
	if err != nil {
		return 0, err
	}
	if s.guard {
		if f := foreignAt(s.Bytes()); f != nil {
			return f.word(s.Bytes(), func(orig uint64) (uint64, bool) { return orig + add, true })
		}
		return guardedWord(s.Bytes(), func() uint64 { return atomic.AddUint64(p, add) - add })
	}
	return atomic.AddUint64(p, add) - add, nil
}

// shortWords is up to how many bytes words are copied one by one.
const shortWords = 128

// place copies src to dst, which is as long. The last aligned word of dst is stored last: a program that
// polls this word with an atomic load, and sees it change, sees all the rest. The bytes before the last
// word are copied upward.
//
//go:norace
func place(dst, src []byte) {
	p := unsafe.Pointer(unsafe.SliceData(dst))
	if len(dst) <= shortWords && (uintptr(p)|uintptr(len(dst)))%8 == 0 { // upward is enough
		copyWordsTo(p, at(src), len(dst)/8)
		return
	}
	end := int((uintptr(p) + uintptr(len(dst))) % 8)
	if at := len(dst) - end - 8; at >= 0 {
		if at > 0 {
			copyTo(dst[:at], src[:at])
		}
		if end > 0 {
			copyTo(dst[at+8:], src[at+8:])
		}
		store64(unsafe.Add(p, at), binary.NativeEndian.Uint64(src[at:]))
		return
	}
	if at := len(dst) - end%4 - 4; at >= 0 {
		copyTo(dst[:at], src[:at])
		copyTo(dst[at+4:], src[at+4:])
		store32(unsafe.Add(p, at), binary.NativeEndian.Uint32(src[at:]))
		return
	}
	copyTo(dst, src)
}

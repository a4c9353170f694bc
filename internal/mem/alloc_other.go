//go:build !linux || adverb_portable

package mem

import (
	"fmt"
	"os"
	"unsafe"
)

// Unshared has nothing to say: no region's memory can be mapped by another process here.
func Unshared() string { return "" }

// allocation is memory that was allocated for a region.
type allocation struct{ bytes []byte }

// allocate returns n zeroed bytes that start on a page.
func allocate(n int, _ bool) (a *allocation, err error) {
	defer func() {
		if e := recover(); e != nil { // a length that no address space holds
			err = fmt.Errorf("%v", e)
		}
	}()
	page := os.Getpagesize()
	b := make([]byte, n+page)
	off := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	return &allocation{b[off : off+n : off+n]}, nil
}

// free leaves the memory to the garbage collector, so that a program that still has a slice of it uses nobody
// else's memory.
func (a *allocation) free() error { return nil }

// lent says that no other process can map the memory.
func (a *allocation) lent() *File { return nil }

// file says that no other process can map the memory.
func (a *allocation) file() (fd int, off int64, ok bool) { return -1, 0, false }

// HeapIsBounded reports whether the system bounds the Go heap. The answer is known on Linux only.
func HeapIsBounded() bool { return false }

// HoldsHeap would return an error if so many bytes more of the Go heap were too many. The answer is known on Linux only.
func HoldsHeap(int) error { return nil }

// mapping is memory that others could map. There is none.
type mapping struct{}

func (own *mapping) detach(uint64, uint64) error { return nil }

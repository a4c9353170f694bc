package verbs

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// The methods below access a word of a region atomically, in host order: 8 or 4 bytes at off. They are
// the way to watch memory that peers write or count in, and to change what peers read, without a data
// race. The device accesses aligned words whole, so none is ever half old and half new. Peers' atomics
// and these are atomic against one another on devices with AtomicGlob.
//
// All of them panic, as slicing does, if off is outside the region, if the word's address is not
// divisible by its size, and if the region is closed and its memory gone.

// Load64 reads 8 bytes. On a device with [GuaranteeLastWordLast], a program that watches the last
// aligned 8 bytes of a write, and sees them change, may then read the rest of the write.
func (mr *MR) Load64(off int) uint64 { return atomic.LoadUint64(mr.word64("Load64", off)) }

// Store64 writes 8 bytes. A peer that then reads them by a READ sees all bytes that were written
// before as well, if it reads those later.
func (mr *MR) Store64(off int, v uint64) { atomic.StoreUint64(mr.word64("Store64", off), v) }

// Add64 adds to 8 bytes and returns the sum. To subtract n, add ^(n-1).
func (mr *MR) Add64(off int, n uint64) uint64 { return atomic.AddUint64(mr.word64("Add64", off), n) }

// CompareAndSwap64 writes v to 8 bytes if they are old, and reports whether it did.
func (mr *MR) CompareAndSwap64(off int, old, v uint64) bool {
	return atomic.CompareAndSwapUint64(mr.word64("CompareAndSwap64", off), old, v)
}

// Load32 is Load64 for 4 bytes.
func (mr *MR) Load32(off int) uint32 { return atomic.LoadUint32(mr.word32("Load32", off)) }

// Store32 is Store64 for 4 bytes.
func (mr *MR) Store32(off int, v uint32) { atomic.StoreUint32(mr.word32("Store32", off), v) }

// Add32 is Add64 for 4 bytes.
func (mr *MR) Add32(off int, n uint32) uint32 { return atomic.AddUint32(mr.word32("Add32", off), n) }

// CompareAndSwap32 is CompareAndSwap64 for 4 bytes.
func (mr *MR) CompareAndSwap32(off int, old, v uint32) bool {
	return atomic.CompareAndSwapUint32(mr.word32("CompareAndSwap32", off), old, v)
}

func (mr *MR) word64(method string, off int) *uint64 { return (*uint64)(mr.word(method, off, 8)) }
func (mr *MR) word32(method string, off int) *uint32 { return (*uint32)(mr.word(method, off, 4)) }

// word returns the address of a word, or panics.
func (mr *MR) word(method string, off, size int) unsafe.Pointer {
	first := unsafe.Pointer(unsafe.SliceData(mr.buf))
	if mr.gone.Load() || off < 0 || off > len(mr.buf)-size || (uintptr(first)+uintptr(off))%uintptr(size) != 0 {
		mr.panicWord(method, off, size)
	}
	return unsafe.Add(first, off)
}

func (mr *MR) panicWord(method string, off, size int) {
	mr.alive(method)
	if mr.buf == nil {
		panic(fmt.Sprintf("verbs: MR.%s(%d) of a dma-buf: its memory is another device's", method, off))
	}
	if off < 0 || off > len(mr.buf)-size { // slicing would go up to the capacity
		panic(fmt.Sprintf("verbs: MR.%s(%d) of a region of %d bytes", method, off, mr.n))
	}
	panic(fmt.Sprintf("verbs: MR.%s(%d): address %p is not aligned", method, off, &mr.buf[off]))
}

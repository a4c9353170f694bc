//go:build linux && (amd64 || arm64)

package ibv

import (
	"fmt"
	"math/bits"
	"sync"
	"syscall"
	"unsafe"
)

// Ref is the address of a T outside Go's memory: of C's, or of memory that this package has mapped. Such memory does
// not move, and the garbage collector does not look at it. The zero Ref is C's null pointer.
type Ref[T any] struct{ at uintptr }

// P returns the T. It stays valid for as long as its owner keeps the memory.
func (r Ref[T]) P() *T { return *(**T)(unsafe.Pointer(&r.at)) }

// Sizes that we chose, in bytes. Blocks have the size of a power of two, from leastBlock on. Those up to half a chunk are
// cut from chunks, since a process has few mappings (vm.max_map_count).
const (
	leastBlock = 512
	chunkSize  = 1 << 20
	classes    = 11 // 512 bytes to 512 KiB
)

// blocks is the process's memory that C reads and writes. A block that was given back is used again, and never unmapped.
var blocks struct {
	mu    sync.Mutex
	free  [classes][]block
	chunk []byte // the rest of the chunk that blocks are cut from
	bytes int    // of all chunks
	used  int    // that are taken and not given back
}

// Mapped returns how many bytes are mapped for C to read and write, but for large blocks.
func Mapped() int {
	blocks.mu.Lock()
	defer blocks.mu.Unlock()
	return blocks.bytes
}

// Used returns how many blocks are taken and not given back.
func Used() int {
	blocks.mu.Lock()
	defer blocks.mu.Unlock()
	return blocks.used
}

// block is mapped memory.
type block struct {
	bytes []byte
	class int // classes for a mapping of its own
}

// take returns a zeroed block of at least n bytes.
func take(n int) (block, error) {
	class := bits.Len(uint(max(n, 1)-1) / leastBlock)
	blocks.mu.Lock()
	defer blocks.mu.Unlock()
	b, err := takeOf(class, n)
	if err == nil {
		blocks.used++
	}
	return b, err
}

// takeOf is take of a class. The caller holds the lock.
func takeOf(class, n int) (block, error) {
	if class >= classes {
		m, err := mapped(n)
		return block{m, classes}, err
	}
	if list := blocks.free[class]; len(list) > 0 {
		b := list[len(list)-1]
		blocks.free[class] = list[:len(list)-1]
		clear(b.bytes)
		return b, nil
	}
	size := leastBlock << class
	if len(blocks.chunk) < size {
		m, err := mapped(chunkSize)
		if err != nil {
			return block{}, err
		}
		blocks.bytes += chunkSize
		blocks.chunk = m // the rest of the last one is lost: less than half of it
	}
	b := block{blocks.chunk[:size:size], class}
	blocks.chunk = blocks.chunk[size:]
	return b, nil
}

// give takes a block back.
func (b block) give() {
	if b.bytes == nil {
		return
	}
	blocks.mu.Lock()
	defer blocks.mu.Unlock()
	blocks.used--
	if b.class == classes {
		_ = syscall.Munmap(b.bytes) // which fails for no mapping of ours
		return
	}
	blocks.free[b.class] = append(blocks.free[b.class], b)
}

func mapped(n int) ([]byte, error) {
	m, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return m, nil
}

// cut takes the next n values of a block. *off is where the last cut has ended.
func cut[T any](b block, off *int, n int) []T {
	var v T
	align := int(unsafe.Alignof(v))
	*off = (*off + align - 1) &^ (align - 1)
	part := b.bytes[*off : *off+n*int(unsafe.Sizeof(v))] // panics where the block is too small
	*off += len(part)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(part))), n)
}

// first returns the address of the first element of memory that cut has returned.
func first[T any](cut []T) Ref[T] { return Ref[T]{uintptr(unsafe.Pointer(unsafe.SliceData(cut)))} }

// scratch is the memory of one call.
type scratch struct {
	block
	off   int
	frame *frame
}

const scratchSize = 4096

func newScratch() (*scratch, error) {
	b, err := take(scratchSize)
	if err != nil {
		return nil, err
	}
	s := &scratch{block: b}
	s.frame = &cut[frame](b, &s.off, 1)[0]
	return s, nil
}

// put copies v to where C can read and write it.
func put[T any](s *scratch, v T) Ref[T] {
	c := cut[T](s.block, &s.off, 1)
	c[0] = v
	return first(c)
}

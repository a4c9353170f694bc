//go:build linux

package uverbs

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// area is the memory that a program and its driver share. It is a file in memory, of which the program has a descriptor:
// the bytes at an offset here are the bytes that the program maps at that offset.
//
// The file is sparse and larger than all queues can be. It is sealed against another size, since the pages of a file that
// is cut are gone for who reads them.
type area struct {
	file *os.File
	mu   sync.Mutex
	next int64
	free map[int64][]int64 // offsets by size
}

const (
	areaSize = 1 << 60
	page     = 4096
)

func newArea(name string) (*area, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("create the queues' memory: memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Ftruncate(fd, areaSize); err != nil {
		f.Close()
		return nil, fmt.Errorf("create the queues' memory: ftruncate: %w", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		f.Close()
		return nil, fmt.Errorf("create the queues' memory: seal: %w", err)
	}
	return &area{file: f, next: page, free: map[int64][]int64{}}, nil
}

// piece is a mapped part of an area.
type piece struct {
	of    *area
	off   int64
	bytes []byte
}

// take maps a part of n bytes at least, which is zero.
func (a *area) take(n int) (*piece, error) {
	size := (int64(n) + page - 1) &^ (page - 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	off := a.next
	if l := a.free[size]; len(l) > 0 {
		off = l[len(l)-1]
	} else if off+size > areaSize {
		return nil, unix.ENOMEM
	}
	b, err := unix.Mmap(int(a.file.Fd()), off, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	if off == a.next {
		a.next += size
	} else {
		a.free[size] = a.free[size][:len(a.free[size])-1]
	}
	return &piece{a, off, b}, nil
}

// drop unmaps the part and gives its pages back. A program that has it mapped sees zeros.
func (p *piece) drop() {
	size := int64(len(p.bytes))
	_ = unix.Munmap(p.bytes)
	p.bytes = nil
	p.of.giveBack(p.off, size)
}

// giveBack gives the pages of a part back.
func (a *area) giveBack(off, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Memory that does not go back is lost until the file goes, and must not come into use again.
	if unix.Fallocate(int(a.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, size) == nil {
		a.free[size] = append(a.free[size], off)
	}
}

func (a *area) close() { a.file.Close() }

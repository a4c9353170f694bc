//go:build linux && (amd64 || arm64)

package native

import (
	"sync"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// Sizes that we chose, in bytes.
const (
	hugePage = 2 << 20 // of the processors that the package is for, with pages of 4 KiB

	// The addresses of closed regions rest, with nothing behind them, so that a program which uses one after Close meets
	// no other region's memory.
	maxResting      = 1024
	maxRestingBytes = 64 << 30
)

// mapping is memory of AllocMR.
type mapping struct {
	whole []byte // as it was mapped
	bytes []byte // from a page on, or from a huge one
}

// allocate maps n zeroed bytes. Those of a huge page and more begin at one, and the kernel is told that huge pages are
// welcome. huge asks for pages of hugetlbfs, which are there or not.
func allocate(n int, huge bool) (*mapping, error) {
	const prot = syscall.PROT_READ | syscall.PROT_WRITE
	flags, size := syscall.MAP_ANON|syscall.MAP_PRIVATE, n
	switch {
	case huge:
		flags |= syscall.MAP_HUGETLB
		size = (n + hugePage - 1) &^ (hugePage - 1)
	case n >= hugePage:
		size = n + hugePage
	}
	if size < n {
		return nil, verbs.Errorf(verbs.ErrLimit, "%d bytes pass the end of the address space", n)
	}
	whole, err := syscall.Mmap(-1, 0, size, prot, flags)
	switch {
	case err != nil && huge:
		return nil, verbs.Errorf(verbs.ErrLimit, "map %d bytes of huge pages: %w: vm.nr_hugepages says how many the host sets aside", n, err)
	case err != nil:
		return nil, verbs.Errorf(verbs.ErrLimit, "map %d bytes: %w", n, err)
	}
	m := &mapping{whole: whole, bytes: whole[:n]}
	if !huge && n >= hugePage {
		at := -ibv.Base(whole) & (hugePage - 1)
		m.bytes = whole[at : at+uint64(n)]
		_ = syscall.Madvise(m.bytes, syscall.MADV_HUGEPAGE) // refused where the kernel has none
	}
	return m, nil
}

var resting struct {
	mu    sync.Mutex
	maps  []*mapping
	bytes int
}

// free takes the memory away. Its addresses fault until others have rested behind them.
func (m *mapping) free() {
	// The pages go back to the kernel, and the mapping keeps the addresses.
	if syscall.Madvise(m.whole, syscall.MADV_DONTNEED) != nil || syscall.Mprotect(m.whole, syscall.PROT_NONE) != nil {
		_ = syscall.Munmap(m.whole)
		return
	}
	resting.mu.Lock()
	defer resting.mu.Unlock()
	resting.maps = append(resting.maps, m)
	resting.bytes += len(m.whole)
	for len(resting.maps) > maxResting || resting.bytes > maxRestingBytes {
		_ = syscall.Munmap(resting.maps[0].whole)
		resting.bytes -= len(resting.maps[0].whole)
		resting.maps = resting.maps[1:]
	}
}

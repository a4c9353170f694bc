package mem

import (
	"sync"

	"golang.org/x/sys/unix"
)

// allocation is memory that was mapped for a region.
type allocation struct {
	bytes []byte
	fd    int // of the memfd, by which another process can map the same memory; -1 where it is closed
}

// allocate maps n zeroed bytes of shared memory. They start on a page.
func allocate(n int) (*allocation, error) {
	fd, err := unix.MemfdCreate("adverb-mr", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	a := &allocation{fd: fd}
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		a.closeFile()
		return nil, err
	}
	if a.bytes, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		a.closeFile()
		return nil, err
	}
	if fd >= sparedFiles() {
		a.closeFile()
	}
	return a, nil
}

// sparedFiles is how many of the process's file descriptors regions may keep open. Beyond it a region
// works as before, but no other process can map it: the program needs descriptors too.
var sparedFiles = sync.OnceValue(func() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(limit.Cur/2, 1<<30))
})

func (a *allocation) closeFile() {
	if a.fd >= 0 {
		unix.Close(a.fd)
		a.fd = -1
	}
}

// free unmaps the memory.
func (a *allocation) free() error {
	a.closeFile()
	return unix.Munmap(a.bytes)
}

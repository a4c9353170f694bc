//go:build !adverb_portable

package mem

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a memfd in the address space or, where there is none, anonymous memory.
type mapping struct {
	bytes []byte
	all   []byte // with the guards
	fd    int    // of the memfd; -1 where it is closed, or there is none
	anon  bool
	slab  *slab // or nil
	lent  *File // or nil

	mu       sync.Mutex // held while memory that others have mapped is detached, or given back
	detached bool
}

// memfdCreate is a variable for tests of systems that deny it.
var memfdCreate = unix.MemfdCreate

// Unshared says why regions have anonymous memory, which no other process can map: because the system
// denies memfds. It is empty where it grants them.
func Unshared() string {
	fd, err := memfdCreate("adverb-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return "memfd_create: " + err.Error()
	}
	unix.Close(fd)
	return ""
}

// newMapping maps size bytes of a memfd, and guard bytes that fault on either side. A sandbox that
// denies memfds gets anonymous memory: all works, but no other process can map it.
func newMapping(size, guard int) (*mapping, error) {
	own := &mapping{fd: -1}
	fd, err := memfdCreate("adverb-mr", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	switch {
	case err == nil:
		own.fd = fd
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		own.anon = true
	default:
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	if err := own.place(size, guard); err != nil {
		own.unmap()
		return nil, err
	}
	if own.fd >= sparedFiles() {
		own.closeFile()
	}
	return own, nil
}

func (own *mapping) place(size, guard int) error {
	flags := unix.MAP_SHARED
	if own.anon {
		flags = unix.MAP_PRIVATE | unix.MAP_ANON
	} else if err := truncate(own.fd, int64(size)); err != nil {
		return fmt.Errorf("ftruncate of a memfd: %w", err)
	}
	const access = unix.PROT_READ | unix.PROT_WRITE
	var err error
	if guard == 0 {
		own.bytes, err = unix.Mmap(own.fd, 0, size, access, flags)
		own.all = own.bytes
	} else if own.all, err = unix.Mmap(-1, 0, size+2*guard, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE); err == nil {
		own.bytes = own.all[guard : guard+size : guard+size]
		err = mapOver(own.bytes, own.fd, access, flags)
	}
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	return nil
}

// fileSeals let others map a file without fear that it shrinks. readOnly keeps them from changing it (Linux 5.1). The
// mapping that there is stays as it is.
const (
	fileSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	readOnly  = unix.F_SEAL_FUTURE_WRITE
)

var files atomic.Uint64

// offer makes a file of the mapping that others may map, and change if peers may. It does not where the kernel cannot
// keep them from that.
func (own *mapping) offer(changes bool) {
	if own.fd < 0 {
		return
	}
	seals := fileSeals
	if !changes {
		seals |= readOnly
	}
	if _, err := unix.FcntlInt(uintptr(own.fd), unix.F_ADD_SEALS, seals); err == nil {
		own.lent = &File{ID: files.Add(1), FD: own.fd, Size: int64(len(own.bytes)), own: own}
	}
}

// detach makes the memory private, with the contents that it has. Of the bytes that others write to the file from
// then on, n from an offset on do not appear. Nothing that this process writes meanwhile is lost: it goes to the file
// before the change, and to pages of this process after it. A page becomes such by the first write to it. Memory that
// was given back stays as it is.
func (own *mapping) detach(off, n uint64) error {
	own.mu.Lock()
	defer own.mu.Unlock()
	if own.fd < 0 {
		return nil
	}
	if !own.detached {
		if err := mapOver(own.bytes, own.fd, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE); err != nil {
			return fmt.Errorf("mmap: %w", err)
		}
		own.detached = true
	}
	for size := uint64(len(own.bytes)); off < min(n+off, size); {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&own.bytes[off])), 0)
		step := min(n, uint64(pageSize)-off%uint64(pageSize))
		off, n = off+step, n-step
	}
	return nil
}

// truncate gives a new file its size. A file beyond RLIMIT_FSIZE would end the process by a signal.
func truncate(fd int, size int64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err == nil && uint64(size) > limit.Cur {
		return fmt.Errorf("%d bytes are above RLIMIT_FSIZE, %d: raise it (ulimit -f)", size, limit.Cur)
	}
	return unix.Ftruncate(fd, size)
}

// sparedFiles is the number of the process's file descriptors that regions may keep open. A region beyond it
// works as before, but no other process can map it: the program needs descriptors too.
var sparedFiles = sync.OnceValue(func() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(limit.Cur/2, 1<<30))
})

func (own *mapping) closeFile() {
	if own.fd >= 0 {
		unix.Close(own.fd)
		own.fd = -1
	}
}

// clear gives the pages of b back. A later read of b finds zeros.
func (own *mapping) clear(b []byte) {
	advice := unix.MADV_REMOVE
	if own.anon {
		advice = unix.MADV_DONTNEED
	}
	if unix.Madvise(b, advice) != nil {
		clear(b)
	}
}

// retire gives the memory back, and keeps the addresses from other uses until unmap.
func (own *mapping) retire() error {
	own.mu.Lock()
	defer own.mu.Unlock()
	own.closeFile()
	return mapOver(own.bytes, -1, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
}

func (own *mapping) unmap() {
	own.closeFile()
	if own.all != nil {
		_ = unix.Munmap(own.all) // it cannot fail for a whole mapping
	}
}

// mapOver puts another mapping in the place of b.
func mapOver(b []byte, fd, access, flags int) error {
	_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), access, flags|unix.MAP_FIXED)
	return err
}

// protect makes b fault, or takes that back.
func protect(b []byte, usable bool) error {
	access := unix.PROT_NONE
	if usable {
		access = unix.PROT_READ | unix.PROT_WRITE
	}
	return unix.Mprotect(b, access)
}

package hca

import "golang.org/x/sys/unix"

// allocMemory maps n zeroed bytes of shared memory that another process can be handed.
func allocMemory(n int) ([]byte, func() error, error) {
	fd, err := unix.MemfdCreate("adverb-mr", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		return nil, nil, err
	}
	b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return b, func() error { return unix.Munmap(b) }, nil
}

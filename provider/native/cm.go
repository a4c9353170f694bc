//go:build linux && (amd64 || arm64)

package native

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// cmPath is the kernel's connection manager.
const cmPath = "/dev/infiniband/rdma_cm"

// OpenCM implements connector.KernelManaged: the kernel has QP1, and makes the connections of its devices.
func (d *device) OpenCM() (*os.File, error) {
	fd, err := unix.Open(cmPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("open "+cmPath, err)
	}
	return os.NewFile(uintptr(fd), cmPath), nil
}

// Connected says that the kernel has taken an iWARP QP to RTS.
func (d *device) Connected(n verbs.QPN) {
	if q := d.qpns.get(uint32(n)); q != nil {
		q.served()
	}
}

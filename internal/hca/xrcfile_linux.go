//go:build !adverb_portable

package hca

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// holdFile keeps the file that names an XRC domain, so that no other one gets its inode number when it is removed. A
// kernel holds the inode. A descriptor that only names the file (O_PATH) comes closest: the file's locks are as free of it
// as the other end of a pipe. Where /proc is not mounted it is a copy of the program's descriptor.
func holdFile(f *os.File) (io.Closer, error) {
	c, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var failed error
	err = c.Control(func(own uintptr) {
		if fd, failed = unix.Open(fmt.Sprintf("/proc/self/fd/%d", own), unix.O_PATH|unix.O_CLOEXEC, 0); failed != nil {
			fd, failed = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	if err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, failed
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

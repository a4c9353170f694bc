//go:build linux && (amd64 || arm64)

package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// eNotSupp is ENOTSUPP, which has no name outside the kernel.
const eNotSupp syscall.Errno = 524

// kinds are the errors of package verbs for the errnos of libibverbs.
var kinds = map[syscall.Errno]error{
	syscall.EINVAL: verbs.ErrInvalid, syscall.EFAULT: verbs.ErrInvalid, syscall.ERANGE: verbs.ErrInvalid,
	syscall.ENOMEM: verbs.ErrLimit, syscall.ENOSPC: verbs.ErrLimit, syscall.E2BIG: verbs.ErrLimit,
	syscall.EMFILE: verbs.ErrLimit, syscall.ENFILE: verbs.ErrLimit,
	syscall.EBUSY:      verbs.ErrBusy,
	syscall.EOPNOTSUPP: verbs.ErrUnsupported, syscall.ENOSYS: verbs.ErrUnsupported, syscall.EPROTONOSUPPORT: verbs.ErrUnsupported,
	eNotSupp:       verbs.ErrUnsupported,
	syscall.ENOENT: verbs.ErrNotFound, syscall.ENODATA: verbs.ErrNotFound,
}

// remedies are the remedies for errnos, whatever the call was.
var remedies = map[syscall.Errno]string{
	syscall.EACCES: "the user may not use /dev/infiniband: udev's rules of rdma-core give it to all, a container needs the devices",
	syscall.EPERM:  "the user may not do this; in a container, is the device allowed?",
	syscall.EIO:    "the device has failed or is gone: open it again",
	syscall.EMFILE: "the process has no more files (ulimit -n)",
	syscall.ENFILE: "the system has no more files (fs.file-max)",
}

// fault gives an error of libibverbs its kind, and a remedy where there is one.
func fault(err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		return err
	}
	if hint := remedies[errno]; hint != "" {
		err = fmt.Errorf("%w (%s)", err, hint)
	}
	if kind := kinds[errno]; kind != nil {
		return verbs.Errorf(kind, "%w", err)
	}
	return err
}

// openFault is fault for ibv_open_device of the device whose file is node. The device is in the list, so none of the errors is
// ErrNotFound: verbs.Open would take that for the word that this is no device of the provider's.
func openFault(err error, node string) error {
	switch {
	case !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENODEV) && !errors.Is(err, syscall.ENXIO):
		return fault(err)
	case absent(node):
		return fmt.Errorf("%w: %s", err, noNode(node))
	}
	return fmt.Errorf("%w: %s leads to no device: it has gone, or has another number since it came back: list the devices again; a container is to be started anew", err, node)
}

// absent reports whether there is no such file.
func absent(node string) bool {
	_, err := os.Stat(node)
	return errors.Is(err, fs.ErrNotExist)
}

// noNode says what helps where a device has no file.
func noNode(node string) string {
	return node + " is not there: run the container with --device /dev/infiniband, or by a device plugin; on a host it is udev that makes it"
}

// postFault is fault for work requests: a queue without room says ENOMEM, and ibv_wr_complete ENOSPC.
func postFault(err error) error {
	if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOSPC) {
		return verbs.Errorf(verbs.ErrQueueFull, "the queue has no room: poll for completions (%w)", err)
	}
	return fault(err)
}

// noEntry gives the error of a table's entry its kind.
func noEntry(err error) error {
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENODATA) || errors.Is(err, syscall.ENOENT) {
		return verbs.Errorf(verbs.ErrNotFound, "%w", err)
	}
	return fault(err)
}

// lockFault is fault for a registration of n bytes, which the kernel pins.
func lockFault(err error, n int) error {
	if !errors.Is(err, syscall.ENOMEM) {
		return fault(err)
	}
	var r unix.Rlimit
	if gerr := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); gerr != nil || r.Cur == unix.RLIM_INFINITY {
		return verbs.Errorf(verbs.ErrLimit, "%w: the host or the device has no memory for %d bytes more", err, n)
	}
	return verbs.Errorf(verbs.ErrLimit,
		"%w: %d bytes are to be pinned, and RLIMIT_MEMLOCK allows %d in all: raise it (ulimit -l, LimitMEMLOCK= of systemd, memlock of limits.conf), or give the process CAP_IPC_LOCK",
		err, n, r.Cur)
}

//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Listener is the descriptor by which a supervisor gets a target's notifications. It can be sent to another process.
type Listener struct {
	FD   int
	Base int // the first number of the range of descriptors that the filter watches
}

// Close closes the listener.
func (l *Listener) Close() error { return unix.Close(l.FD) }

// The requests of a listener. They are the same on each architecture that is here.
const (
	ioctlReceive = unix.SECCOMP_IOCTL_NOTIF_RECV
	ioctlSend    = unix.SECCOMP_IOCTL_NOTIF_SEND
	ioctlIDValid = 0x40082102
	ioctlAddFD   = 0x40182103
)

// notification is struct seccomp_notif.
type notification struct {
	id     uint64
	tid    uint32 // in the supervisor's PID namespace; 0 if it is not there
	flags  uint32
	number int32
	arch   uint32
	ip     uint64
	args   [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32 // negative
	flags uint32
}

// addFD is struct seccomp_notif_addfd.
type addFD struct {
	id       uint64
	flags    uint32
	source   uint32
	number   uint32
	newFlags uint32
}

// errRestart is ERESTARTSYS. The kernel never shows it to a program: either the call is restarted after the signal's
// handler, or it fails with EINTR, as SA_RESTART says.
const errRestart unix.Errno = 512

// notificationSize is the size of the kernel's struct seccomp_notif, which may grow.
func notificationSize() (uintptr, error) {
	var sizes [3]uint16
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES, 0, uintptr(unsafe.Pointer(&sizes))); e != 0 {
		return 0, os.NewSyscallError("seccomp", e)
	}
	return max(uintptr(sizes[0]), unsafe.Sizeof(notification{})), nil
}

func (l *Listener) ioctl(request uintptr, arg unsafe.Pointer) (uintptr, unix.Errno) {
	r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(l.FD), request, uintptr(arg))
	return r, e
}

// valid reports whether the notification still waits for its answer, so that its thread lives and its ID is not another's.
// The kernel takes a lock for that, and a signal, such as those by which Go's runtime preempts, can end the wait for it.
func (l *Listener) valid(id uint64) bool {
	for {
		_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(l.FD), ioctlIDValid, uintptr(unsafe.Pointer(&id))) // blocks for moments
		if e != unix.EINTR {
			return e == 0
		}
	}
}

func (l *Listener) send(r response) unix.Errno {
	for {
		_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(l.FD), ioctlSend, uintptr(unsafe.Pointer(&r))) // never blocks
		if e != unix.EINTR {
			return e
		}
	}
}

// errNoListener says that the kernel gives no listener.
var errNoListener = errors.New("no listener")

// install puts a filter on the calling thread, which must be locked, and gives the listener. All that the thread starts has
// the filter, too.
func install(filter []unix.SockFilter) (fd int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("set no_new_privs: %w", err)
	}
	p := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	var e unix.Errno
	// A thread waits so that only a fatal signal ends the wait, from Linux 5.19 on. Before, a signal takes the notification back.
	for _, flags := range []uintptr{unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER} {
		var r uintptr
		r, _, e = unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&p)))
		if e == 0 {
			return int(r), nil
		}
		if e != unix.EINVAL {
			break
		}
	}
	return -1, fmt.Errorf("install the filter: %w: %w: %s", errNoListener, e, refusal(e))
}

// refusal says why the kernel may have refused a filter with a listener, and what to do.
func refusal(e unix.Errno) string { return refusalOf(e, kernelRelease()) }

func refusalOf(e unix.Errno, release string) string {
	const needed = "Linux 5.14 or newer with CONFIG_SECCOMP_FILTER"
	switch e {
	case unix.EBUSY:
		return "this process is under a supervisor already, and there is one for each tree of processes: start it outside of the other supervisor (adverb run, or a container runtime that uses notifications)"
	case unix.EINVAL, unix.ENOSYS:
		switch major, minor, ok := version(release); {
		case !ok:
			return "the kernel has no seccomp user notification: it needs " + needed + "; gVisor has none"
		case major == 4 && minor == 4: // which gVisor calls itself, and no other kernel of today
			return "the kernel calls itself Linux " + release + ", as gVisor does, which has no seccomp user notification: run the container by runc, or on " + needed
		case major < 5 || major == 5 && minor < 14:
			return "Linux " + release + " is too old: it needs " + needed
		}
		return "Linux " + release + " has no seccomp user notification: build it with CONFIG_SECCOMP_FILTER, or leave the sandbox that plays this kernel (gVisor has no notification)"
	case unix.EPERM, unix.EACCES:
		return "a security policy forbids seccomp(2): allow it in the container's profile"
	}
	return "see seccomp(2)"
}

// kernelRelease is the release that uname(2) tells, such as 6.1.0-18-amd64.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// version reads the first two numbers of a release.
func version(release string) (major, minor int, ok bool) {
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major, minor, n == 2
}

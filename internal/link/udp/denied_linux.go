//go:build !adverb_portable

package udp

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// denied are the system calls that a sandbox, such as one by seccomp, keeps from this process. Others
// do their work: recvmsg and sendmsg, with a call for each datagram.
type denied struct{ recvmmsg, sendmmsg bool }

// deniedCalls tries the system calls, with an invalid descriptor. It returns an error that names the call if no other
// call can do its work.
func deniedCalls() (d denied, err error) {
	d.recvmmsg = deniedCall(unix.SYS_RECVMMSG) != nil
	d.sendmmsg = deniedCall(unix.SYS_SENDMMSG) != nil
	if d.recvmmsg {
		if err := deniedCall(unix.SYS_RECVMSG); err != nil {
			return d, deniedError("recvmmsg and recvmsg", "recvmsg", err)
		}
	}
	if d.sendmmsg {
		if err := deniedCall(unix.SYS_SENDMSG); err != nil {
			return d, deniedError("sendmmsg and sendmsg", "sendmsg", err)
		}
	}
	return d, nil
}

// deniedCall returns the error with which a sandbox answers a system call that takes a descriptor, or nil. An allowed
// call fails with EBADF.
func deniedCall(number uintptr) error {
	const noFile = ^uintptr(0)
	switch _, _, errno := unix.RawSyscall6(number, noFile, 0, 0, 0, 0, 0); errno {
	case unix.EPERM, unix.EACCES, unix.ENOSYS:
		return errno
	}
	return nil
}

func deniedError(calls, call string, err error) error {
	return fmt.Errorf("the system calls %s are denied to this process: allow one in its sandbox (seccomp): %w", calls, os.NewSyscallError(call, err))
}

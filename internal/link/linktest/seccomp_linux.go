package linktest

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Refuse has the kernel answer system calls, by their numbers, with an error. With flag
// SECCOMP_FILTER_FLAG_TSYNC that holds for all threads and the process's life. Without, it holds for
// the caller's thread, so the caller must have locked itself to it, and it ends with the goroutine.
func Refuse(errno syscall.Errno, flags uintptr, numbers ...uint32) error {
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: 0, Size: 4}} // the number in struct seccomp_data
	for i, n := range numbers {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: n, SkipTrue: uint8(len(numbers) - i)})
	}
	program = append(program, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}, bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	raw, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	var filter []unix.SockFilter
	for _, r := range raw {
		filter = append(filter, unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K})
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	_, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags,
		uintptr(unsafe.Pointer(&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})))
	if failed != 0 {
		return failed
	}
	return nil
}

// SendFails calls f on a thread of its own, whose calls to send fail with errno. It returns why there
// is no such thread, for example because the kernel was built without seccomp.
func SendFails(errno syscall.Errno, f func()) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := Refuse(errno, 0, unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG)
		if err == nil {
			f()
		}
		done <- err
	}()
	return <-done
}

package linktest

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Refuse has the kernel answer system calls, by their numbers, with an error. With flag SECCOMP_FILTER_FLAG_TSYNC
// that holds for all threads and the process's life. Without the flag, it holds for the caller's thread, so the
// caller must have locked itself to the thread, and it ends with the goroutine.
func Refuse(errno syscall.Errno, flags uintptr, numbers ...uint32) error {
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: 0, Size: 4}} // the number in struct seccomp_data
	for i, n := range numbers {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: n, SkipTrue: uint8(len(numbers) - i)})
	}
	program = append(program, bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}, bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	return install(program, flags)
}

// Options are options of sockets that RefuseOptions knows.
var Options = map[string][2]int{
	"SO_REUSEPORT": {unix.SOL_SOCKET, unix.SO_REUSEPORT}, "SO_REUSEADDR": {unix.SOL_SOCKET, unix.SO_REUSEADDR},
	"SO_RCVBUF": {unix.SOL_SOCKET, unix.SO_RCVBUF}, "SO_SNDBUF": {unix.SOL_SOCKET, unix.SO_SNDBUF},
	"SO_RXQ_OVFL": {unix.SOL_SOCKET, unix.SO_RXQ_OVFL}, "SO_PASSCRED": {unix.SOL_SOCKET, unix.SO_PASSCRED},
	"IP_RECVTOS": {unix.IPPROTO_IP, unix.IP_RECVTOS}, "IP_MTU_DISCOVER": {unix.IPPROTO_IP, unix.IP_MTU_DISCOVER},
	"IP_MULTICAST_IF": {unix.IPPROTO_IP, unix.IP_MULTICAST_IF}, "IP_MULTICAST_TTL": {unix.IPPROTO_IP, unix.IP_MULTICAST_TTL},
	"IPV6_RECVTCLASS": {unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS}, "IPV6_MTU_DISCOVER": {unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER},
	"IPV6_FLOWINFO": {unix.IPPROTO_IPV6, 11}, "IPV6_FLOWINFO_SEND": {unix.IPPROTO_IPV6, 33},
	"UDP_NO_CHECK6_RX": {unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX}, "UDP_GRO": {unix.IPPROTO_UDP, unix.UDP_GRO},
}

// RefuseOptions is Refuse for setsockopt of the options named.
func RefuseOptions(errno syscall.Errno, flags uintptr, names ...string) error {
	const level, name = 16 + 8, 16 + 16 // the lower halves of the arguments, on a little-endian system
	allow := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: 0, Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SETSOCKOPT, SkipTrue: 1}, allow}
	for _, n := range names {
		o, ok := Options[n]
		if !ok {
			return fmt.Errorf("option %s is not known here", n)
		}
		program = append(program,
			bpf.LoadAbsolute{Off: level, Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(o[0]), SkipFalse: 3},
			bpf.LoadAbsolute{Off: name, Size: 4}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(o[1]), SkipFalse: 1},
			bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	}
	return install(append(program, allow), flags)
}

// install gives the kernel a filter of system calls.
func install(program []bpf.Instruction, flags uintptr) error {
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

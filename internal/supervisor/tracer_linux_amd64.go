package supervisor

import "golang.org/x/sys/unix"

// canTrace says that threads can be stopped and make calls.
const canTrace = true

// syscallSize is the length of the instruction syscall.
const syscallSize = 2

// registers are those of a thread.
type registers struct{ unix.PtraceRegs }

func (r *registers) read(tid int) error  { return unix.PtraceGetRegs(tid, &r.PtraceRegs) }
func (r *registers) write(tid int) error { return unix.PtraceSetRegs(tid, &r.PtraceRegs) }

// prepare has a thread that was stopped in a system call make another one, by the same instruction.
func (r *registers) prepare(number uint64, args []uint64) {
	r.Rip -= syscallSize
	r.Rax, r.Orig_rax = number, ^uint64(0) // in no call: nothing is restarted
	for i, p := range []*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9} {
		*p = 0
		if i < len(args) {
			*p = args[i]
		}
	}
}

func (r *registers) result() uint64 { return r.Rax }

// again has the thread make the system call once more in which it was stopped.
func (r *registers) again() {
	r.Rip -= syscallSize
	r.Rax, r.Orig_rax = r.Orig_rax, ^uint64(0)
}

// errRestartNoHand is ERESTARTNOHAND: the call is restarted, or fails with EINTR where a handler runs.
const errRestartNoHand = 514

// restartable are calls that fail with EINTR when their thread was stopped, even if no handler runs: signal(7). Made again they
// wait as long as they were asked to, from then on.
var restartable = map[uint64]bool{
	unix.SYS_EPOLL_WAIT: true, unix.SYS_EPOLL_PWAIT: true, unix.SYS_EPOLL_PWAIT2: true,
	unix.SYS_SEMOP: true, unix.SYS_SEMTIMEDOP: true, unix.SYS_RT_SIGTIMEDWAIT: true,
	unix.SYS_IO_GETEVENTS: true, unix.SYS_IO_PGETEVENTS: true, unix.SYS_IO_URING_ENTER: true,
	// Of sockets with SO_RCVTIMEO or SO_SNDTIMEO, which have moved nothing then.
	unix.SYS_READ: true, unix.SYS_READV: true, unix.SYS_RECVFROM: true, unix.SYS_RECVMSG: true, unix.SYS_RECVMMSG: true,
	unix.SYS_ACCEPT: true, unix.SYS_ACCEPT4: true,
	unix.SYS_WRITE: true, unix.SYS_WRITEV: true, unix.SYS_SENDTO: true, unix.SYS_SENDMSG: true, unix.SYS_SENDMMSG: true,
}

// restart keeps a stopped thread from EINTR.
func (t *tracer) restart(tid int) {
	var r registers
	if !t.threads[tid].stopped || r.read(tid) != nil {
		return
	}
	if eintr := int64(unix.EINTR); int64(r.Rax) == -eintr && restartable[r.Orig_rax] {
		again := int64(-errRestartNoHand)
		r.Rax = uint64(again)
		_ = r.write(tid)
	}
}

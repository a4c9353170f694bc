//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A tracer stops threads of the target by ptrace(2), and has one of them make system calls. It has a thread of its own,
// which ends with it: then the kernel lets go of threads that have not stopped yet.
//
// Threads are stopped by PTRACE_INTERRUPT, which is no signal. A system call in which a thread waits is restarted, as after
// a signal that nobody handles. Calls that would fail with EINTR even then are made to restart, too: see restartable.
type tracer struct {
	threads map[int]*traced
	late    []unix.Signal // for the process, since they cannot be blocked: SIGSTOP
}

// traced is a thread that is seized.
type traced struct {
	asked   bool // to stop
	stopped bool
	gone    bool        // it has ended
	signal  unix.Signal // that it is about to get, or 0
	status  unix.WaitStatus
}

var (
	errTraced  = errors.New("a thread may not be traced, or has a debugger")
	errBusy    = errors.New("a thread does not stop")
	errThread  = errors.New("the thread has ended")
	errNoTrace = errors.New("threads are not stopped on this processor")
)

// trace calls f with a tracer, and ends the tracer.
func trace(f func(*tracer) error) (err error) {
	if !canTrace {
		return errNoTrace
	}
	done := make(chan struct{})
	go onThread(func() {
		defer close(done)
		t := &tracer{threads: map[int]*traced{}}
		err = f(t)
		t.detach()
		t.linger()
	})
	<-done
	return err
}

// onThread calls f on a thread that ends after it, as the goroutine does.
func onThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return // without unlocking: so the thread ends
	}
	// Go's runtime lets a process's first thread never end.
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go onThread(func() {
		defer close(done)
		f()
	})
	<-done
}

// ptrace is the system call, of which package unix has not all requests.
func ptrace(request, tid int, addr, data uintptr) error {
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), addr, data, 0, 0); e != 0 {
		return e
	}
	return nil
}

// seize begins to trace a thread, which runs on. A thread that has ended is no error.
func (t *tracer) seize(tid int, options uintptr) error {
	const tries = 20
	for i := 0; ; i++ {
		switch err := ptrace(unix.PTRACE_SEIZE, tid, 0, options|unix.PTRACE_O_TRACESYSGOOD); {
		case err == nil:
			t.threads[tid] = new(traced)
			return nil
		case err == unix.ESRCH, hasEnded(readStatus(tid)):
			t.threads[tid] = &traced{gone: true}
			return nil
		case i < tries && tracedByUs(tid): // by a tracer that is about to end
			pause(i)
		default:
			return fmt.Errorf("%w: seize thread %d: %w", errTraced, tid, err)
		}
	}
}

// interrupt has a thread stop soon that is seized.
func (t *tracer) interrupt(tid int) {
	if x := t.threads[tid]; !x.gone {
		ptrace(unix.PTRACE_INTERRUPT, tid, 0, 0)
		x.asked = true
	}
}

// tracedByUs reports whether a thread of this process traces a thread.
func tracedByUs(tid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return false
	}
	tracer := statusField(string(b), "TracerPid:")
	_, err = os.Stat("/proc/self/task/" + tracer)
	return tracer == "0" || err == nil
}

// pause waits for something that has no event, longer with each try.
func pause(try int) {
	if try < 20 {
		runtime.Gosched()
		return
	}
	d := unix.NsecToTimespec(int64(min(20*time.Microsecond*time.Duration(try-19), time.Millisecond)))
	unix.Nanosleep(&d, nil)
}

// threadsOf lists the threads of a process.
func threadsOf(tgid int) (list []int, err error) {
	names, err := os.ReadDir("/proc/" + strconv.Itoa(tgid) + "/task")
	for _, e := range names {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, tid)
		}
	}
	return list, err
}

// stopAll stops all threads of a process. After it they run no code of the program's. A thread in a call that the supervisor
// holds cannot stop, and need not: when the call is answered the thread stops before it runs on.
func (t *tracer) stopAll(tgid int, patience time.Duration, held func(tid int) bool) error {
	for fresh := true; fresh; { // until no thread has come meanwhile
		fresh = false
		list, err := threadsOf(tgid)
		if err != nil {
			return err
		}
		for _, tid := range list {
			if t.threads[tid] != nil {
				continue
			}
			fresh = true
			if err := t.seize(tid, 0); err != nil {
				return err
			}
			t.interrupt(tid)
		}
	}
	return t.settle(patience, held)
}

// settle waits until the threads have stopped that are not held.
func (t *tracer) settle(patience time.Duration, held func(tid int) bool) error {
	end := time.Now().Add(patience)
	for tid := range t.threads {
		for try := 0; !held(tid); try++ {
			if stopped, err := t.look(tid); stopped || err == errThread {
				t.restart(tid)
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("%w: thread %d", errBusy, tid)
			}
			pause(try)
		}
	}
	return nil
}

// look reports whether a thread is stopped, or that it has ended.
func (t *tracer) look(tid int) (stopped bool, err error) {
	x := t.threads[tid]
	if x.stopped || x.gone {
		return x.stopped, endedIf(x.gone)
	}
	switch n, err := unix.Wait4(tid, &x.status, unix.WALL|unix.WNOHANG, nil); {
	case err == unix.EINTR, err == nil && n == 0:
		return false, nil
	case err != nil:
		x.gone = true
	case x.status.Stopped():
		x.stopped = true
		if x.signal = x.status.StopSignal(); x.status>>16 != 0 || x.signal == syscallStop {
			x.signal = 0 // no signal is on its way
		}
	default:
		x.gone = true
	}
	return x.stopped, endedIf(x.gone)
}

// syscallStop is the signal by which a thread that enters or leaves a system call is told.
const syscallStop = unix.SIGTRAP | 0x80

func endedIf(gone bool) error {
	if gone {
		return errThread
	}
	return nil
}

// await waits until a thread has stopped.
func (t *tracer) await(tid int, patience time.Duration) error {
	end := time.Now().Add(patience)
	for try := 0; ; try++ {
		switch stopped, err := t.look(tid); {
		case err != nil:
			return err
		case stopped:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%w: thread %d", errBusy, tid)
		}
		pause(try)
	}
}

// resume lets a stopped thread run on, by PTRACE_CONT or PTRACE_SYSCALL, with a signal or 0.
func (t *tracer) resume(tid, request int, signal unix.Signal) error {
	t.threads[tid].stopped = false
	return ptrace(request, tid, 0, uintptr(signal))
}

// postpone keeps SIGSTOP, which cannot be blocked, until the thread's calls are made.
func (t *tracer) postpone(x *traced) {
	if x.signal == unix.SIGSTOP {
		t.late = append(t.late, x.signal)
		x.signal = 0
	}
}

// detach lets go of all threads.
func (t *tracer) detach() {
	for tid, x := range t.threads {
		if x.stopped {
			ptrace(unix.PTRACE_DETACH, tid, 0, uintptr(x.signal))
		}
	}
	for tid := range t.threads {
		for _, s := range t.late {
			unix.Kill(tid, s)
		}
		break
	}
}

// linger waits for the threads that were asked to stop and that nobody has seen stop, because another one does not or has a debugger, or
// because a busy machine has no processor for them yet. The kernel would let go of them too, when the tracer ends, but
// the calls that they wait in would fail with EINTR. Those that nothing interrupts are left to the kernel.
func (t *tracer) linger() {
	end := time.Now().Add(comesBack)
	for try := 0; ; try++ {
		left := false
		for tid, x := range t.threads {
			if !x.asked || x.stopped || x.gone {
				continue
			}
			state := stateOf(readStatus(tid))
			switch stopped, err := t.look(tid); {
			case stopped:
				t.restart(tid)
				ptrace(unix.PTRACE_DETACH, tid, 0, uintptr(x.signal))
			case err == nil:
				left = left || strings.Contains("Rt", state) // it is on its way
			}
		}
		if !left || time.Now().After(end) {
			return
		}
		pause(try)
	}
}

// stepPatience is for steps that a thread makes at once, unless the machine is very busy.
const stepPatience = 2 * time.Second

// calling prepares a stopped thread for calls: no signal comes between them. finish ends that.
func (t *tracer) calling(tid int) (*calling, error) {
	c := &calling{t: t, tid: tid}
	if err := ptrace(unix.PTRACE_GETSIGMASK, tid, 8, uintptr(unsafe.Pointer(&c.mask))); err != nil {
		return nil, err
	}
	if err := c.setMask(^uint64(0)); err != nil {
		return nil, err
	}
	x := t.threads[tid]
	for x.signal != 0 { // it is blocked now, and so the kernel puts it back
		t.postpone(x)
		ptrace(unix.PTRACE_INTERRUPT, tid, 0, 0)
		if err := t.resume(tid, unix.PTRACE_CONT, x.signal); err != nil {
			return nil, err
		}
		if err := t.await(tid, stepPatience); err != nil {
			return nil, err
		}
	}
	if err := c.saved.read(tid); err != nil {
		return nil, err
	}
	return c, nil
}

// calling is a thread that makes system calls for the supervisor.
type calling struct {
	t     *tracer
	tid   int
	mask  uint64
	saved registers
}

func (c *calling) setMask(mask uint64) error {
	return ptrace(unix.PTRACE_SETSIGMASK, c.tid, 8, uintptr(unsafe.Pointer(&mask)))
}

// call makes a system call.
func (c *calling) call(number uint64, args ...uint64) (uint64, error) {
	r := c.saved
	r.prepare(number, args)
	if err := r.write(c.tid); err != nil {
		return 0, err
	}
	for range 2 { // the thread enters the call, and leaves it
		if err := c.step(); err != nil {
			return 0, err
		}
	}
	if err := r.read(c.tid); err != nil {
		return 0, err
	}
	v := r.result()
	if v > ^uint64(4095) {
		return 0, unix.Errno(-v)
	}
	return v, nil
}

// step lets the thread run to the next end of a system call.
func (c *calling) step() error {
	x := c.t.threads[c.tid]
	for {
		if err := c.t.resume(c.tid, unix.PTRACE_SYSCALL, 0); err != nil {
			return err
		}
		if err := c.t.await(c.tid, stepPatience); err != nil {
			return err
		}
		if x.status>>16 == 0 && x.status.StopSignal() == syscallStop {
			return nil
		}
		c.t.postpone(x)
	}
}

// finish gives the thread its registers and signals back. With again it makes the system call once more that it was in.
func (c *calling) finish(again bool) error {
	r := c.saved
	if again {
		r.again()
	}
	return errors.Join(r.write(c.tid), c.setMask(c.mask))
}

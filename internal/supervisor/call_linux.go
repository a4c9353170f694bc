//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Call is a system call of the target that waits for its answer. It is answered once, by Return, Fail, Continue or
// Inject with answer. What comes later has no effect.
//
// A Call is valid until the function that got it returns, unless that function calls Wait or Go.
type Call struct {
	TID    int       // of the thread
	Number int32     // of the system call, on this architecture
	Args   [6]uint64 // as they were in the registers

	id    uint64
	s     *Supervisor
	state atomic.Uint32
	kept  bool // the receiver may not use it again
	gone  func()
	held  heldSignal
}

const (
	stateOpen    uint32 = iota
	stateClaimed        // by Claim: only an answer ends it
	stateAnswered
)

// Errors of Call.Read and Call.Write, beside an Errno.
var errGone = errors.New("the call is gone: its thread ended, or a signal took it away")

// begin has the call be another one, that of a notification.
func (c *Call) begin(n *notification) {
	c.TID, c.Number, c.Args, c.id = int(n.tid), n.number, n.args, n.id
	c.state.Store(stateOpen)
}

// setBuffer has a read of a vector be one of its first part.
func (c *Call) setBuffer(addr uint64) { c.Args[1] = addr }

// take makes the caller the one who answers.
func (c *Call) take() bool {
	return c.state.CompareAndSwap(stateOpen, stateAnswered) || c.state.CompareAndSwap(stateClaimed, stateAnswered)
}

// withdraw makes the caller the one who takes an open call away.
func (c *Call) withdraw() bool { return c.state.CompareAndSwap(stateOpen, stateAnswered) }

// Claim keeps signals from taking a waiting call away: who claims a call answers it soon. It reports false for a call that
// is gone. So something that is handed out once, such as an event, is not lost between the call's end and its answer.
func (c *Call) Claim() bool {
	return c.state.CompareAndSwap(stateOpen, stateClaimed) || c.state.Load() == stateClaimed
}

// answered reports whether the call needs no answer any more.
func (c *Call) answered() bool { return c.state.Load() == stateAnswered }

func (c *Call) send(r response) bool {
	if !c.take() {
		return false
	}
	c.s.forget(c)
	r.id = c.id
	e := c.s.l.send(r)
	if e != 0 && e != unix.ENOENT {
		c.s.logf("answer system call %d of thread %d: %v", c.Number, c.TID, e)
	}
	return e == 0
}

// Return answers the call with a value. It reports whether the answer arrived: a signal or the thread's death may have
// taken the call away, and then the caller puts back anything that it took for the call.
func (c *Call) Return(value int64) bool { return c.send(response{value: value}) }

// Fail answers the call with an error.
func (c *Call) Fail(e unix.Errno) bool {
	if e == 0 || e > 4095 {
		e = unix.EIO
	}
	return c.send(response{errno: -int32(e)})
}

// Continue lets the kernel do the call, as if it had not been notified.
func (c *Call) Continue() bool {
	c.s.mem.enter(c.TID) // the call may change memory
	defer c.s.mem.leave()
	return c.send(response{flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

// Inject puts a copy of descriptor fd into the target's table, at number, or at the lowest free number where number is
// negative. An open descriptor at that number is closed. With answer it is the call's answer, too. It returns the number.
func (c *Call) Inject(fd int, cloexec bool, number int, answer bool) (int, error) {
	if answer && !c.take() {
		return -1, errGone
	}
	a := addFD{id: c.id, source: uint32(fd)}
	if number >= 0 {
		a.flags |= unix.SECCOMP_ADDFD_FLAG_SETFD
		a.number = uint32(number)
	}
	if cloexec {
		a.newFlags = unix.O_CLOEXEC
	}
	if answer {
		a.flags |= unix.SECCOMP_ADDFD_FLAG_SEND
	}
	for {
		r, e := c.s.l.ioctl(ioctlAddFD, unsafe.Pointer(&a))
		switch e {
		case 0:
			if answer {
				c.s.forget(c)
			}
			return int(r), nil
		case unix.EINTR:
			continue
		case unix.ENOENT:
			return -1, errGone
		case unix.EBADF: // the number is beyond the target's limit
			e = unix.EMFILE
		}
		if answer { // it was not given
			c.state.Store(stateOpen)
		}
		return -1, e
	}
}

// Valid reports whether the call still waits for its answer.
func (c *Call) Valid() bool { return !c.answered() && c.s.l.valid(c.id) }

// Wait says that the call is answered later, by some goroutine. Meanwhile it is interruptible as a blocking call of the
// kernel's is: a signal that the thread has to handle, or its death, takes the call away, and gone is called, once, by
// another goroutine. A call that was restarted after the signal is a new one. Call Wait before anybody else can know of
// the call and answer it.
func (c *Call) Wait(gone func()) {
	c.kept = true
	c.gone = gone
	c.s.hold(c)
}

// Go answers the call in a goroutine of its own, so that other calls need not wait. If f returns with neither an answer nor
// a Wait, the call fails with EIO. Signals do not interrupt f. Serve returns after f, so f must not wait for ever for
// somebody who ended: see Valid.
func (c *Call) Go(f func()) {
	c.kept = true
	c.s.works(c, false)
	c.s.work.Go(func() {
		f()
		c.settle()
		c.s.works(c, true)
	})
}

// settle answers a call that its handler forgot.
func (c *Call) settle() {
	if !c.answered() && !c.s.holds(c) {
		c.s.logf("system call %d of thread %d: the device gave no answer", c.Number, c.TID)
		c.Fail(unix.EIO)
	}
}

// Read reads the target's memory at addr into b. It returns how much it read, and an error if that is not all: EFAULT where
// the program could not have read it either.
func (c *Call) Read(addr uint64, b []byte) (int, error) {
	n, err := c.s.mem.read(c.TID, addr, b)
	if !c.s.l.valid(c.id) { // the thread is gone, and its ID may be another's
		return 0, errGone
	}
	return n, err
}

// Write writes b into the target's memory at addr, as Read reads it.
func (c *Call) Write(addr uint64, b []byte) (int, error) {
	if !c.s.l.valid(c.id) {
		return 0, errGone
	}
	return c.s.mem.write(c.TID, addr, b)
}

// mostPath is PATH_MAX.
const mostPath = 4096

// text reads a path, which ends with a zero byte.
func (c *Call) text(addr uint64, buf *[mostPath]byte) (string, unix.Errno) {
	for n, step := 0, 256; n < len(buf); step = 1024 {
		// Not over the end of a page: the next one may not be there.
		k := min(step, len(buf)-n, 4096-int((addr+uint64(n))&4095))
		got, err := c.s.mem.read(c.TID, addr+uint64(n), buf[n:n+k])
		for i, b := range buf[n : n+got] {
			if b == 0 {
				if !c.s.l.valid(c.id) {
					return "", unix.EFAULT
				}
				return string(buf[:n+i]), 0
			}
		}
		if n += got; err != nil || got < k {
			return "", unix.EFAULT
		}
	}
	return "", unix.ENAMETOOLONG
}

// procPath is the path of something in the thread's directory of /proc.
func (c *Call) procPath(what string) string {
	return "/proc/" + strconv.Itoa(c.TID) + "/" + what
}

func (c *Call) fdPath(fd uint32) string {
	return c.procPath("fd/" + strconv.FormatUint(uint64(fd), 10))
}

// openFlags reads the flags of a descriptor's open file description.
func (c *Call) openFlags(fd uint32) (int, error) {
	b, err := os.ReadFile(c.procPath("fdinfo/" + strconv.FormatUint(uint64(fd), 10)))
	if err != nil {
		return 0, err
	}
	_, s, _ := strings.Cut(string(b), "flags:")
	s, _, _ = strings.Cut(s, "\n")
	n, err := strconv.ParseInt(strings.TrimSpace(s), 8, 64)
	return int(n), err
}

// Nonblocking reports whether the call's first argument is a descriptor with O_NONBLOCK, which fcntl may have changed.
func (c *Call) Nonblocking() bool {
	flags, err := c.openFlags(uint32(c.Args[0]))
	return err == nil && flags&unix.O_NONBLOCK != 0
}

// File returns the open file of a device that a descriptor of the call's process means. It fails with EBADF for a number that
// is no descriptor, and with EINVAL for a descriptor of another file.
func (c *Call) File(fd uint32) (File, error) {
	if f := c.s.table.find(c, fd); f != nil {
		return f.File, nil
	}
	var st unix.Stat_t
	if unix.Stat(c.fdPath(fd), &st) != nil {
		return nil, unix.EBADF
	}
	return nil, unix.EINVAL
}

// TGID is the process of the thread, or 0 if it is gone.
func (c *Call) TGID() int { return c.s.processes.tgid(c.TID) }

// Process is the process of the thread.
func (c *Call) Process() (*Process, error) { return c.s.processes.of(c) }

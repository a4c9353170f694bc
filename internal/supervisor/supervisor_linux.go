//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Config has the devices and files that a supervisor shows to its target.
type Config struct {
	Tree *Tree
	// Other answers the calls that only a Rule notifies. Without it they continue.
	Other func(*Call)
	// Map lets Call.Map map memory of the target, where the kernel allows that. The filter has Map, too.
	Map bool
	// Logf gets oddities: answers that devices forgot, memory that cannot be read. It may be nil.
	Logf func(format string, args ...any)
}

// A Supervisor answers a target's notifications.
type Supervisor struct {
	l    *Listener
	cfg  Config
	size uintptr // of a notification
	stop int     // an eventfd that ends Serve

	mem       memory
	replaced  replaced
	processes processes
	table     *descriptors
	work      sync.WaitGroup // calls that were handed on

	looking sync.Mutex // held while waiting calls are looked at
	mu      sync.Mutex
	waiting map[*Call]struct{}
	working map[*Call]struct{} // those that were handed on
	look    *time.Timer        // the next look for signals; nil while no call waits
	period  time.Duration      // until then

	current atomic.Int64 // the thread whose call the receiver is answering, or 0
}

// New makes a supervisor for a listener, which it closes when Serve returns.
func New(l *Listener, cfg Config) (*Supervisor, error) {
	if cfg.Tree == nil {
		return nil, errNoTree
	}
	size, err := notificationSize()
	if err != nil {
		return nil, err
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	s := &Supervisor{l: l, cfg: cfg, size: size, stop: stop, waiting: map[*Call]struct{}{}, working: map[*Call]struct{}{}}
	s.cfg.Map = cfg.Map && canTrace && hasKillable() // else a signal would take a call back that is held
	s.replaced = replaced{s: s, files: map[inode]*memoryFile{}, tries: map[int]try{}}
	s.processes = processes{mem: &s.mem, byID: map[int]*Process{}, tids: map[int]int{}}
	if s.table, err = newDescriptors(s); err != nil {
		unix.Close(stop)
		return nil, err
	}
	return s, nil
}

func (s *Supervisor) logf(format string, args ...any) {
	if s.cfg.Logf != nil {
		s.cfg.Logf(format, args...)
	}
}

// Close lets Serve return. The target's notified calls then wait for ever, or fail with ENOSYS once the last copy of the
// listener is closed: end the target first.
func (s *Supervisor) Close() {
	unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// Serve answers notifications until the last process of the target has ended, or Close is called. One thread receives them
// all: several receivers are slower. What is slow must be handed on by Call.Go, or answered later by Call.Wait.
func (s *Supervisor) Serve() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	go s.table.watch()
	err := s.receive()
	s.mu.Lock()
	held := slices.Collect(maps.Keys(s.waiting))
	s.mu.Unlock()
	for _, c := range held {
		s.withdraw(c)
	}
	s.work.Wait()
	s.table.close()
	s.processes.close()
	s.replaced.close()
	unix.Close(s.stop)
	s.l.Close()
	return err
}

func (s *Supervisor) receive() error {
	// The kernel wants zeros, and may write more than this version knows of.
	buf := make([]uint64, (s.size+7)/8)
	n := (*notification)(unsafe.Pointer(&buf[0]))
	ready := []unix.PollFd{{Fd: int32(s.l.FD), Events: unix.POLLIN}, {Fd: int32(s.stop), Events: unix.POLLIN}}
	c := &Call{s: s}
	for {
		if _, err := unix.Poll(ready, -1); err != nil {
			if err == unix.EINTR {
				continue
			}
			return os.NewSyscallError("poll", err)
		}
		switch {
		case ready[1].Revents != 0:
			return nil
		case ready[0].Revents&(unix.POLLIN|unix.POLLHUP) == unix.POLLHUP: // nobody has the filter any more
			return nil
		case ready[0].Revents&(unix.POLLIN|unix.POLLERR) == unix.POLLERR: // a signal came while the kernel waited for a lock
			continue
		case ready[0].Revents&unix.POLLIN == 0:
			return fmt.Errorf("poll the listener: events %#x", ready[0].Revents)
		}
		clear(buf)
		_, e := s.l.ioctl(ioctlReceive, unsafe.Pointer(n))
		switch e {
		case 0:
		case unix.EINTR, unix.ENOENT: // a signal took the notification back
			continue
		default:
			return fmt.Errorf("receive a notification: %w", e)
		}
		if c.kept {
			c = &Call{s: s}
		}
		c.begin(n)
		if n.tid == 0 { // of a PID namespace that this process does not see
			c.Continue()
			continue
		}
		s.current.Store(int64(c.TID))
		s.answer(c)
		if !c.kept {
			c.settle()
		}
		s.current.Store(0)
	}
}

// answer hands a call to those who know what it is.
func (s *Supervisor) answer(c *Call) {
	switch o := opOf(c.Number); {
	case o == opOther && s.cfg.Other != nil:
		s.cfg.Other(c)
	case o == opOther:
		c.Continue()
	case o == opMadvise:
		s.advise(c)
	case o == opMremap:
		s.remapped(c)
	case o == opFork, o == opClone, o == opClone3:
		s.fork(c, o)
	case o.onDescriptor():
		s.table.answer(c, o)
	default:
		s.answerPath(c, o)
	}
}

// heldSignal is the result of the last look at a waiting thread.
type heldSignal struct{ shared bool }

// Waiting calls are looked at after signalPeriod. As long as nothing changes, each further period is longer by an eighth, up to
// signalLongest. So the handler of a signal starts 5 to 50 ms late, and a program that waits for long costs nothing.
const (
	signalPeriod  = 5 * time.Millisecond
	signalLongest = 100 * time.Millisecond
)

// hold takes note of a call that waits, and starts to look for signals.
func (s *Supervisor) hold(c *Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.answered() {
		return
	}
	s.waiting[c] = struct{}{}
	s.period = signalPeriod
	if s.look == nil {
		s.look = time.AfterFunc(s.period, s.lookForSignals)
		return
	}
	s.look.Reset(s.period)
}

func (s *Supervisor) forget(c *Call) {
	if !c.kept {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, c)
}

func (s *Supervisor) holds(c *Call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.waiting[c]
	return ok
}

// holdsThread reports whether a call of a thread has not been answered yet.
func (s *Supervisor) holdsThread(tid int) bool {
	if s.current.Load() == int64(tid) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, calls := range []map[*Call]struct{}{s.waiting, s.working} {
		for c := range calls {
			if c.TID == tid && !c.answered() {
				return true
			}
		}
	}
	return false
}

// works takes note of a call that was handed on, or was done.
func (s *Supervisor) works(c *Call, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if done {
		delete(s.working, c)
	} else {
		s.working[c] = struct{}{}
	}
}

// lookForSignals takes calls away whose threads have a signal to handle, or have ended.
func (s *Supervisor) lookForSignals() {
	s.looking.Lock()
	defer s.looking.Unlock()
	s.mu.Lock()
	if len(s.waiting) == 0 {
		s.look = nil
		s.mu.Unlock()
		return
	}
	held := slices.Collect(maps.Keys(s.waiting))
	s.mu.Unlock()
	again := false // soon
	for _, c := range held {
		switch yes, sure := c.interrupted(); {
		case !s.l.valid(c.id), yes && sure:
			s.withdraw(c)
		case yes:
			s.interrupt(c)
		}
		again = again || c.held.shared
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.period = min(s.period+s.period/8, signalLongest); again {
		s.period = signalPeriod
	}
	if s.look != nil {
		s.look.Reset(s.period)
	}
}

// withdraw takes a waiting call from its device. If the thread still waits, a signal's handler comes first.
func (s *Supervisor) withdraw(c *Call) {
	if !s.takeBack(c) {
		return
	}
	s.restart(c)
	if c.gone != nil {
		c.gone()
	}
}

// takeBack takes a waiting call from its device, which hears nothing of it yet, and neither does the thread. It reports false
// if the device answers the call, or has.
func (s *Supervisor) takeBack(c *Call) bool {
	taken := c.withdraw()
	s.forget(c)
	return taken
}

// restart has the thread of a call that was taken away make the call again.
func (s *Supervisor) restart(c *Call) { s.l.send(response{id: c.id, errno: -int32(errRestart)}) }

// interrupt is withdraw for a signal that may be another thread's to handle. The kernel would show ERESTARTSYS to a thread
// that it has not told of a signal. So it is told to stop for a moment: that restarts a call too, and it looks for signals.
func (s *Supervisor) interrupt(c *Call) {
	if !s.replaced.mu.TryLock() {
		return // it may be stopped already: at the next look
	}
	taken := false
	err := trace(func(t *tracer) error {
		if err := t.seize(c.TID, 0); err != nil {
			return err
		}
		// Before the interrupt, which ends the call: a device that has claimed the call would answer nobody.
		if taken = s.takeBack(c); !taken {
			return nil
		}
		t.interrupt(c.TID)
		s.restart(c)
		return t.await(c.TID, stepPatience)
	})
	s.replaced.mu.Unlock()
	switch {
	case taken && c.gone != nil:
		c.gone()
	case errors.Is(err, errTraced), err == errNoTrace:
		s.withdraw(c) // it is this thread's most often
	}
}

// interrupted reports whether the thread has a signal to handle, and whether that is sure. A signal that is sent to the whole process
// is the main thread's, unless that blocks it. If it does, the signal may be any thread's, and counts when it is still there at
// the second look.
func (c *Call) interrupted() (yes, sure bool) {
	status := readStatus(c.TID)
	own, shared := pendingSignals(status)
	again := c.held.shared
	if tgid, _ := strconv.Atoi(statusField(status, "Tgid:")); shared != 0 && tgid != c.TID {
		shared &= leftByMain(readStatus(tgid))
	} else if shared != 0 && again {
		own = shared
	}
	c.held.shared = shared != 0
	return own != 0 || shared != 0 && again, own != 0
}

func signalMask(status, name string) uint64 {
	n, _ := strconv.ParseUint(statusField(status, name), 16, 64)
	return n
}

// pendingSignals reads /proc/PID/status: which signals wait for the thread, and for its process, that are neither blocked
// nor ignored.
func pendingSignals(status string) (own, shared uint64) {
	const ignoredByDefault = 1<<(unix.SIGCHLD-1) | 1<<(unix.SIGURG-1) | 1<<(unix.SIGWINCH-1) | 1<<(unix.SIGCONT-1)
	out := signalMask(status, "SigBlk:") | signalMask(status, "SigIgn:") | ignoredByDefault&^signalMask(status, "SigCgt:")
	return signalMask(status, "SigPnd:") &^ out, signalMask(status, "ShdPnd:") &^ out
}

// leftByMain reads which signals a process's main thread leaves to others: those that it blocks, or all if it has ended.
func leftByMain(status string) uint64 {
	if hasEnded(status) {
		return ^uint64(0)
	}
	return signalMask(status, "SigBlk:")
}

var errNoTree = errors.New("start a supervisor: no tree: make one by NewTree")

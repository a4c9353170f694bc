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
		if !s.l.valid(c.id) || c.interrupted() {
			s.withdraw(c)
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
	taken := c.withdraw()
	s.forget(c)
	if !taken {
		return
	}
	s.l.send(response{id: c.id, errno: -int32(errRestart)})
	if c.gone != nil {
		c.gone()
	}
}

// interrupted reports whether the thread has a signal to handle. A signal that is sent to the whole process may be
// another thread's to handle, and then the kernel would show ERESTARTSYS to the program: so such a signal counts when it is
// still there at the second look.
func (c *Call) interrupted() bool {
	// As os.ReadFile, which would have the file's descriptor in the netpoller.
	fd, err := unix.Open(c.procPath("status"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // NOTIF_ID_VALID will tell
	}
	defer unix.Close(fd)
	var b [4096]byte // a status has less than half of that
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return false
	}
	own, shared := pendingSignals(string(b[:n]))
	again := c.held.shared
	c.held.shared = shared
	return own || shared && again
}

// pendingSignals reads /proc/PID/status: whether signals wait for the thread, or for its process, that are neither
// blocked nor ignored.
func pendingSignals(status string) (own, shared bool) {
	mask := func(name string) uint64 {
		n, _ := strconv.ParseUint(statusField(status, name), 16, 64)
		return n
	}
	const ignoredByDefault = 1<<(unix.SIGCHLD-1) | 1<<(unix.SIGURG-1) | 1<<(unix.SIGWINCH-1) | 1<<(unix.SIGCONT-1)
	out := mask("SigBlk:") | mask("SigIgn:") | ignoredByDefault&^mask("SigCgt:")
	return mask("SigPnd:")&^out != 0, mask("ShdPnd:")&^out != 0
}

var errNoTree = errors.New("start a supervisor: no tree: make one by NewTree")

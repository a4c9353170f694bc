//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Program is the program to run.
type Program struct {
	Path    string   // of the file; Find finds it
	Args    []string // with the name
	Options []string // for the function that Stage calls
}

// The exit status of the starter where the program has none: as those of env(1).
const (
	exitFailed     = 125
	exitNotRunning = 126
	exitNotFound   = 127
)

// failure is an error of another process.
type failure struct {
	text string
	code int
}

func (f *failure) Error() string { return f.text }

// exitCode is the exit status that stands for an error.
func exitCode(err error) int {
	var f *failure
	switch {
	case errors.As(err, &f):
		return f.code
	case errors.Is(err, unix.ENOENT), errors.Is(err, exec.ErrNotFound):
		return exitNotFound
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOEXEC), errors.Is(err, os.ErrPermission):
		return exitNotRunning
	}
	return exitFailed
}

// Status is how a program ended.
type Status struct {
	wait unix.WaitStatus
	err  error
}

// Err says why there was no program, or why it was killed by the supervisor's end.
func (s Status) Err() error { return s.err }

// Exit ends this process as the program ended: by the same exit status, or the same signal.
func (s Status) Exit() {
	if s.err != nil {
		os.Exit(exitCode(s.err))
	}
	if s.wait.Signaled() {
		unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) // the program's is enough
		defaultAction(s.wait.Signal())
		unix.Kill(os.Getpid(), s.wait.Signal())
		os.Exit(128 + int(s.wait.Signal()))
	}
	os.Exit(s.wait.ExitStatus())
}

// Find makes a Program of a command line, as execvp(3) finds it.
func Find(args, options []string) (Program, error) {
	path, err := exec.LookPath(args[0])
	if errors.Is(err, exec.ErrDot) {
		err = nil
	}
	if err != nil {
		return Program{}, fmt.Errorf("find %s: %w", args[0], errors.Unwrap(err))
	}
	return Program{Path: path, Args: args, Options: options}, nil
}

// Run runs a program under a supervisor, which is another process: the function that was given to Stage. It returns when the
// program has ended. Others of its tree may be left; the supervisor goes on for them.
//
// The program gets this process's environment, directory, limits, standard input, output and error, and all descriptors
// that are not close-on-exec. They are this process's no longer: but for standard error it closes them. Signals that it
// gets, it passes on; it stops and goes on with the program.
func Run(p Program) Status {
	inherit := inherited()
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // for the time after the supervisor's death
	ours, theirs, err := pair()
	if err != nil {
		return Status{err: err}
	}
	signals := make(chan os.Signal, 64)
	catch(signals)
	defer signal.Stop(signals)
	args := append([]string{strconv.Itoa(unix.Getpgrp()), strconv.Itoa(len(p.Options))}, p.Options...)
	args = append(append(args, p.Path), p.Args...)
	if _, err := spawn(supervisorName, theirs, args...); err != nil {
		ours.close()
		return Status{err: err}
	}
	release(inherit, 0, 1)
	terminal := -1
	if fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err == nil {
		terminal = fd
	}
	r := &starter{conn: ours, pidfd: -1, signals: signals, foreground: func() bool { return inForeground(terminal) }}
	s := r.wait()
	if s.err == nil {
		return s
	}
	// Nothing is left of a run that failed, but for a supervisor that serves other runs.
	if _, ok := s.err.(*failure); !ok {
		killAll()
	}
	sweep(base())
	return s
}

// starter waits for the program, and passes signals on.
type starter struct {
	conn    conn
	pidfd   int // of the program
	signals chan os.Signal

	foreground func() bool // whether the terminal's signals are for this process's group, which is the program's
}

// earlySignal is a signal that came when nobody had told the starter yet that the program runs.
type earlySignal struct {
	sig os.Signal
	at  int64 // by monotonic
}

// monotonic is a time, in nanoseconds, that all processes of the host share.
func monotonic() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // which fails for no clock that there is
	return t.Nano()
}

// fromTerminal are the signals that a terminal sends to all processes of its foreground group. The program is one of them.
var fromTerminal = []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGWINCH}

// catch asks for all signals but those that are not for the program, and those that were ignored from the start: the program
// is to ignore them, too.
func catch(signals chan os.Signal) {
	status, _ := os.ReadFile("/proc/self/status")
	ignored, _ := strconv.ParseUint(statusField(string(status), "SigIgn:"), 16, 64)
	for n := unix.Signal(1); n <= 64; n++ {
		switch n {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE,
			unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGPROF, 32, 33, 34:
			continue
		}
		if ignored&(1<<(n-1)) == 0 {
			signal.Notify(signals, n)
		}
	}
}

func (r *starter) wait() Status {
	messages := make(chan message)
	go func() {
		defer close(messages)
		for {
			m, fds, err := r.conn.receive()
			if err != nil {
				return
			}
			if m.Kind == kindStarted && len(fds) == 1 {
				m.PID = fds[0] // the descriptor is for the other goroutine
			}
			messages <- m
		}
	}()
	var early []earlySignal // those that came before word of the program
	for {
		select {
		case m, ok := <-messages:
			switch {
			case !ok:
				return Status{err: errors.New("the supervisor died, and the program was killed")}
			case m.Kind == kindStarted:
				r.pidfd = m.PID
				for _, e := range early {
					if e.at < m.At {
						r.signal(e.sig.(syscall.Signal))
					} else { // the terminal sent it to the program too
						r.pass(e.sig)
					}
				}
			case m.Kind == kindStopped:
				stopHere()
				r.signal(unix.SIGCONT)
			case m.Kind == kindExited:
				if !m.Left { // so the supervisor ends too
					r.awaitEnd(messages)
				}
				return Status{wait: m.Status}
			case m.Kind == kindFailed:
				r.awaitEnd(messages)
				return Status{err: &failure{m.Text, m.Code}}
			}
		case sig := <-r.signals:
			if r.pidfd < 0 {
				early = append(early, earlySignal{sig, monotonic()})
				continue
			}
			r.pass(sig)
		}
	}
}

// awaitEnd waits until the supervisor has ended, or serves other runs alone, unless somebody interrupts that.
func (r *starter) awaitEnd(messages chan message) {
	for {
		select {
		case _, ok := <-messages:
			if !ok {
				return
			}
		case sig := <-r.signals:
			if sig == unix.SIGINT || sig == unix.SIGTERM || sig == unix.SIGQUIT || sig == unix.SIGHUP {
				return
			}
		}
	}
}

// pass passes a signal on, unless the terminal sent it to the program too. The kernel says nothing of the sender here: a
// signal that a terminal could send is taken for one of its own while this group is in the foreground.
func (r *starter) pass(sig os.Signal) {
	if slices.Contains(fromTerminal, sig) && r.foreground() {
		return
	}
	r.signal(sig.(syscall.Signal))
}

// stopHere stops this process, and returns when it goes on. The signal is for this thread: another one might take a signal
// for the process only after this one has gone on.
func stopHere() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

func (r *starter) signal(sig unix.Signal) {
	if r.pidfd >= 0 {
		unix.PidfdSendSignal(r.pidfd, sig, nil, 0)
	}
}

// inForeground reports whether this process's group is in the foreground of a terminal.
func inForeground(terminal int) bool {
	if terminal < 0 {
		return false
	}
	group, err := unix.IoctlGetInt(terminal, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

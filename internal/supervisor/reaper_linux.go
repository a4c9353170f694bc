//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// reap is the reaper: it puts the filter on a thread of its own and starts the program from there, which inherits the
// filter. It is the parent of the program, and of all whose parent dies. Its arguments are the socket, the process
// group of the starter, the program's path and the program's arguments.
func reap() int {
	runtime.LockOSThread() // the filter is this thread's, and the program dies with it
	socket, err := entered()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	r := &reaper{socket: socket}
	if err := r.start(inherited()); err != nil {
		socket.send(message{Kind: kindFailed, Text: err.Error(), Code: exitCode(err)})
		return exitFailed
	}
	r.wait()
	return 0
}

type reaper struct {
	socket  conn
	program int // its ID
	trees   []string
	killing atomic.Bool
}

// start starts the program. From the filter on this thread makes no call that the filter notifies.
func (r *reaper) start(inherit []int) error {
	if len(os.Args) < 5 {
		return errors.New("start the reaper: too few arguments")
	}
	group, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return fmt.Errorf("start the reaper: process group %q", os.Args[2])
	}
	m, _, err := r.socket.receive() // with the locks of the trees, which stay open
	if err != nil || m.Filter == nil {
		return fmt.Errorf("start the reaper: no filter: %w", err)
	}
	r.trees = m.Trees
	limit, err := originalLimit()
	if err != nil {
		return err
	}
	if limit < 2*rangeSize {
		return fmt.Errorf("start the program: the limit of open files is %d, and devices need %d: ulimit -n 1024", limit, 2*rangeSize)
	}
	base := int(min(limit, rangeTop)) - rangeSize
	filter, err := m.Filter.compile(uint32(base))
	if err != nil {
		return err
	}
	env := os.Environ()
	path, args := os.Args[3], os.Args[4:]
	listener, err := install(filter)
	if err != nil {
		return err
	}
	unix.CloseOnExec(listener) // and it stays open here: without any listener the target would go on, with ENOSYS
	if err := r.socket.send(message{Kind: kindListener, Base: base}, listener); err != nil {
		return fmt.Errorf("send the listener: %w", err)
	}
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{
		Setpgid: true, Pgid: group, Pdeathsig: syscall.SIGKILL,
	}}
	r.program, err = syscall.ForkExec(path, args, attr)
	if err == syscall.ENOEXEC { // as execvp(3) does
		r.program, err = syscall.ForkExec("/bin/sh", append([]string{"sh", path}, args[1:]...), attr)
	}
	if err != nil {
		return &startError{path, err}
	}
	started := monotonic()
	pidfd, err := unix.PidfdOpen(r.program, 0)
	if err != nil {
		unix.Kill(r.program, unix.SIGKILL)
		return os.NewSyscallError("pidfd_open", err)
	}
	r.socket.send(message{Kind: kindStarted, PID: r.program, At: started}, pidfd)
	unix.Close(pidfd)
	done := make(chan struct{})
	go func() { // on a thread without the filter
		release(inherit, 0, 1, 2)
		close(done)
	}()
	<-done
	go r.obey()
	return nil
}

// startError is an error of exec.
type startError struct {
	path string
	err  error
}

func (e *startError) Error() string { return fmt.Sprintf("start %s: %v", e.path, e.err) }
func (e *startError) Unwrap() error { return e.err }

// obey kills all when it is told to, or when the supervisor is gone.
func (r *reaper) obey() {
	for {
		m, _, err := r.socket.receive()
		if err == nil && m.Kind != kindKill {
			continue
		}
		r.killing.Store(true)
		killDescendants()
		if err != nil {
			r.orphaned()
		}
	}
}

// orphaned ends the run without a supervisor.
func (r *reaper) orphaned() {
	killAll() // beside wait, which may end this process first: each removes the trees
	r.removeTrees()
	os.Exit(exitFailed)
}

func (r *reaper) removeTrees() {
	for _, root := range r.trees {
		removeTree(root)
	}
}

// wait reaps all children and tells of the program, until nobody is left.
func (r *reaper) wait() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WUNTRACED|unix.WCONTINUED, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // ECHILD
			if r.socket.send(message{Kind: kindOver}) != nil {
				r.onThread(r.removeTrees)
			}
			return
		}
		if r.killing.Load() {
			r.onThread(killDescendants)
		}
		if pid != r.program {
			continue
		}
		m := message{Status: status}
		switch {
		case status.Stopped():
			m.Kind = kindStopped
		case status.Continued():
			m.Kind = kindContinued
		default:
			m.Kind = kindExited
			m.Left = unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) != unix.ECHILD
			r.program = 0
		}
		r.socket.send(m)
	}
}

// onThread calls f on a thread that has no filter.
func (r *reaper) onThread(f func()) {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	<-done
}

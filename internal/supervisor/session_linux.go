//go:build amd64 || arm64

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// A Session is a run, in the process of its supervisor.
type Session struct {
	Program Program

	starter conn
	parent  int // the starter's ID
	group   int // and its process group
	inherit []int

	mu     sync.Mutex
	reaper conn
	pid    int  // the reaper's
	ended  bool // the program has, and the starter knows
	dying  bool
	others *Shared // or nil
	over   chan struct{}
}

// supervise is the supervisor's process. Its arguments are the socket, the starter's process group, the number of options,
// the options, the program's path and the program's arguments.
func supervise(serve func(*Session) error) int {
	s := &Session{parent: os.Getppid(), over: make(chan struct{}), reaper: conn{-1}}
	var err error
	if s.starter, err = entered(); err == nil {
		err = s.parse(os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	s.inherit = inherited()
	go s.watchStarter()
	err = serve(s)
	s.fail(err)
	s.end()
	if err != nil {
		return exitFailed
	}
	return 0
}

// fail tells the starter why the run fails, if it does.
func (s *Session) fail(err error) {
	if err != nil {
		s.starter.send(message{Kind: kindFailed, Text: err.Error(), Code: exitCode(err)})
	}
}

var errArguments = errors.New("start the supervisor: too few arguments")

func (s *Session) parse(args []string) error {
	if len(args) < 4 {
		return errArguments
	}
	group, err1 := strconv.Atoi(args[0])
	n, err2 := strconv.Atoi(args[1])
	args = args[2:]
	if err1 != nil || err2 != nil || n < 0 || len(args) < n+2 {
		return errArguments
	}
	s.group = group
	s.Program = Program{Options: args[:n:n], Path: args[n], Args: args[n+1:]}
	return nil
}

// watchStarter ends the run if the starter dies before its program.
func (s *Session) watchStarter() {
	for {
		if _, _, err := s.starter.receive(); err != nil {
			break
		}
	}
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended {
		release(nil, 2) // others of the tree go on, and nobody is there to read errors
		return
	}
	s.die("")
}

// die kills the target's whole tree, removes the virtual files and ends this process.
func (s *Session) die(reason string) {
	s.mu.Lock()
	dying, others := s.dying, s.others
	s.dying = true
	s.mu.Unlock()
	if dying {
		select {} // another goroutine does it
	}
	killAll()
	trees.remove()
	s.starter.send(message{Kind: kindFailed, Text: reason, Code: exitFailed})
	if others != nil {
		s.linger(others)
	}
	os.Exit(exitFailed)
}

// end ends the run: who is left of the tree is killed.
func (s *Session) end() {
	s.Kill()
	s.Wait()
	trees.remove()
}

// Kill kills the target's whole tree.
func (s *Session) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pid != 0 {
		s.reaper.send(message{Kind: kindKill})
	}
}

// Wait waits until the last process of the tree has ended.
func (s *Session) Wait() {
	s.mu.Lock()
	started := s.pid != 0
	s.mu.Unlock()
	if started {
		<-s.over
	}
}

// Start starts the program under a filter, once. The tree's lock is shared with the reaper, so that it lasts as long as one of
// both. The listener may be sent to another process, whose death must then lead to Kill.
func (s *Session) Start(f Filter, t *Tree) (*Listener, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	args := append([]string{strconv.Itoa(s.group), s.Program.Path}, s.Program.Args...)
	s.mu.Lock()
	if s.dying { // no child comes after die has killed them all
		s.mu.Unlock()
		select {}
	}
	pid, err := spawn(reaperName, theirs, args...)
	if err != nil {
		s.mu.Unlock()
		ours.close()
		return nil, err
	}
	s.reaper, s.pid = ours, pid
	s.mu.Unlock()
	release(s.inherit, 0, 1)
	if err := ours.send(message{Kind: kindFilter, Filter: &f, Trees: trees.roots()}, t.lock); err != nil {
		close(s.over)
		return nil, fmt.Errorf("start the reaper: %w", err)
	}
	m, fds, err := ours.receive()
	switch {
	case err != nil:
		err = fmt.Errorf("start the reaper: it died: %w", err)
	case m.Kind == kindFailed:
		err = &failure{m.Text, m.Code}
	case m.Kind != kindListener || len(fds) != 1:
		err = errors.New("start the reaper: it sent no listener")
	}
	if err != nil {
		close(s.over)
		return nil, err
	}
	go s.follow()
	return &Listener{FD: fds[0], Base: m.Base}, nil
}

// follow passes on the reaper's messages.
func (s *Session) follow() {
	for {
		m, fds, err := s.reaper.receive()
		if err != nil { // the reaper is dead, and the program with it
			s.die("the reaper died, and the program was killed")
		}
		switch m.Kind {
		case kindStarted, kindStopped, kindExited, kindFailed:
			if m.Kind == kindExited || m.Kind == kindFailed {
				s.mu.Lock()
				s.ended = true
				s.mu.Unlock()
			}
			s.starter.send(m, fds...)
			for _, fd := range fds {
				unix.Close(fd)
			}
			if m.Kind == kindFailed {
				unix.Wait4(s.pid, nil, 0, nil)
				close(s.over)
				return
			}
		case kindContinued:
			unix.Kill(s.parent, unix.SIGCONT) // it stopped when the program did
		case kindOver:
			unix.Wait4(s.pid, nil, 0, nil)
			close(s.over)
			return
		}
	}
}

//go:build amd64 || arm64

package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Runs share a supervisor: the first run of a name serves, with its own target, the targets of the others, which hand their
// listeners to it. So one thread carries out a program's work requests at both ends, without a wake-up of another process.
//
//	the first                                     another
//	Share: bind the name                          Share: in use; Join: connect
//	of my user?            <---- kindJoin ------  of my user? its tree, and a word in its memory
//	can I read the word?   ----- kindShared --->
//	serve until its        <---- kindListener --  its listener
//	target has ended
//	                       ----- kindOver ----->  the end
//
// Each run keeps its own starter, reaper, tree and processes, and kills its own target. The first goes on until the last target
// has ended, whatever becomes of its own run. If it is killed, the connections break, and the others kill their targets: the
// state of their devices is gone. Where the first cannot read the memory of another's processes, as under Yama's ptrace_scope 1, the
// other serves its target itself.

// ErrShared says that another run serves for a name.
var ErrShared = errors.New("another run serves for this name")

// errNotShared says that the run must serve its target itself.
var errNotShared = errors.New("the run is not served by another")

// Guest is the target of another run.
type Guest struct {
	Listener *Listener
	Tree     *Tree // of the other run, without nodes
	Options  []string
	Stderr   *os.File // the other run's
}

// Shared takes the targets of other runs.
type Shared struct {
	socket conn

	mu     sync.Mutex
	idle   sync.Cond
	guests int
}

// Share begins to take the targets of the runs that Join by the same name. It calls serve for each, in a goroutine of its own,
// which returns when the target has ended. Share fails with ErrShared if another run serves for the name.
func Share(name string, serve func(Guest) error) (*Shared, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + name})
	if err == nil {
		err = unix.Listen(fd, mostWaiting)
	}
	if err != nil {
		unix.Close(fd)
		if err == unix.EADDRINUSE {
			return nil, ErrShared
		}
		return nil, os.NewSyscallError("bind", err)
	}
	s := &Shared{socket: conn{fd}}
	s.idle.L = &s.mu
	go s.accept(serve)
	return s, nil
}

// mostWaiting is how many runs wait to be accepted.
const mostWaiting = 64

func (s *Shared) accept(serve func(Guest) error) {
	for {
		fd, _, err := unix.Accept4(s.socket.fd, unix.SOCK_CLOEXEC)
		switch {
		case err == unix.EINTR || err == unix.ECONNABORTED:
			continue
		case err != nil && s.count(0) < 0:
			return
		case err != nil: // most often there is no descriptor to spare
			time.Sleep(acceptAgain)
			continue
		}
		if s.count(1) < 0 {
			unix.Close(fd)
			return
		}
		go func() {
			defer s.count(-1)
			defer unix.Close(fd)
			s.take(conn{fd}, serve)
		}()
	}
}

// acceptAgain is the pause after an accept that has failed.
const acceptAgain = 100 * time.Millisecond

// count counts n guests more. It returns how many there are, or -1 after Wait.
func (s *Shared) count(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.guests < 0 {
		return -1
	}
	s.guests += n
	s.idle.Broadcast()
	return s.guests
}

// Wait waits until no guest is left, and takes no more then.
func (s *Shared) Wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.guests > 0 {
		s.idle.Wait()
	}
	s.guests = -1
	unix.Shutdown(s.socket.fd, unix.SHUT_RDWR)
	s.socket.close()
}

// take serves a guest, if this process can.
func (s *Shared) take(c conn, serve func(Guest) error) {
	pid, ok := c.ofThisUser()
	if !ok {
		return
	}
	m, fds, err := c.receive()
	j := m.Join
	if err == nil && m.Kind == kindJoin && j != nil && len(fds) == 0 && j.readable(pid) && c.send(message{Kind: kindShared}) == nil {
		m, fds, err = c.receive()
	} else {
		err = errors.Join(err, errNotShared)
	}
	if err != nil || m.Kind != kindListener || len(fds) != 2 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return
	}
	g := Guest{Listener: &Listener{FD: fds[0], Base: m.Base}, Tree: adopt(j.Root, j.Prefixes), Options: j.Options, Stderr: os.NewFile(uintptr(fds[1]), "stderr")}
	defer g.Stderr.Close()
	if err := serve(g); err != nil {
		c.send(message{Kind: kindFailed, Text: err.Error(), Code: exitFailed})
		return
	}
	c.send(message{Kind: kindOver})
}

// join is a run's message to the run that is to serve it.
type join struct {
	Root     string
	Prefixes []string
	Options  []string
	Address  uint64 // of Word in the run's memory
	Word     uint64
}

// readable reports whether this process can read the memory of the run.
func (j *join) readable(pid int) bool {
	var m memory
	var b [8]byte
	_, err := m.read(pid, j.Address, b[:])
	return err == nil && binary.NativeEndian.Uint64(b[:]) == j.Word
}

// ofThisUser returns the process at the other end. It reports whether that process is of this user.
func (c conn) ofThisUser() (pid int, ok bool) {
	cred, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || cred.Pid == 0 || int(cred.Uid) != os.Geteuid() {
		return 0, false
	}
	return int(cred.Pid), true
}

// word is memory of this process by which another one sees whether it can read that.
var word = rand.Uint64()

// joinTime is how long the first run has to answer. A run that is stopped does not answer.
const joinTime = time.Second

// Join hands the target over to the run that serves for a name, with options for its serve, and returns when the target has ended. It
// reports false, with no error, if no run serves for the name, or if that run cannot serve the target: then the caller has the
// listener still.
func (s *Session) Join(name string, l *Listener, t *Tree, options []string) (joined bool, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, nil
	}
	c := conn{fd}
	defer c.close()
	limit := unix.NsecToTimeval(int64(joinTime))
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	if unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + name}) != nil {
		return false, nil
	}
	pid, ok := c.ofThisUser()
	if !ok {
		return false, nil
	}
	j := &join{Root: t.root, Prefixes: t.prefixes, Options: options, Address: uint64(uintptr(unsafe.Pointer(&word))), Word: word}
	if c.send(message{Kind: kindJoin, Join: j}) != nil {
		return false, nil
	}
	// The descriptors follow once the other run is there: in a socket that nobody reads they would stay open.
	m, _, err := c.receive()
	if err != nil || m.Kind != kindShared || c.send(message{Kind: kindListener, Base: l.Base}, l.FD, 2) != nil {
		return false, nil
	}
	l.Close()
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{})
	m, _, err = c.receive()
	switch {
	case err == io.EOF || err == nil && m.Kind != kindOver && m.Kind != kindFailed:
		return true, fmt.Errorf("process %d, the supervisor of another adverb run that served this one too, has died, and the program was killed", pid)
	case err != nil:
		return true, err
	case m.Kind == kindFailed:
		return true, &failure{m.Text, m.Code}
	}
	return true, nil
}

// Finish ends the run, and lets the starter go, while this process goes on for the targets of other runs. err is why the run could not
// be served, or nil.
func (s *Session) Finish(other *Shared, err error) {
	s.fail(err)
	s.end()
	s.linger(other)
}

// linger lets go of the starter and of its terminal, and waits for the targets of other runs.
func (s *Session) linger(other *Shared) {
	release(nil, 2)
	unix.Shutdown(s.starter.fd, unix.SHUT_RDWR)
	other.Wait()
}

// Outlive has this process go on for the targets of other runs where its own run is killed.
func (s *Session) Outlive(other *Shared) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others = other
}

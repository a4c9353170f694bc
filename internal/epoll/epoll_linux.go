package epoll

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Set is an epoll set. Control must not be called once it is closed.
type Set struct {
	fd   int
	file *os.File
	conn syscall.RawConn
}

// New makes an empty set.
func New() (*Set, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // os.NewFile asks the poller only for these
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	s := &Set{fd: fd, file: os.NewFile(uintptr(fd), "epoll")}
	s.conn, err = s.file.SyscallConn()
	if err == nil {
		err = s.file.SetReadDeadline(time.Time{}) // fails when the poller did not take it
	}
	if err != nil {
		s.file.Close()
		return nil, err
	}
	return s, nil
}

// Control sets the events for which the set watches a descriptor, and what EpollEvent.Fd will say of them:
// epoll_ctl.
func (s *Set) Control(op, fd int, name int32, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: name}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(s.fd, op, fd, &e))
}

// Await calls look until it returns true, at once and whenever there may be events. It fails at the deadline, and once
// the set is closed.
func (s *Set) Await(look func(set uintptr) bool) error { return s.conn.Read(look) }

// Ready fills events with those that are there, and returns how many. It is for the functions that Await calls.
func Ready(set uintptr, events []unix.EpollEvent) int {
	n, _ := unix.EpollWait(int(set), events, 0)
	return max(0, n)
}

// SetDeadline sets when Await fails; the zero time is never.
func (s *Set) SetDeadline(t time.Time) { s.file.SetReadDeadline(t) }

// Close closes the set.
func (s *Set) Close() { s.file.Close() }

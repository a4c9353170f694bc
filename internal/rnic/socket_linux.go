package rnic

import (
	"errors"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIOVec is how many buffers one system call is given.
const maxIOVec = 256

// tcpSocket is a socket by the descriptor of a TCP connection. Reads and writes are system calls that do
// not block, and Go's poller waits. The QP's lock is held over the calls, and over close, so the descriptor
// is the connection's.
type tcpSocket struct {
	conn   *net.TCPConn
	raw    syscall.RawConn
	fd     int
	closed bool
	iov    []unix.Iovec
}

// newSocket chooses how a connection moves bytes.
func newSocket(c net.Conn) socket {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return newConnSocket(c)
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return newConnSocket(c)
	}
	s := &tcpSocket{conn: t, raw: raw, fd: -1}
	if err := raw.Control(func(fd uintptr) { s.fd = int(fd) }); err != nil {
		return newConnSocket(c)
	}
	return s
}

func (s *tcpSocket) looks() bool { return true }

// vector fills s.iov.
func (s *tcpSocket) vector(bufs [][]byte) {
	s.iov = s.iov[:0]
	for _, b := range bufs[:min(len(bufs), maxIOVec)] {
		if len(b) > 0 {
			s.iov = append(s.iov, unix.Iovec{Base: unsafe.SliceData(b)})
			s.iov[len(s.iov)-1].SetLen(len(b))
		}
	}
}

// call makes a system call with the vector.
func (s *tcpSocket) call(trap uintptr, bufs [][]byte) (int, error) {
	if s.closed {
		return 0, net.ErrClosed
	}
	s.vector(bufs)
	if len(s.iov) == 0 {
		return 0, nil
	}
	for {
		n, _, errno := unix.Syscall(trap, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(s.iov))), uintptr(len(s.iov)))
		switch errno {
		case 0:
			clear(s.iov)
			return int(n), nil
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			clear(s.iov)
			return 0, errAgain
		}
		clear(s.iov)
		return 0, os.NewSyscallError("tcp", errno)
	}
}

func (s *tcpSocket) readv(bufs [][]byte) (int, error)  { return eof(s.call(unix.SYS_READV, bufs)) }
func (s *tcpSocket) writev(bufs [][]byte) (int, error) { return s.call(unix.SYS_WRITEV, bufs) }

func (s *tcpSocket) awaitRead(ready func() bool) {
	err := s.raw.Read(func(uintptr) bool { return ready() })
	if err != nil && !errors.Is(err, net.ErrClosed) {
		ready() // which finds the error
	}
}

func (s *tcpSocket) awaitWrite(ready func() bool) {
	err := s.raw.Write(func(uintptr) bool { return ready() })
	_ = err // the connection is closed, and the reader finds out why
}

func (s *tcpSocket) closeWrite() error { return s.conn.CloseWrite() }

func (s *tcpSocket) close() error {
	if !s.closed {
		s.closed = true
		go s.conn.Close() // it waits for awaitRead, which may wait for the QP's lock
	}
	return nil
}

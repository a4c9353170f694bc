package rnic

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/mem"
)

const (
	// One system call is given up to maxIOVec buffers.
	maxIOVec = 256
	// Go's scheduler need not know of a system call that moves up to briefMost bytes.
	briefMost = 256 << 10
)

// tcpSocket is a socket by the descriptor of a TCP connection. Reads and writes are system calls that do not
// block, and the device's poller waits. The QP's lock is held over the calls, and over close, so the descriptor is
// the connection's.
type tcpSocket struct {
	p      *poller
	id     uint32 // in the poller's set
	fd     int
	s      *stream
	closed bool
	iov    []unix.Iovec

	// Under the poller's lock.
	wantsRoom bool      // the stream waits for room
	until     time.Time // the end of its nap

	// How busily the program polls. The QP's lock guards these fields.
	since   time.Time     // the moment from which on looks are counted
	counted uint32        // at that moment
	waited  uint32        // waits at that moment
	nap     time.Duration // the latest, which began at since; 0 if there was none
}

// newSocket chooses how a connection moves bytes. A TCP connection gives its descriptor away, since Go's network
// poller is to know nothing of it: see poller.
func (d *Device) newSocket(s *stream, c net.Conn) socket {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return newConnSocket(s, c)
	}
	t, err := d.newTCPSocket(s, tcp)
	if err != nil { // descriptors are short: Go's poller has this one
		return newConnSocket(s, c)
	}
	_ = tcp.Close()
	return t
}

func (d *Device) newTCPSocket(s *stream, c *net.TCPConn) (*tcpSocket, error) {
	p, err := d.poller()
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	t := &tcpSocket{p: p, s: s, fd: -1}
	if e := raw.Control(func(fd uintptr) { t.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := p.add(t); err != nil {
		unix.Close(t.fd)
		return nil, err
	}
	return t, nil
}

func (t *tcpSocket) looks() bool { return true }

// vector fills t.iov, and returns how many bytes it has.
func (t *tcpSocket) vector(bufs [][]byte) (size int) {
	t.iov = t.iov[:0]
	for _, b := range bufs[:min(len(bufs), maxIOVec)] {
		if len(b) > 0 {
			t.iov = append(t.iov, unix.Iovec{Base: unsafe.SliceData(b)})
			t.iov[len(t.iov)-1].SetLen(len(b))
			size += len(b)
		}
	}
	return size
}

// call makes a system call with the vector.
func (t *tcpSocket) call(trap uintptr, bufs [][]byte) (int, error) {
	if t.closed {
		return 0, net.ErrClosed
	}
	size := t.vector(bufs)
	if size == 0 {
		return 0, nil
	}
	defer clear(t.iov)
	for {
		var n uintptr
		var errno syscall.Errno
		if size <= briefMost {
			n, _, errno = unix.RawSyscall(trap, uintptr(t.fd), uintptr(unsafe.Pointer(unsafe.SliceData(t.iov))), uintptr(len(t.iov)))
		} else {
			n, _, errno = unix.Syscall(trap, uintptr(t.fd), uintptr(unsafe.Pointer(unsafe.SliceData(t.iov))), uintptr(len(t.iov)))
		}
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return 0, errAgain
		case unix.EFAULT:
			return 0, mem.ErrFault
		}
		return 0, os.NewSyscallError("tcp", errno)
	}
}

func (t *tcpSocket) readv(bufs [][]byte) (int, error)  { return eof(t.call(unix.SYS_READV, bufs)) }
func (t *tcpSocket) writev(bufs [][]byte) (int, error) { return t.call(unix.SYS_WRITEV, bufs) }

func (t *tcpSocket) start() {
	t.since, t.counted, t.waited = time.Now(), t.s.q.looks, t.waits()
	t.p.dev.streams.Add(1)
	t.p.arm(t)
}

func (t *tcpSocket) awaitRoom() { t.p.wantRoom(t) }

// serve is called by the poller's goroutine after an event, or goes on. It reports whether there is more to read.
func (t *tcpSocket) serve(events uint32, turn int) (more bool) {
	s := t.s
	q := s.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.closed {
		return false
	}
	if events&unix.EPOLLOUT != 0 {
		s.room()
	}
	if s.readTurn(turn, false) {
		return true
	}
	t.restLocked()
	return false
}

// rest arms the socket, or lets it nap.
func (t *tcpSocket) rest() {
	q := t.s.q
	q.mu.Lock()
	defer q.mu.Unlock()
	t.restLocked()
}

// restLocked is rest under the QP's lock.
func (t *tcpSocket) restLocked() {
	if t.closed || t.s.quiet {
		return
	}
	now, waits := time.Now(), t.waits()
	took, looks := now.Sub(t.since), t.s.q.looks-t.counted
	switch {
	case waits == t.waited && looks >= busyLooks*uint32(max(1, t.nap/napTime)):
		t.nap = max(napTime, min(2*t.nap, napMost))
	case waits == t.waited && t.nap == 0 && took < napTime:
		t.p.arm(t)
		return
	default:
		t.nap = 0
	}
	t.since, t.counted, t.waited = now, t.s.q.looks, waits
	if t.nap == 0 || !t.p.nap(t, t.nap, waits) {
		t.nap = 0
		t.p.arm(t)
	}
}

// waits counts how often somebody was about to block for a CQ of the QP.
func (t *tcpSocket) waits() uint32 { return t.s.q.sendCQ.waits.Load() + t.s.q.recvCQ.waits.Load() }

func (t *tcpSocket) closeWrite() error {
	return os.NewSyscallError("shutdown", unix.Shutdown(t.fd, unix.SHUT_WR))
}

func (t *tcpSocket) close() error {
	if t.closed {
		return nil
	}
	t.closed = true
	t.p.remove(t)
	err := unix.Close(t.fd)
	t.p.dev.streams.Done()
	return os.NewSyscallError("close", err)
}

// SetKeepAliveConfig is net.TCPConn's, for the descriptor.
func (t *tcpSocket) SetKeepAliveConfig(c net.KeepAliveConfig) error {
	if t.closed {
		return net.ErrClosed
	}
	if !c.Enable {
		return t.set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0)
	}
	seconds := func(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
	return errors.Join(
		t.set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		t.set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(c.Idle)),
		t.set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(c.Interval)),
		t.set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, c.Count))
}

func (t *tcpSocket) set(level, option, value int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(t.fd, level, option, value))
}

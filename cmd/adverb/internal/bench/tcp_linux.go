package bench

import (
	"fmt"
	"io"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// canPollTCP says why TCP cannot be polled busily here, or nothing.
const canPollTCP = ""

// setCongestionControl chooses one of the system's controllers of congestion.
func setCongestionControl(c *net.TCPConn, name string) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name) }); cerr != nil {
		return cerr
	}
	if err != nil {
		return fmt.Errorf("TCP_CONGESTION=%s (modprobe tcp_%s): %w", name, name, err)
	}
	return nil
}

// polling reads and writes a connection without Go's netpoller and scheduler, and never sleeps.
type polling struct {
	fd   int
	stop *stopper
}

// pollingConn returns a way to c that polls busily, until stop is set.
func pollingConn(c *net.TCPConn, stop *stopper) io.ReadWriter {
	p := polling{-1, stop}
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { p.fd = int(fd) }) // c stays open as long as p is used
	}
	return p
}

func (p polling) Read(b []byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(p.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch {
		case errno == 0 && n > 0:
			return int(n), nil
		case errno == 0:
			return 0, io.EOF
		case errno != unix.EAGAIN && errno != unix.EINTR:
			return 0, os.NewSyscallError("read", errno)
		case p.stop.set.Load():
			return 0, os.ErrClosed
		}
	}
}

func (p polling) Write(b []byte) (int, error) {
	// A message of the ping-pong always fits into the socket's buffer.
	n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(p.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return 0, os.NewSyscallError("write", errno)
	}
	return int(n), nil
}

package rnic

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout sets how long data may stay unacknowledged. TCP then does not count the keep-alive probes
// any more, and ends the connection when this time is over.
func setUserTimeout(k keepAliveConn, d time.Duration) error {
	if t, ok := k.(*tcpSocket); ok {
		return setUserTimeoutOf(t.fd, d)
	}
	c, ok := k.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = setUserTimeoutOf(int(fd), d) })
	if err != nil {
		return err
	}
	return serr
}

func setUserTimeoutOf(fd int, d time.Duration) error {
	return os.NewSyscallError("setsockopt TCP_USER_TIMEOUT", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds())))
}

//go:build !linux

package bench

import (
	"errors"
	"io"
	"net"
)

const canPollTCP = "polling a TCP socket busily is built for Linux only"

func pollingConn(c *net.TCPConn, _ *stopper) io.ReadWriter { return c }

func setCongestionControl(*net.TCPConn, string) error {
	return errors.New("TCP_CONGESTION is Linux's")
}

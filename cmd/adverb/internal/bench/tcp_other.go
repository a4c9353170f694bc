//go:build !linux

package bench

import (
	"io"
	"net"
)

const canPollTCP = "polling a TCP socket busily is built for Linux only"

func pollingConn(c *net.TCPConn, _ *stopper) io.ReadWriter { return c }

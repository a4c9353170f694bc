//go:build !linux

package rnic

import "net"

// newSocket chooses how a connection moves bytes.
func (*Device) newSocket(s *stream, c net.Conn) socket { return newConnSocket(s, c) }

// poller is Linux's.
type poller struct{}

func (*poller) close()         {}
func (*poller) expectWait(*cq) {}

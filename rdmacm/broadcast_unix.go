//go:build unix && !linux

package rdmacm

import "syscall"

// noBroadcast has the system refuse to connect a socket to a broadcast address, which package net
// allows.
func noBroadcast(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 0)
	}); cerr != nil {
		return cerr
	}
	return err
}

//go:build !linux

package rnic

import "net"

// newSocket chooses how a connection moves bytes.
func newSocket(c net.Conn) socket { return newConnSocket(c) }

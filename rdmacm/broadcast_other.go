//go:build !unix

package rdmacm

import "syscall"

// noBroadcast does nothing: that an address is a network's broadcast address shows here when nobody answers.
func noBroadcast(_, _ string, _ syscall.RawConn) error { return nil }

//go:build !unix

package rdmacm

import "syscall"

// noBroadcast does nothing: what a broadcast address is of a network shows here when nobody answers.
func noBroadcast(_, _ string, _ syscall.RawConn) error { return nil }

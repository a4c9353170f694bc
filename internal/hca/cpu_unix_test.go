//go:build unix

package hca

import (
	"syscall"
	"time"
)

// processCPU returns how much CPU time the process has had.
func processCPU() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

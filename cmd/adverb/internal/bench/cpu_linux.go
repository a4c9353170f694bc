package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// A cpuClock counts the CPU time of a process, of all its threads.
type cpuClock int32

const (
	ownCPU cpuClock = unix.CLOCK_PROCESS_CPUTIME_ID
	// noCPU is the clock of no process.
	noCPU cpuClock = -1
	// schedClock are the low bits of another process's clock: see clock_getcpuclockid(3).
	schedClock = 2
)

// cpuClockOf returns the clock of another process of this host.
func cpuClockOf(pid int) cpuClock {
	if pid <= 0 {
		return noCPU
	}
	return cpuClock(^int32(pid)<<3 | schedClock)
}

// read returns the time since the process began, or 0 if it is gone.
func (c cpuClock) read() time.Duration {
	var ts unix.Timespec
	if c == noCPU || unix.ClockGettime(int32(c), &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

package tcp

import (
	"math"

	"golang.org/x/sys/unix"
)

// Files returns how many files a process may have open, or math.MaxInt if nobody knows.
func Files() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur > math.MaxInt {
		return math.MaxInt
	}
	return int(l.Cur)
}

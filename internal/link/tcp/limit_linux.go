package tcp

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// fileLimit says how many files a process may have open.
func fileLimit() string {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return "a limited number of them"
	}
	return strconv.FormatUint(l.Cur, 10)
}

package user

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
)

// usualOverflow is Linux's overflow user ID where nobody has changed it.
const usualOverflow = 65534

// readView asks the kernel. Without an answer, as without /proc, the overflow ID is no user's.
func readView() view {
	v := view{overflow: usualOverflow}
	if b, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil {
			v.overflow = uint32(n)
		}
	}
	if f, err := os.Open("/proc/self/uid_map"); err == nil {
		defer f.Close()
		v.whole = mapsAll(f)
	}
	return v
}

// mapsAll reports whether a uid_map leaves no user out. Each of its lines has a first number inside, a first one
// outside and a count. The kernel ensures that no number is in two lines, at either side.
func mapsAll(r io.Reader) bool {
	sum := uint64(0)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 3 {
			return false
		}
		n, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			return false
		}
		sum += n
	}
	return lines.Err() == nil && sum == allIDs
}

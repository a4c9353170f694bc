//go:build !linux

package tcp

import "math"

// Files returns how many files a process may have open, or math.MaxInt if nobody knows.
func Files() int { return math.MaxInt }

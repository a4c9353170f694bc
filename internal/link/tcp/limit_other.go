//go:build !linux

package tcp

// fileLimit says how many files a process may have open.
func fileLimit() string { return "a limited number of them" }

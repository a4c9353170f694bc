//go:build !linux

package bench

import (
	"errors"
	"os/exec"
)

func dieWithThread(*exec.Cmd) {}

func isMainThread() bool { return false }

var errPinning = errors.New("pinning processes to cores is built for Linux only")

// pin keeps the thread on one core.
func pin(int) error { return errPinning }

// allowedCPUs are the cores that the thread may run on, or nil if the system does not tell.
func allowedCPUs() []int { return nil }

func kernel() string { return "" }
func model() string  { return "" }

// openVeth is for Linux.
func openVeth(*network, []int) (*site, error) {
	return nil, errors.New("network namespaces are Linux's")
}

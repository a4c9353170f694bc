package linktest

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// OwnNetwork puts the test into a network namespace of its own, in which the loopback interface is
// down. It skips the test where that needs privileges.
func OwnNetwork(t *testing.T) {
	t.Helper()
	if !unshare(t) {
		t.Skip("a network namespace needs privileges")
	}
}

// OwnLoopback puts the test into a network namespace of its own, in which the loopback interface is up. A
// namespace has but one IPv6 loopback address, and who has its port alone is in the way of all other tests that
// listen there. Where that needs privileges, the test stays where it is.
func OwnLoopback(t testing.TB) {
	t.Helper()
	if !unshare(t) {
		return
	}
	if err := LoopbackUp(); err != nil {
		t.Fatal(err)
	}
}

// unshare reports whether the test is in a network namespace of its own now.
func unshare(t testing.TB) bool {
	t.Helper()
	runtime.LockOSThread() // for good: the thread cannot return to the other namespace, and ends with the test
	err := unix.Unshare(unix.CLONE_NEWNET)
	if errors.Is(err, unix.EPERM) {
		runtime.UnlockOSThread()
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

// LoopbackUp brings the loopback interface up.
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return err
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

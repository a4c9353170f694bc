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
	runtime.LockOSThread() // for good: the thread cannot return to the other namespace, and ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); errors.Is(err, unix.EPERM) {
		t.Skip("a network namespace needs privileges")
	} else if err != nil {
		t.Fatal(err)
	}
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

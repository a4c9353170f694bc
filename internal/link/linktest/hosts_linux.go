package linktest

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Host is a network namespace, with its loopback interface up.
type Host struct{ calls chan func() }

// NewHost makes a host, which exists as long as the test. It skips the test where that needs privileges, or the program
// ip is missing.
func NewHost(t *testing.T) Host {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	calls, ready := make(chan func()), make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread cannot return to the other namespace, and ends with the goroutine
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range calls {
			f()
		}
	}()
	t.Cleanup(func() { close(calls) })
	if err := <-ready; errors.Is(err, unix.EPERM) {
		t.Skip("a network namespace needs privileges")
	} else if err != nil {
		t.Fatal(err)
	}
	h := Host{calls}
	h.IP(t, "link set lo up")
	return h
}

// Do runs f on the host: sockets that f opens, and processes that f starts, stay there.
func (h Host) Do(f func()) {
	done := make(chan struct{})
	h.calls <- func() { defer close(done); f() }
	<-done
}

// IP runs commands of the program ip.
func (h Host) IP(t *testing.T, commands ...string) {
	t.Helper()
	for _, c := range commands {
		var out []byte
		var err error
		h.Do(func() { out, err = exec.Command("ip", strings.Fields(c)...).CombinedOutput() })
		if err != nil {
			t.Fatalf("ip %s: %v: %s", c, err, out)
		}
	}
}

// The MAC addresses of the wire's ends.
const (
	MACA = "02:00:00:00:01:01"
	MACB = "02:00:00:00:01:02"
)

// TwoHosts makes two hosts with a wire between them. Its ends are w0, with the addresses 10.93.0.1 and fd93::1, and w1, with
// 10.93.0.2 and fd93::2.
func TwoHosts(t *testing.T) (a, b Host) {
	t.Helper()
	a, b = NewHost(t), NewHost(t)
	var thread int
	b.Do(func() { thread = unix.Gettid() })
	a.IP(t, "link add w0 address "+MACA+" mtu 9000 type veth peer name w1 address "+MACB+" mtu 9000", fmt.Sprint("link set w1 netns ", thread))
	for i, h := range []Host{a, b} {
		w, n := fmt.Sprint("w", i), i+1
		h.IP(t, fmt.Sprintf("addr add 10.93.0.%d/24 dev %s", n, w), fmt.Sprintf("-6 addr add fd93::%d/64 dev %s nodad", n, w), "link set "+w+" up")
	}
	return a, b
}

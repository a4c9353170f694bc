//go:build linux && !adverb_portable

package udp_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/udp"
)

// denyEnv names the system calls that the test binary denies itself before it runs tests.
const denyEnv = "ADVERB_TEST_DENY"

func TestMain(m *testing.M) {
	if calls := os.Getenv(denyEnv); calls != "" {
		if err := deny(strings.Split(calls, ",")); err != nil {
			fmt.Println(noSeccomp, err)
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// noSeccomp is the output of a test binary that cannot deny itself anything.
const noSeccomp = "no seccomp:"

var callNumbers = map[string]uint32{
	"recvmmsg": unix.SYS_RECVMMSG, "recvmsg": unix.SYS_RECVMSG,
	"sendmmsg": unix.SYS_SENDMMSG, "sendmsg": unix.SYS_SENDMSG,
}

// deny has the kernel answer system calls of all threads with EPERM, for the process's life.
func deny(calls []string) error {
	var numbers []uint32
	for _, c := range calls {
		numbers = append(numbers, callNumbers[c])
	}
	return linktest.Refuse(unix.EPERM, unix.SECCOMP_FILTER_FLAG_TSYNC, numbers...)
}

// denied runs tests of this package in a process to which system calls are denied.
func denied(t *testing.T, calls, pattern string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run", pattern, "-test.v", "-test.short")
	cmd.Env = append(os.Environ(), denyEnv+"="+calls)
	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), noSeccomp):
		t.Skipf("%s", out)
	case err != nil || !strings.Contains(string(out), "--- PASS"):
		t.Errorf("without %s: %v\n%s\nwant it to pass", calls, err, out)
	}
}

// A sandbox that knows only the older system calls is no obstacle.
func TestDenied(t *testing.T) {
	if os.Getenv(denyEnv) != "" {
		t.Skip("this is the process without them")
	}
	for _, calls := range []string{"recvmmsg", "sendmmsg", "recvmmsg,sendmmsg"} {
		t.Run(calls, func(t *testing.T) {
			denied(t, calls, "^(TestConformance|TestTrafficClass|TestTrainWhole|TestTrainOversized|TestOversizedDropped|TestAllocs)$")
		})
	}
	for _, calls := range []string{"recvmmsg,recvmsg", "sendmmsg,sendmsg"} {
		t.Run(calls, func(t *testing.T) { denied(t, calls, "^TestDeniedNamed$") })
	}
}

// Where nothing is left to fall back on, the error names the system call.
func TestDeniedNamed(t *testing.T) {
	calls := os.Getenv(denyEnv)
	if calls == "" {
		t.Skip("run by TestDenied")
	}
	d, err := udp.NetdevForAddr("lo", testAddr(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = d.Open(testAddr(1))
	want := "the system calls " + strings.Replace(calls, ",", " and ", 1) + " are denied to this process"
	if err == nil || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), want) {
		t.Errorf("open: %v, want an error with %q", err, want)
	}
}

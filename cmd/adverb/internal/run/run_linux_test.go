//go:build amd64 || arm64

package run

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/supervisor"
)

// underRun runs a program under adverb run, with the device of the loopback interface.
func underRun(t *testing.T, argv ...string) tooltest.Result {
	t.Helper()
	return underRunBy(t, nil, argv...)
}

// underRunBy is underRun with more flags.
func underRunBy(t *testing.T, flags []string, argv ...string) tooltest.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	return <-tooltest.StartProcess(ctx, t, slices.Concat([]string{"adverb", "run", "-d", "soft_lo"}, flags, []string{"--"}, argv)...).Done
}

// needSupervisor skips a test where no program can be run.
func needSupervisor(t *testing.T) {
	t.Helper()
	for _, f := range supervisor.Check() {
		if f.Needed && !f.OK {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s: %s: %s", f.Name, f.Lost, f.Remedy)
			}
			t.Skipf("%s: %s: %s", f.Name, f.Lost, f.Remedy)
		}
	}
}

// TestTargets runs programs that talk to the devices of a kernel.
func TestTargets(t *testing.T) {
	needSupervisor(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"verbs", "cm", "manager", "native", "netlink", "on demand"} {
		if r := underRun(t, exe, asTarget, what); r.Code != 0 || r.Stdout != "done\n" {
			t.Errorf("%s: status %d, %q, %s", what, r.Code, r.Stdout, r.Stderr)
		}
	}
}

// canMap reports whether the program's memory can be mapped.
func canMap() bool {
	return slices.ContainsFunc(supervisor.Check(), func(f supervisor.Finding) bool { return f.Name == "mapped memory" && f.OK })
}

// TestMemory: the program's memory is mapped where that can be, and not if the user says so.
func TestMemory(t *testing.T) {
	needSupervisor(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	maps := canMap()
	for _, x := range []struct {
		flags []string
		maps  bool
	}{{nil, maps}, {[]string{"--memory=auto"}, maps}, {[]string{"--memory=copy"}, false}} {
		what := "copied"
		if x.maps {
			what = "mapped"
		}
		if r := underRunBy(t, append(x.flags, "-v"), exe, asTarget, what); r.Code != 0 || r.Stdout != "done\n" {
			t.Errorf("%q: status %d, %q, %s; want memory that is %s", x.flags, r.Code, r.Stdout, r.Stderr, what)
		}
	}
	if r := underRunBy(t, []string{"--memory=none"}, exe, asTarget, "verbs"); r.Code != 2 {
		t.Errorf("--memory=none: status %d, %s, want 2", r.Code, r.Stderr)
	}
}

// TestShown: programs see the device that was chosen, in sysfs and in /dev, and no other.
func TestShown(t *testing.T) {
	needSupervisor(t)
	r := underRun(t, "sh", "-c", "ls /dev/infiniband /sys/class/infiniband; cat /sys/class/infiniband_verbs/uverbs0/ibdev /sys/class/misc/rdma_cm/abi_version")
	if want := "/dev/infiniband:\nrdma_cm\nuverbs0\n\n/sys/class/infiniband:\nrxe_lo\nrxe_lo\n4\n"; r.Code != 0 || r.Stdout != want {
		t.Errorf("status %d, %q, %s, want %q", r.Code, r.Stdout, r.Stderr, want)
	}
	// A file by which the tool tells the kernel's devices, which its usual build does not serve, from these.
	if r := underRun(t, "test", "-e", "/sys/class/infiniband/rxe_lo/uevent"); r.Code != 1 {
		t.Errorf("rxe_lo/uevent: status %d, %s, want 1: there is none", r.Code, r.Stderr)
	}
}

// TestStatus: the status is the program's.
func TestStatus(t *testing.T) {
	needSupervisor(t)
	if r := underRun(t, "sh", "-c", "exit 7"); r.Code != 7 {
		t.Errorf("a program with status 7: got %d, %s", r.Code, r.Stderr)
	}
	if r := underRun(t, "adverb-has-no-such-program"); r.Code != 127 || !strings.Contains(r.Stderr, "adverb-has-no-such-program") {
		t.Errorf("no such program: got status %d, %q, want 127 and its name", r.Code, r.Stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	if r := tool.Result(ctx, "adverb", "run"); r.Code != 2 || !strings.Contains(r.Stderr+r.Stdout, "program") {
		t.Errorf("no program: got status %d, %q, want 2 and the usage", r.Code, r.Stderr)
	}
	if r := tool.Result(ctx, "adverb", "run", "--check"); r.Code != 0 || !strings.Contains(r.Stdout, "seccomp") {
		t.Errorf("--check: got status %d, %q", r.Code, r.Stdout)
	}
}

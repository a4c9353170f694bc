package usertest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Users who own nothing. Nobody has the number by which Linux shows users that a namespace does not map.
const (
	Nobody   = 65534
	Somebody = 12345
)

// envInside names the test that runs in a process which In has started.
const envInside = "ADVERB_TEST_IN_PROCESS"

// forbid skips a test that needs what is forbidden here. In CI it fails.
func forbid(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s: CI must not skip this test", what)
	}
	t.Skipf("SKIPPED, and so this shows nothing: %s", what)
}

// NeedsRoot skips a test that needs to be root to be others.
func NeedsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		forbid(t, "only root can be other users")
	}
}

// Thread runs f on a thread of another user. The sockets and messages that f makes are that user's. The rest of the
// process stays root's.
func Thread(t *testing.T, uid int, f func()) {
	t.Helper()
	NeedsRoot(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			t.Errorf("setresuid: %v", errno)
			return
		}
		f()
	}()
	<-done
}

// Inside reports whether this is a process in which In runs the test.
func Inside(t *testing.T) bool { return os.Getenv(envInside) == t.Name() }

// In runs the test that calls it once more, in a process of its own that change can make another user's. In that process
// it returns true, and else false: the test then returns.
func In(t *testing.T, change ...func(*testing.T, *exec.Cmd)) (inside bool) {
	t.Helper()
	if Inside(t) {
		return true
	}
	var parts []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		parts = append(parts, "^"+part+"$")
	}
	cmd := exec.Command(executable(t), "-test.run="+strings.Join(parts, "/"), "-test.v")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), envInside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	for _, c := range change {
		c(t, cmd)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Start()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		forbid(t, "a process of another user, or in a user namespace: "+err.Error())
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil || !strings.Contains(out.String(), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s\nwant the test passed in a process of its own", err, &out)
	}
	return false
}

// executable returns a copy of the test's program that everybody may run.
func executable(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "usertest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	copied := filepath.Join(dir, filepath.Base(exe))
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(copied, program, 0o755)); err != nil {
		t.Fatal(err)
	}
	return copied
}

// As makes the process another user's.
func As(uid uint32) func(*testing.T, *exec.Cmd) {
	return func(t *testing.T, cmd *exec.Cmd) {
		t.Helper()
		NeedsRoot(t)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
}

// Namespace runs the process in a user namespace of its own. ranges are pairs of a first number, which is the same inside
// and outside, and how many numbers from there on are mapped. Others are not. Only root can map others than itself.
func Namespace(ranges ...[2]int) func(*testing.T, *exec.Cmd) {
	return func(t *testing.T, cmd *exec.Cmd) {
		t.Helper()
		if len(ranges) > 0 {
			NeedsRoot(t)
		}
		a := cmd.SysProcAttr
		a.Cloneflags |= syscall.CLONE_NEWUSER
		for _, r := range ranges {
			m := syscall.SysProcIDMap{ContainerID: r[0], HostID: r[0], Size: r[1]}
			a.UidMappings, a.GidMappings = append(a.UidMappings, m), append(a.GidMappings, m)
		}
		a.GidMappingsEnableSetgroups = len(ranges) > 0
	}
}

// Network puts the process into a network namespace of its own.
func Network(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	NeedsRoot(t)
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNET
}

// All is the range of all numbers, for Namespace.
func All() [2]int {
	n := ^uint32(0) // 1<<32-1, which as a constant is no int of 32-bit systems
	return [2]int{0, int(n)}
}

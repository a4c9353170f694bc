//go:build !adverb_portable

package soft_test

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
)

const (
	// envInside is the address for TestProcessInside, which other tests run in a namespace or as
	// another user.
	envInside = "ADVERB_TEST_INSIDE"
	// envLoopbackUp brings up the loopback interface, in a new network namespace.
	envLoopbackUp = "ADVERB_TEST_LOOPBACK_UP"

	nobody = 65534
)

func init() {
	if os.Getenv(envLoopbackUp) == "" {
		return
	}
	os.Unsetenv(envLoopbackUp)
	check(linktest.LoopbackUp())
}

func TestProcessInside(t *testing.T) {
	addr := os.Getenv(envInside)
	if addr == "" {
		t.Skip("other tests run this one, with an address in " + envInside)
	}
	ms := startTeam(t, loopback(t)+"@"+addr, 3, order{Retry: patientRetry})
	sum := ms.finish()
	ms.unhurt()
	if sum.RCSent != sum.RCReceived {
		t.Errorf("%+v, want RCReceived to be RCSent", sum)
	}
}

// runInside runs TestProcessInside as a process of its own.
func runInside(t *testing.T, addr string, change func(*exec.Cmd)) {
	t.Helper()
	runTestInside(t, "TestProcessInside", func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, envInside+"="+addr)
		change(cmd)
	})
}

// notPermitted is part of what a test prints that is skipped for lack of privileges.
const notPermitted = "not permitted here"

// runTestInside runs a test in a process of its own, which change can put into a namespace or give
// another user. It skips if that, or something the test needs there, is not permitted.
func runTestInside(t *testing.T, name string, change func(*exec.Cmd)) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^"+name+"$", "-test.v")
	cmd.Env = os.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	change(cmd)
	if err := cmd.Start(); errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("%s: %v", notPermitted, err)
	} else if err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if err == nil && strings.Contains(out.String(), notPermitted) {
		t.Skip(out.String())
	}
	if err != nil || !strings.Contains(out.String(), "--- PASS: "+name) {
		t.Errorf("%v\n%s\nwant the test passed", err, out.String())
	}
}

// runInOwnNetwork is runTestInside in a network namespace of its own, whose loopback interface is up. The test runs only
// where the variable env is set.
func runInOwnNetwork(t *testing.T, name, env string) {
	t.Helper()
	runInOwnNetworkWith(t, name, env+"=1")
}

// runInOwnNetworkWith is runInOwnNetwork with variables of the environment.
func runInOwnNetworkWith(t *testing.T, name string, env ...string) {
	t.Helper()
	runTestInside(t, name, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, append(env, envLoopbackUp+"=1")...)
		ownNetwork(cmd)
	})
}

// In a network namespace of its own, as a container has, an address is free that is taken outside.
func TestProcessNamespace(t *testing.T) {
	addr := loopAddr(24)
	taken, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 4791)))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	runInside(t, addr, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, envLoopbackUp+"=1")
		ownNetwork(cmd)
	})
}

// ownNetwork makes a command run in a network namespace of its own, as root of that namespace.
func ownNetwork(cmd *exec.Cmd) {
	a := cmd.SysProcAttr
	a.Cloneflags = syscall.CLONE_NEWNET
	if os.Geteuid() != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
}

// asNobody returns a change that makes a command run this binary as a user without privileges.
func asNobody(t *testing.T) func(*exec.Cmd) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user; the other tests run without privileges as it is")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "soft")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	copied := filepath.Join(dir, "soft.test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(copied, binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	return func(cmd *exec.Cmd) {
		cmd.Path, cmd.Dir = copied, "/"
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
}

// Everything works without privileges.
func TestProcessUnprivileged(t *testing.T) {
	runInside(t, loopAddr(25), asNobody(t))
}

// Only processes of one user share an address. A process of another user gets an error that says
// so, and the others do not notice it.
func TestProcessOtherUser(t *testing.T) {
	device := loopback(t) + "@" + loopAddr(26)
	ms := startTeam(t, device, 2, order{Retry: patientRetry})
	stranger := start(t, "stranger", device, asNobody(t))
	<-stranger.ended
	if got := stranger.stderr.String(); stranger.cmd.ProcessState.Success() || !strings.Contains(got, "address already in use") {
		t.Errorf("another user's process: %v, %s; want it to fail with \"address already in use\"", stranger.cmd.ProcessState, got)
	} else {
		t.Log(got)
	}
	sum := ms.finish()
	ms.unhurt()
	if sum.RCSent != sum.RCReceived {
		t.Errorf("%+v, want RCReceived to be RCSent", sum)
	}
}

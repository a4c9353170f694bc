package streams

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// envMounts marks the process that has mounts of its own.
const envMounts = "ADVERB_TEST_MOUNTS"

// The server's reason reaches the user of rcopy, however long the file is. A long one is still under way when the server
// gives up.
func TestRcopyReason(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRcopyReasonInside$", "-test.timeout="+tooltest.Patience.String())
	cmd.Env = append(os.Environ(), envMounts+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if id := os.Getuid(); id != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("no mounts can be made: %v", err)
	}
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestRcopyReasonInside(t *testing.T) {
	if os.Getenv(envMounts) == "" {
		t.Skip("TestRcopyReason runs this one")
	}
	small := t.TempDir()
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("none", small, "tmpfs", 0, "size=16k")); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(small, unix.MNT_DETACH)
	ctx := t.Context()
	port := startRcopy(ctx, t, small)
	for _, size := range []int64{64 << 10, 64 << 20} {
		name := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(name, bytes.Repeat([]byte{1}, int(size)), 0o600); err != nil {
			t.Fatal(err)
		}
		r := tool.Result(ctx, "adverb", "rcopy", "-p", port, name, "127.0.0.1:/full")
		if r.Code == 0 || !strings.Contains(r.Stderr, "no space left") {
			t.Errorf("a file of %d bytes: got status %d, %s, want a failure that says why", size, r.Code, r.Stderr)
		}
	}
}

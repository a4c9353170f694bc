package usertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// MemoryGroup runs the process in a control group that has so many bytes of memory. The test removes the group.
func MemoryGroup(bytes int) func(*testing.T, *exec.Cmd) {
	return func(t *testing.T, cmd *exec.Cmd) {
		t.Helper()
		NeedsRoot(t)
		dir, limit := memoryGroups()
		dir, err := os.MkdirTemp(dir, "adverb-test")
		if err != nil {
			forbid(t, "a control group: "+err.Error())
		}
		t.Cleanup(func() {
			if err := syscall.Rmdir(dir); err != nil {
				t.Errorf("remove the control group %s: %v", dir, err)
			}
		})
		if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(bytes)), 0); err != nil {
			forbid(t, "a control group with a limit of memory: "+err.Error())
		}
		before(cmd, "echo $$ > "+filepath.Join(dir, "cgroup.procs"))
	}
}

// memoryGroups returns the directory of control groups in which a group can have a limit, and the limit's file.
func memoryGroups() (dir, limit string) {
	const version1 = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(version1 + "/memory.limit_in_bytes"); err == nil {
		return version1, "memory.limit_in_bytes"
	}
	return "/sys/fs/cgroup", "memory.max"
}

// Ulimit runs the process with a limit of its resources, by an option of the shell's ulimit: "-n" bounds descriptors, and
// "-v" the address space in KiB.
func Ulimit(option string, value int) func(*testing.T, *exec.Cmd) {
	return func(t *testing.T, cmd *exec.Cmd) {
		t.Helper()
		before(cmd, fmt.Sprintf("ulimit %s %d", option, value))
	}
}

// before has a shell do something before it becomes the program.
func before(cmd *exec.Cmd, what string) {
	script := what + ` && exec "$0" "$@"`
	cmd.Args = append([]string{"sh", "-c", script, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}

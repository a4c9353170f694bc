//go:build amd64 || arm64

package run

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// parent returns the parent of a process, or 0.
func parent(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if err != nil || len(f) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(string(f[1]))
	return n
}

// ancestors returns the parent of a process, its parent, and so on.
func ancestors(pid int) (all []int) {
	for pid = parent(pid); pid > 1; pid = parent(pid) {
		all = append(all, pid)
	}
	return all
}

// family is the processes of a run: the starter, the supervisor, the reaper, and the program. Those that there are not yet
// are 0.
type family [4]int

const (
	starterProcess = iota
	supervisorProcess
	reaperProcess
	programProcess
)

// familyOf returns the processes of the run of a starter.
func familyOf(starter int) family {
	f := family{starter}
	children := map[int]int{}
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, n := range names {
		if pid, err := strconv.Atoi(strings.TrimPrefix(n, "/proc/")); err == nil {
			children[parent(pid)] = pid
		}
	}
	for i := supervisorProcess; i <= programProcess && f[i-1] != 0; i++ {
		f[i] = children[f[i-1]]
	}
	return f
}

// programOf returns the program of a run.
func programOf(t *testing.T, starter int) int {
	t.Helper()
	f := familyOf(starter)
	if f[programProcess] == 0 {
		t.Fatalf("the starter, the supervisor, the reaper and the program are %v, want a program", f)
	}
	return f[programProcess]
}

//go:build amd64 || arm64

package supervisor

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shared is a name for each test.
func shared(t *testing.T) option { return env("TOY_SHARE=test/" + t.Name() + fmt.Sprint(os.Getpid())) }

// startShared starts a run that serves others, and one that it serves.
func startShared(t *testing.T) (first, other *run) {
	t.Helper()
	first = start(t, []string{"/bin/cat", "cat"}, shared(t))
	first.await("shares", 1)
	other = start(t, []string{"/bin/sh", "sh", "-c", `while read line; do cat ` + toyAttr + `; echo read > $TOY_LOG; done`}, shared(t))
	if got, want := other.pid("guest of"), first.pid("supervisor"); got != want {
		t.Fatalf("the supervisor is process %d, want that of the first run, %d", got, want)
	}
	return first, other
}

// step has the program read the virtual file for the n-th time.
func (r *run) step(n int) {
	r.t.Helper()
	if _, err := io.WriteString(r.stdin, "go\n"); err != nil {
		r.t.Fatal(err)
	}
	r.await("read", n)
}

// ends ends the program by the end of its input.
func (r *run) ends(steps int) {
	r.t.Helper()
	r.stdin.Close()
	if code := r.wait(); code != 0 {
		r.t.Errorf("exit status %d, want 0; output:\n%s", code, &r.out)
	}
	if got, want := r.out.String(), strings.Repeat("1: CA\n", steps); got != want {
		r.t.Errorf("the program read %q, want %q", got, want)
	}
}

// TestShare: the first run's supervisor serves the target of another run, also after the first run's end.
func TestShare(t *testing.T) {
	first, other := startShared(t)
	other.step(1)
	first.ends(0)
	other.step(2)
	other.ends(2)
	other.nothingLeft()
	first.nothingLeft()
}

// TestShareTargets: devices, their descriptors and waiting calls are as under a supervisor of one's own.
func TestShareTargets(t *testing.T) {
	first := start(t, []string{"/bin/cat", "cat"}, shared(t))
	first.await("shares", 1)
	for _, what := range []string{"descriptors", "paths", "closing", "signals"} {
		r := start(t, self(t, what), shared(t))
		if code := r.wait(); code != 0 {
			t.Errorf("%s: exit status %d; the toy said %q; output:\n%s", what, code, r.said(), &r.out)
		}
		r.await("guest of", 1)
		r.nothingLeft()
	}
	first.ends(0)
	first.nothingLeft()
}

// TestShareKills: each of the processes is killed. A run ends with its own processes, and with those that serve it, alone.
func TestShareKills(t *testing.T) {
	for _, c := range []struct {
		victim     func(first, other *run) int
		first      bool // ends
		other      bool
		otherWords string
	}{
		{func(first, _ *run) int { return first.cmd.Process.Pid }, true, false, ""},
		{func(first, _ *run) int { return first.pid("reaper") }, true, false, ""},
		{func(first, _ *run) int { return first.pid("supervisor") }, true, true, "the supervisor of another adverb run that served this one too, has died"},
		{func(_, other *run) int { return other.cmd.Process.Pid }, false, true, ""},
		{func(_, other *run) int { return other.pid("supervisor") }, false, true, ""},
		{func(_, other *run) int { return other.pid("reaper") }, false, true, ""},
	} {
		first, other := startShared(t)
		other.step(1)
		if err := unix.Kill(c.victim(first, other), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if c.first {
			first.wait()
		}
		if c.other {
			other.wait()
			other.nothingLeft()
			if !strings.Contains(other.out.String(), c.otherWords) {
				t.Errorf("the other run said %q, want %q", &other.out, c.otherWords)
			}
		} else {
			other.step(2)
			other.ends(2)
			other.nothingLeft()
		}
		if !c.first {
			first.ends(0)
		}
		first.nothingLeft()
	}
}

// TestShareAlone: a run whose memory the first cannot read serves its target itself, and so does one whose first is stopped.
func TestShareAlone(t *testing.T) {
	name := shared(t)
	first := start(t, []string{"/bin/cat", "cat"}, name)
	first.await("shares", 1)
	pid := first.pid("supervisor")
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	alone := start(t, []string{"/bin/cat", "cat"}, name)
	alone.await("alone", 1)
	if took := time.Since(began); took < joinTime {
		t.Errorf("it went alone after %v, want %v at least", took, joinTime)
	}
	alone.ends(0)
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	first.ends(0)
	first.nothingLeft()
	alone.nothingLeft()
}

// TestShareReadable: a run is served only by a process that can read its memory.
func TestShareReadable(t *testing.T) {
	j := join{Address: 4096, Word: 1}
	if j.readable(os.Getpid()) {
		t.Error("memory that is not there can be read")
	}
}

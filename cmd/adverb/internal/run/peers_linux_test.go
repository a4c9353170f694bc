//go:build amd64 || arm64

package run

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// running is a program under adverb run that talks with the test by lines.
type running struct {
	t      testing.TB
	cmd    *exec.Cmd // the starter
	in     io.WriteCloser
	lines  chan string // closed at the end of the output
	stderr bytes.Buffer
	end    chan struct{} // closed when the starter has ended
}

// startPeer starts targetPeer under adverb run, with variables for its environment.
func startPeer(t testing.TB, env ...string) *running {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, lines: make(chan string, 16), end: make(chan struct{})}
	r.cmd = exec.Command(exe)
	r.cmd.Args = []string{"adverb", "run", "-d", "soft_lo", "--", exe, asTarget, "peer"}
	r.cmd.Env = append(append(os.Environ(), tooltest.AsTool+"=1", "GORACE=atexit_sleep_ms=0"), env...)
	r.cmd.Stderr = &r.stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		<-r.end
	})
	go func() {
		defer close(r.end)
		for s := bufio.NewScanner(out); s.Scan(); {
			r.lines <- s.Text()
		}
		close(r.lines)
		r.cmd.Wait()
	}()
	return r
}

// line returns the next line that the program prints. It is empty where the program has ended.
func (r *running) line() string {
	r.t.Helper()
	select {
	case l := <-r.lines:
		return l
	case <-time.After(tooltest.Patience):
		r.t.Fatalf("no line after %v", tooltest.Patience)
	}
	return ""
}

// said ends a run that is not as it should be, and returns what it has said on standard error.
func (r *running) said() string {
	r.in.Close()
	select {
	case <-r.end:
	case <-time.After(tooltest.Patience):
		return "it does not end"
	}
	return r.cmd.ProcessState.String() + ": " + r.stderr.String()
}

// expect fails the test unless the next line begins so.
func (r *running) expect(begin string) string {
	r.t.Helper()
	l := r.line()
	if !strings.HasPrefix(l, begin) {
		r.t.Fatalf("got line %q, want one that begins with %q; %s", l, begin, r.said())
	}
	return l
}

// contact returns the contact of the program's QP, which is its first line.
func (r *running) contact() string {
	r.t.Helper()
	l := r.line()
	if l == "" {
		r.t.Fatalf("a program has ended before it began: %s", r.said())
	}
	return l
}

// tell gives the program a line.
func (r *running) tell(line any) { fmt.Fprintln(r.in, line) }

// quit ends the program's input, and waits until it has ended.
func (r *running) quit(ctx context.Context) {
	r.t.Helper()
	r.in.Close()
	select {
	case <-r.end:
	case <-ctx.Done():
		r.t.Fatal("the program does not end")
	}
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		r.t.Fatalf("exit status %d: %s", code, r.stderr.String())
	}
}

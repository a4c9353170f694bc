//go:build amd64 || arm64

package supervisor

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is for what must happen, and soon.
const patience = 30 * time.Second

// A run is a program under a supervisor of its own.
type run struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   output     // and errors, of the program and of the starter
	alive *os.File   // ends when the whole tree of the program has ended
	gone  chan error // of the starter
	temp  string     // where trees are made

	mu    sync.Mutex
	lines []string // of the toy's log
	more  chan struct{}
}

// output can be looked at while it is written, for what hangs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

type option func(*exec.Cmd)

func env(pairs ...string) option {
	return func(c *exec.Cmd) { c.Env = append(c.Env, pairs...) }
}

// nobody runs all of it without root's rights, as root can.
func nobody(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// testBinary is this test, where every user can run it.
var testBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "supervisor-test-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "supervisor.test")
	return name, os.WriteFile(name, b, 0o755)
})

// require skips the test where the machine cannot run it. In CI it fails.
func require(t *testing.T) {
	t.Helper()
	for _, f := range Check() {
		if !f.OK && f.Needed {
			lacks(t, f.Name+": "+f.Lost+" Remedy: "+f.Remedy)
		}
	}
}

func lacks(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("in CI this test must run: %s", what)
	}
	t.Skip(what)
}

func programPath(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		lacks(t, "no program "+name)
	}
	return path
}

// start runs a program: a path and its arguments with the name.
func start(t *testing.T, argv []string, options ...option) *run {
	t.Helper()
	require(t)
	exe, err := testBinary()
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, gone: make(chan error, 1), more: make(chan struct{}, 1), temp: t.TempDir()}
	for dir := r.temp; dir != "/" && strings.HasPrefix(dir, os.TempDir()); dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	os.Chmod(r.temp, 0o777)
	fifo := filepath.Join(r.temp, "log")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	os.Chmod(fifo, 0o666)
	log, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	go r.read(log)
	alive, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.alive = alive
	t.Cleanup(func() { alive.Close() })
	r.cmd = exec.Command(exe)
	r.cmd.Args = append([]string{"starter"}, argv...)
	r.cmd.Env = append(os.Environ(), "TOY_LOG="+fifo, "TMPDIR="+r.temp, "XDG_RUNTIME_DIR=", "LC_ALL=C", "EXE="+exe)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.out
	r.cmd.ExtraFiles = []*os.File{theirs}
	r.cmd.Dir = r.temp
	for _, o := range options {
		o(r.cmd)
	}
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	t.Cleanup(func() { r.cmd.Process.Kill() })
	go func() { r.gone <- r.cmd.Wait() }()
	return r
}

func (r *run) read(f *os.File) {
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		r.mu.Lock()
		r.lines = append(r.lines, lines.Text())
		r.mu.Unlock()
		select {
		case r.more <- struct{}{}:
		default:
		}
	}
}

func (r *run) said() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.lines...)
}

// await waits until the toy has said a line that begins so, so often, and returns the rest of the last of these.
func (r *run) await(begin string, times int) string {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		n := 0
		for _, line := range r.said() {
			if rest, ok := strings.CutPrefix(line, begin); ok {
				if n++; n == times {
					return strings.TrimSpace(rest)
				}
			}
		}
		select {
		case <-r.more:
		case <-deadline:
			r.t.Fatalf("the toy never said %q %d times. It said %q; output:\n%s", begin, times, r.said(), &r.out)
		}
	}
}

func (r *run) pid(who string) int {
	r.t.Helper()
	n, err := strconv.Atoi(r.await(who, 1))
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// wait waits for the starter, and returns its exit status as a shell says it.
func (r *run) wait() int {
	r.t.Helper()
	select {
	case <-r.gone:
	case <-time.After(patience):
		r.t.Fatalf("the starter has not ended. The toy said %q; output:\n%s", r.said(), &r.out)
	}
	ws := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// output waits for the end of a program that succeeds, and returns what it said.
func (r *run) output() string {
	r.t.Helper()
	if code := r.wait(); code != 0 {
		r.t.Fatalf("%q: exit status %d, want 0. The toy said %q; output:\n%s", r.cmd.Args, code, r.said(), &r.out)
	}
	return r.out.String()
}

// nothingLeft waits until all processes of the run have ended, and checks that there is no tree.
func (r *run) nothingLeft() {
	r.t.Helper()
	r.alive.SetReadDeadline(time.Now().Add(patience))
	if _, err := r.alive.Read(make([]byte, 1)); err != io.EOF {
		r.t.Fatalf("the program's tree has not ended: %v. The toy said %q", err, r.said())
	}
	for _, line := range r.said() {
		who, pid, _ := strings.Cut(line, " ")
		if n, err := strconv.Atoi(pid); err == nil && (who == "supervisor" || who == "reaper") {
			ended(r.t, n)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(r.temp, treePrefix+"*")); len(left) > 0 {
		r.t.Errorf("left behind: %q. The toy said %q", left, r.said())
	}
}

// ended waits until a process has ended. It need not be a child.
func ended(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if n != 1 {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Fatalf("process %d has not ended: %q", pid, b)
		}
		return
	}
}

// self is a target of this test binary.
func self(t *testing.T, mode string, args ...string) []string {
	t.Helper()
	exe, err := testBinary()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{exe, "target", mode}, args...)
}

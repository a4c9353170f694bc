//go:build amd64 || arm64

package supervisor

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// surroundings are those in which each target runs.
func surroundings(t *testing.T, f func(t *testing.T, options ...option)) {
	t.Run("as it is", func(t *testing.T) { f(t) })
	t.Run("without ptrace", func(t *testing.T) { f(t, env("TOY_DENY=1")) })
	if os.Geteuid() != 0 {
		return // it was without root's rights
	}
	t.Run("as nobody", func(t *testing.T) { f(t, nobody) })
	t.Run("as nobody without ptrace", func(t *testing.T) { f(t, nobody, env("TOY_DENY=1")) })
}

func TestTargets(t *testing.T) {
	for _, mode := range []string{"descriptors", "paths", "closing", "signals"} {
		t.Run(mode, func(t *testing.T) {
			surroundings(t, func(t *testing.T, options ...option) {
				r := start(t, self(t, mode), options...)
				r.output()
				r.nothingLeft()
			})
		})
	}
}

func TestRelease(t *testing.T) {
	surroundings(t, func(t *testing.T, options ...option) {
		r := start(t, self(t, "release"), options...)
		step := func(here, gone int) {
			t.Helper()
			r.await(fmt.Sprint("released ", gone), 1)
			if here != 0 && slices.Contains(r.said(), fmt.Sprint("released ", here)) {
				t.Errorf("file %d was released while somebody had it", here)
			}
			fmt.Fprintln(r.stdin)
		}
		step(1, 2) // mapped
		step(0, 1)
		step(3, 4) // inherited by a child
		step(0, 3)
		step(5, 6) // sent to another process
		step(0, 5)
		step(7, 8) // a copy is left
		step(0, 7)
		r.await("released 9", 1) // by exec
		r.stdin.Close()
		r.output()
		r.nothingLeft()
	})
}

func TestPrograms(t *testing.T) {
	for _, tt := range []struct {
		argv []string
		want []string
	}{
		{[]string{"cat", toyAttr}, []string{"1: CA\n"}},
		{[]string{"ls", "-l", "/dev/infiniband"}, []string{"crw-rw-rw- 1 root root 231, 192 ", " toy0\n"}},
		{[]string{"ls", "-lR", toyClass}, []string{"device -> ../../infiniband_verbs/toy0"}},
		{[]string{"find", "/dev/infiniband", toyClass, "-type", "c", "-o", "-type", "l"}, []string{toyNode + "\n", toyMem + "\n", toyClass + "/toy0/device\n"}},
		{[]string{"stat", "-c", "%F %n %a", toyNode, toyClass}, []string{"character special file " + toyNode + " 666\n", "directory " + toyClass}},
		{[]string{"sh", "-c", "cat " + toyClass + "/*/node_type; test -c " + toyNode + " && echo yes; echo x > " + toyAttr}, []string{"1: CA\nyes\n", "ermission denied"}},
		{[]string{"realpath", toyClass + "/toy0/device"}, []string{"/sys/class/infiniband_verbs/toy0\n"}},
		{[]string{"python3", "-c", "import os, fcntl\nfd = os.open('" + toyNode + "', os.O_RDWR)\nos.write(fd, b'word')\nprint(os.read(fd, 9), fcntl.ioctl(fd, 0x14201), os.listdir('" + toyClass + "'), os.get_inheritable(fd))"}, []string{"b'word' 1 ['toy0'] False\n"}},
	} {
		t.Run(tt.argv[0], func(t *testing.T) {
			path := programPath(t, tt.argv[0])
			if tt.argv[0] == "python3" && exec.Command(path, "-c", "import fcntl").Run() != nil {
				lacks(t, "python3 does not run")
			}
			r := start(t, append([]string{path}, tt.argv...))
			r.wait()
			for _, want := range tt.want {
				if !strings.Contains(r.out.String(), want) {
					t.Errorf("%q: %q is not in the output:\n%s", tt.argv, want, &r.out)
				}
			}
			if strings.Contains(r.out.String(), treePrefix) {
				t.Errorf("%q: the output names the temporary tree:\n%s", tt.argv, &r.out)
			}
			r.nothingLeft()
		})
	}
}

// A signal that comes for the process, and not for a thread, ends a call too.
func TestProcessSignal(t *testing.T) {
	path := programPath(t, "python3")
	r := start(t, []string{path, "python3", "-c", `
import fcntl, os, signal
class Alarm(Exception): pass
def handler(*args): raise Alarm
signal.signal(signal.SIGALRM, handler)
fd = os.open("` + toyNode + `", os.O_RDWR)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    fcntl.ioctl(fd, 0x14202)
except Alarm:
    print("alarm")
`})
	if got := r.output(); got != "alarm\n" {
		t.Errorf("got %q, want alarm", got)
	}
	r.await("gone 1", 1)
	r.nothingLeft()
}

// twoWait is a program in which two threads wait in calls while signals come for the process.
const twoWait = `
import fcntl, os, signal, threading
class Alarm(Exception): pass
def alarm(*args): raise Alarm
fd = os.open("` + toyNode + `", os.O_RDWR)
threads = []
def other():
    try:
        os.write(1, b"another %d\n" % fcntl.ioctl(fd, 0x14202)) # toyWait
    except OSError as e:
        os.write(1, b"another: %s\n" % str(e).encode())
        os._exit(1)
def begin():
    threads.append(threading.Thread(target=other))
    threads[-1].start()
    while fcntl.ioctl(fd, 0x14208) != len(threads): pass # toyCount
begin()
signal.signal(signal.SIGALRM, alarm)
for i in range(5): # the main thread handles them
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        fcntl.ioctl(fd, 0x14202)
    except Alarm:
        pass
handled = 0
def count(*args):
    global handled
    handled += 1
signal.signal(signal.SIGUSR1, count)
signal.siginterrupt(signal.SIGUSR1, False)
begin()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for i in range(5): # one of the others does
    os.kill(os.getpid(), signal.SIGUSR1)
    while signal.SIGUSR1 in signal.sigpending(): pass
    while handled != i + 1: fcntl.ioctl(fd, 0x14208) # Python looks for signals after it
woken = 0
while woken < 2:
    woken += fcntl.ioctl(fd, 0x14203, 7) # toyWake
for t in threads:
    t.join()
print("handled", handled)
`

// TestProcessSignals: a signal for the process ends the call of the thread that handles it, and another thread notices nothing.
func TestProcessSignals(t *testing.T) {
	r := start(t, []string{programPath(t, "python3"), "python3", "-c", twoWait})
	if got, want := r.output(), "another 7\nanother 7\nhandled 5\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.nothingLeft()
}

// A thread that dies takes its call away.
func TestWaitingDeath(t *testing.T) {
	r := start(t, self(t, "wait"))
	r.await("waits 1", 1)
	r.cmd.Process.Signal(unix.SIGTERM) // is passed on
	if got, want := r.wait(), 128+int(unix.SIGTERM); got != want {
		t.Errorf("exit status %d, want %d", got, want)
	}
	r.await("gone 1", 1)
	r.await("released 1", 1)
	r.nothingLeft()
}

func TestStatus(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("exit 9\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		argv []string
		want int
		text string
	}{
		{[]string{"/bin/sh", "sh", "-c", "exit 7"}, 7, ""},
		{[]string{"/bin/sh", "sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		{[]string{"/bin/sh", "sh", "-c", "kill -SEGV $$"}, 128 + 11, ""},
		{[]string{"/bin/sh", "sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{[]string{"/none", "none"}, exitNotFound, "start /none: no such file or directory"},
		{[]string{"/etc/passwd", "passwd"}, exitNotRunning, "start /etc/passwd: permission denied"},
		{[]string{script, "script"}, 9, ""}, // without #!
	} {
		r := start(t, tt.argv)
		if got := r.wait(); got != tt.want || !strings.Contains(r.out.String(), tt.text) {
			t.Errorf("%q: exit status %d, want %d; output %q, want %q", tt.argv, got, tt.want, &r.out, tt.text)
		}
		r.nothingLeft()
	}
}

// The program inherits what it would have inherited by exec, and nothing else.
func TestSurroundings(t *testing.T) {
	exe, err := testBinary()
	if err != nil {
		t.Fatal(err)
	}
	run := func(argv ...string) string {
		cmd := exec.Command("/bin/sh", append([]string{"-c", "umask 027; ulimit -c 5; ulimit -n 500; exec 9</dev/null; exec \"$@\"", "sh"}, argv...)...)
		cmd.Env = append(os.Environ(), "VARIABLE=a b", "TOY_LOG=")
		cmd.Dir = "/usr"
		cmd.Stdin = strings.NewReader("")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cmd.ExtraFiles = []*os.File{w}
		b, err := cmd.CombinedOutput()
		w.Close()
		if err != nil {
			t.Fatalf("%q: %v: %s", argv, err, b)
		}
		return string(b)
	}
	require(t)
	bash := programPath(t, "bash")
	direct := run(bash, "-c", "exec -a target \"$0\" surroundings", exe)
	under := run(bash, "-c", "exec -a starter \"$0\" \"$0\" target surroundings", exe)
	if direct != under {
		t.Errorf("under the supervisor:\n%s\nwithout:\n%s", under, direct)
	}
	if !strings.Contains(under, " 9]\n") {
		t.Errorf("want descriptor 9:\n%s", under)
	}
}

// The range is below the limit of open files, whatever Go's runtime makes of that.
func TestLimit(t *testing.T) {
	require(t)
	exe, err := testBinary()
	if err != nil {
		t.Fatal(err)
	}
	bash := programPath(t, "bash")
	for _, tt := range []struct {
		limit int
		want  string
	}{
		{256, "number 255 223\n"},
		{128, "number 127 95\n"},
		{127, "the limit of open files is 127, and devices need 128"},
		{1025, "number 1023 991\n"},
	} {
		cmd := exec.Command(bash, "-c", fmt.Sprintf(`ulimit -S -n %d; exec -a starter "$0" "$0" target number`, tt.limit), exe)
		cmd.Env = append(os.Environ(), "TOY_LOG=")
		if b, _ := cmd.CombinedOutput(); !strings.Contains(string(b), tt.want) {
			t.Errorf("limit %d: got %q, want %q", tt.limit, b, tt.want)
		}
	}
}

// There is one supervisor for a tree of processes, and a second one says so.
func TestNested(t *testing.T) {
	r := start(t, []string{programPath(t, "bash"), "bash", "-c", `exec -a starter "$EXE" /bin/true true`})
	if got, want := r.wait(), "this process is under a supervisor already"; got != exitFailed || !strings.Contains(r.out.String(), want) {
		t.Errorf("exit status %d, want %d; output %q, want %q", got, exitFailed, &r.out, want)
	}
	r.nothingLeft()
}

// A pipe ends when the program closes it, though the supervisor runs.
func TestPipeEnds(t *testing.T) {
	r := start(t, []string{"/bin/sh", "sh", "-c", "exec 3>&-; exec sleep 1000"})
	r.alive.SetReadDeadline(time.Now().Add(patience))
	r.await("reaper", 1)
	if _, err := r.alive.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the program has closed the pipe, and it has not ended: %v", err)
	}
	r.cmd.Process.Signal(unix.SIGTERM)
	r.wait()
	r.nothingLeft()
}

func TestSignalsArePassedOn(t *testing.T) {
	r := start(t, self(t, "sleeper"))
	r.await("open 1", 1)
	for i, sig := range []unix.Signal{unix.SIGINT, unix.SIGUSR1, unix.SIGWINCH, unix.SIGTERM} {
		r.cmd.Process.Signal(sig)
		r.await(fmt.Sprint("open ", i+2), 1)
	}
	if got := r.wait(); got != 3 {
		t.Errorf("exit status %d, want 3; output:\n%s", got, &r.out)
	}
	for _, sig := range []string{"interrupt", "user defined signal 1", "window changed", "terminated"} {
		if strings.Count(r.out.String(), sig+"\n") != 1 {
			t.Errorf("want one %q:\n%s", sig, &r.out)
		}
	}
	r.nothingLeft()
}

// On a terminal the program gets each signal once, and the shell sees the job stop and end.
func TestTerminal(t *testing.T) {
	require(t)
	exe, err := testBinary()
	if err != nil {
		t.Fatal(err)
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		lacks(t, "no terminal: "+err.Error())
	}
	defer master.Close()
	conn, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	conn.Control(func(fd uintptr) {
		err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		number, _ = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
	})
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.Command(exe)
	shell.Args = []string{"target", "session", exe, "target", "terminal"}
	shell.Env = append(os.Environ(), "EXE="+exe, "TOY_LOG=")
	shell.Stdin, shell.Stdout, shell.Stderr = slave, slave, slave
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	lines := make(chan string, 64)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(master); s.Scan(); {
			lines <- s.Text()
		}
	}()
	var all []string
	await := func(text string) string {
		t.Helper()
		for {
			select {
			case line, ok := <-lines:
				all = append(all, line)
				if strings.Contains(line, text) {
					return line
				}
				if !ok {
					t.Fatalf("the terminal ended without %q: %q", text, all)
				}
			case <-time.After(patience):
				t.Fatalf("the terminal never said %q: %q", text, all)
			}
		}
	}
	job, _ := strconv.Atoi(strings.TrimPrefix(await("job "), "job "))
	await("ready")
	master.WriteString("\x03")
	await("interrupt 1")
	master.WriteString("\x1a")
	await("stopped by stopped")
	master.WriteString("\x03")
	await("interrupt 2")
	unix.Kill(job, unix.SIGUSR1)
	await("status 12") // no more than two
	await("ok")
	shell.Wait()
}

// The starter ends with the program. Who is left of the tree is served until the end.
func TestBackground(t *testing.T) {
	r := start(t, []string{"/bin/sh", "sh", "-c", `mkfifo $TMPDIR/go; (read x < $TMPDIR/go; cat ` + toyAttr + ` > $TMPDIR/result) <&- >&- 2>&- & exit 4`})
	if got := r.wait(); got != 4 {
		t.Fatalf("exit status %d, want 4; output:\n%s", got, &r.out)
	}
	if err := os.WriteFile(filepath.Join(r.temp, "go"), []byte("x\n"), 0); err != nil {
		t.Fatal(err)
	}
	r.nothingLeft()
	if b, err := os.ReadFile(filepath.Join(r.temp, "result")); string(b) != "1: CA\n" {
		t.Errorf("the child that was left read %q, %v", b, err)
	}
}

// Whichever process is killed, and whenever: nothing is left.
func TestKill(t *testing.T) {
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	seed := uint64(time.Now().Nanosecond())
	rnd := rand.New(rand.NewPCG(seed, 0))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	for range rounds {
		r := start(t, []string{"/bin/sh", "sh", "-c", `echo $$ > $TMPDIR/program; sleep 1000 >/dev/null 2>&1 & (setsid sleep 1000 >/dev/null 2>&1 &); while :; do cat ` + toyAttr + ` >/dev/null; done >/dev/null 2>&1`})
		victim := []string{"starter", "supervisor", "reaper", "program"}[rnd.IntN(4)]
		pid := r.cmd.Process.Pid
		switch victim {
		case "supervisor", "reaper":
			pid = r.pid(victim)
		case "program":
			pid = awaitChild(t, r.pid("reaper"))
		}
		spin(time.Duration(rnd.IntN(20000)) * time.Microsecond)
		if pid != 0 {
			unix.Kill(pid, unix.SIGKILL)
		}
		code := r.wait()
		if victim == "program" { // its children go on by themselves, as without a supervisor
			if code != 128+9 && pid != 0 {
				t.Errorf("the program was killed, and the exit status is %d", code)
			}
			unix.Kill(r.pid("supervisor"), unix.SIGKILL)
		}
		r.nothingLeft()
		if t.Failed() {
			t.Fatalf("after %s was killed; the toy said %q; output:\n%s", victim, r.said(), &r.out)
		}
	}
}

// spin lets other processes go on for some time, which a test at random instants has to.
func spin(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
		os.Getppid()
	}
}

// awaitChild finds the first child of a process, or 0 if the process ends before it has one.
func awaitChild(t *testing.T, parent int) int {
	for {
		if list := descendants(parent); len(list) > 0 {
			return list[0]
		}
		if unix.Kill(parent, 0) != nil {
			return 0
		}
	}
}

func TestHostile(t *testing.T) {
	calls := "20000"
	if testing.Short() {
		calls = "3000"
	}
	surroundings(t, func(t *testing.T, options ...option) {
		seed := strconv.Itoa(time.Now().Nanosecond())
		r := start(t, self(t, "hostile", seed, calls), options...)
		if code := r.wait(); code != 0 {
			t.Errorf("seed %s: exit status %d; the toy said %q; output:\n%s", seed, code, r.said(), &r.out)
		}
		r.await("served <nil>", 1)
		r.nothingLeft()
	})
}

func BenchmarkCost(b *testing.B) { costs(b, "cost") }

// costs prints the figures of a target.
func costs(b *testing.B, target string) {
	for b.Loop() {
		exe, err := testBinary()
		if err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command(exe)
		cmd.Args = []string{"starter", exe, "target", target}
		cmd.Env = append(os.Environ(), "TOY_LOG=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		b.Logf("\n%s", out)
	}
}

// BenchmarkStart measures true under a supervisor, and without.
func BenchmarkStart(b *testing.B) {
	exe, err := testBinary()
	if err != nil {
		b.Fatal(err)
	}
	for name, args := range map[string][]string{"under": {"starter", "/bin/true", "true"}, "without": nil} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command("/bin/true")
				if args != nil {
					cmd = exec.Command(exe)
					cmd.Args = args
					cmd.Env = append(os.Environ(), "TOY_LOG=")
				}
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			}
		})
	}
}

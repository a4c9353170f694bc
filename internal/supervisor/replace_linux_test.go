//go:build amd64

package supervisor

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestReplaced runs targets whose memory is replaced.
func TestReplaced(t *testing.T) {
	for _, mode := range []string{"memory", "kept", "advice", "mremap", "forks", "blocked", "unstoppable", "stopped", "debugged", "seized"} {
		t.Run(mode, func(t *testing.T) {
			for name, options := range map[string][]option{"as it is": {}, "as nobody": {nobody}} {
				if name == "as nobody" && os.Geteuid() != 0 {
					continue
				}
				t.Run(name, func(t *testing.T) {
					r := start(t, self(t, mode), append(options, env("GODEBUG=asyncpreemptoff=1"))...)
					r.output()
					r.nothingLeft()
				})
			}
		})
	}
}

// TestStoppedLate: a thread notices nothing that stops only after the patience for it. There is no supervisor here.
func TestStoppedLate(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"target", "late"}
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	var out strings.Builder
	cmd.Stderr = &out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	waits, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if _, err := waits.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		err := trace(func(t *tracer) error {
			return t.stopAll(cmd.Process.Pid, 0, func(int) bool { return false })
		})
		if err != nil && !errors.Is(err, errBusy) {
			t.Fatal(err)
		}
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the program: %v: %s", err, &out)
	}
}

// TestReplacedWithoutPtrace: where threads cannot be stopped all memory stays the program's alone.
func TestReplacedWithoutPtrace(t *testing.T) {
	r := start(t, self(t, "remapper", "each"), env("TOY_DENY=1"))
	if _, err := r.stdin.Write([]byte("xx")); err != nil {
		t.Fatal(err)
	}
	r.stdin.Close()
	if out := r.output(); out != "mapped false\nmapped false\nok\n" {
		t.Errorf("got %q, want no mapped memory", out)
	}
	r.await("not mapped: a thread may not be traced", 1)
}

// signalled is a program that counts signals while its memory is replaced, and while it forks: each arrives once.
const signalled = `
import ctypes, fcntl, mmap, os, signal, struct, sys
device = os.open("` + toyNode + `", os.O_RDWR)
r, w = os.pipe()
os.set_blocking(r, False)
os.set_blocking(w, False)
many, number = 2000, signal.SIGRTMIN + 3
signal.signal(number, lambda *_: None)
signal.siginterrupt(number, False) # a call that the supervisor has not received yet ends by a signal
signal.set_wakeup_fd(w)
parent = os.getpid()
ready, go = os.pipe()
child = os.fork()
if child == 0:
    for i in range(many):
        os.read(ready, 1)
        while True:
            try:
                os.kill(parent, number)
                break
            except BlockingIOError: # too many wait
                pass
    os._exit(0)
count = mapped = 0
def take():
    global count
    try:
        count += len(os.read(r, 65536))
    except BlockingIOError:
        pass
while count < many:
    os.write(go, b"x" * 20) # so many come
    m = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)
    m[0:5] = b"hello"
    at = ctypes.addressof(ctypes.c_char.from_buffer(m))
    if fcntl.ioctl(device, 0x1420b, bytearray(struct.pack("3Q", at, 8192, 0))) != 0: # toyMap
        mapped += 1
    assert m[0:5] == b"hello"
    os.write(go, b"x" * 20)
    other = os.fork() # with memory that is to be copied
    if other == 0:
        os._exit(0 if m[0:5] == b"hello" else 1)
    assert os.waitpid(other, 0)[1] == 0
    take()
    if os.waitpid(child, os.WNOHANG)[0] == child:
        break
take()
assert count == many, count
print("signals", count, "and mapped", mapped > 0)
`

// TestReplacedSignals: signals that come while memory is replaced are not lost.
func TestReplacedSignals(t *testing.T) {
	r := start(t, []string{programPath(t, "python3"), "python3", "-c", signalled})
	if out := r.output(); out != "signals 2000 and mapped True\n" {
		t.Errorf("got %q", out)
	}
	r.nothingLeft()
}

// TestReplacedChaos: whatever a program does to registered memory, the supervisor lives.
func TestReplacedChaos(t *testing.T) {
	rounds := "300"
	if testing.Short() {
		rounds = "100"
	}
	for _, seed := range []string{"1", "2"} {
		r := start(t, self(t, "chaos", seed, rounds))
		r.output()
		r.nothingLeft()
	}
}

// BenchmarkMemory prints what it takes to map memory, and what calls take that the filter notifies for that.
func BenchmarkMemory(b *testing.B) { costs(b, "mapcost") }

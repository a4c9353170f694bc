//go:build !adverb_portable

package watch

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/user"
)

// Programs that are hung, hostile or gone cost at most the time of a conversation, and hide none that
// answers.
func TestAskStrange(t *testing.T) {
	serveRaw := func(name string, f func(net.Conn)) string {
		name = socketName(os.Geteuid(), name+"-"+t.Name())
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				f(c)
			}
		}()
		return name
	}
	hold := func(c net.Conn) { t.Cleanup(func() { c.Close() }) }
	good, err := serve(socketName(os.Geteuid(), "good-"+t.Name()), func(Want) Process {
		return Process{PID: 1, Command: "a\x1b[2Jb", Devices: []Device{{Name: "x"}}}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer good.close()
	names := []string{
		socketName(os.Geteuid(), "nobody-"+t.Name()),
		serveRaw("hangs", hold),
		serveRaw("hangs in its answer", func(c net.Conn) { hold(c); io.WriteString(c, `{"pid": 7`) }),
		serveRaw("drips", func(c net.Conn) {
			t.Cleanup(func() { c.Close() })
			go func() {
				for _, err := io.WriteString(c, `[`); err == nil; _, err = io.WriteString(c, strings.Repeat(" ", 1<<16)) {
				}
			}()
		}),
		serveRaw("babbles", func(c net.Conn) { io.WriteString(c, "\x1b]0;you\x07 are owned"); c.Close() }),
		serveRaw("hangs up", func(c net.Conn) { c.Close() }),
		socketName(os.Geteuid(), "good-"+t.Name()),
	}
	start := time.Now()
	answers, silent := askAll(t.Context(), sockets(names...), WantStat, start.Add(askTime))
	if took := time.Since(start); took > 10*answerTime {
		t.Errorf("asking took %v, want not much more than %v", took, answerTime)
	}
	if len(answers) != 1 || answers[0].PID != os.Getpid() || Clean(answers[0].Command) != "a?[2Jb" {
		t.Errorf("answers %+v, want the good one, with the PID that the kernel tells", answers)
	}
	if len(silent) != 5 {
		t.Errorf("%d are silent: %v; want 5", len(silent), silent)
	}
	for _, err := range silent {
		if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
			t.Errorf("%q has characters that a terminal obeys, want no control characters", err)
		}
	}
}

// sockets are found sockets of this user.
func sockets(names ...string) *found {
	f, err := findPrograms(func(f func(user.Socket)) (bool, error) {
		for _, name := range names {
			f(user.Socket{Name: name, UID: uint32(os.Geteuid()), Owned: true})
		}
		return false, nil
	}, false)
	if err != nil {
		panic(err)
	}
	return f
}

// say asks a program something, and returns its answer.
func say(t *testing.T, name, text string) string {
	t.Helper()
	c, err := net.Dial("unix", name)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer c.Close()
	io.WriteString(c, text)
	b, _ := io.ReadAll(c)
	return string(b)
}

// A program answers only questions that it knows.
func TestServer(t *testing.T) {
	asked := make(chan Want, 10)
	mine := socketName(os.Geteuid(), "mine-"+t.Name())
	s, err := serve(mine, func(w Want) Process { asked <- w; return Process{} })
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if got := say(t, mine, "res\n"); !strings.HasPrefix(got, `{"pid":0`) {
		t.Errorf("the answer to a question is %q, want the state of process 0", got)
	}
	for _, text := range []string{"\n", "everything\n", strings.Repeat("r", 1000) + "\n", "stat\x00\n"} {
		if got := say(t, mine, text); got != "" {
			t.Errorf("%q is answered with %q, want nothing", text, got)
		}
	}
	if len(asked) != 1 {
		t.Errorf("%d questions were taken, want 1", len(asked))
	}
}

// A client that asks and does not read, or sends nothing, is turned away in time, and a closed server leaves nothing
// behind.
func TestServerBusy(t *testing.T) {
	name := socketName(os.Geteuid(), "busy-"+t.Name())
	s, err := serve(name, func(Want) Process { return Process{} })
	if err != nil {
		t.Fatal(err)
	}
	var idle []net.Conn
	for range 2 * conversations {
		c, err := net.Dial("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for _, c := range idle {
			c.Read(make([]byte, 1)) // ends when the server hangs up
		}
	}()
	select {
	case <-over:
	case <-time.After(20 * answerTime):
		t.Fatal("idle conversations never end")
	}
	s.close()
	if _, err := ask(context.Background(), name, WantStat); err != errNotOurs {
		t.Errorf("asking a closed server: %v, want errNotOurs", err)
	}
}

// A program that was out of descriptors for a while answers again when it has some.
func TestServerExhausted(t *testing.T) {
	name := socketName(os.Geteuid(), "exhausted-"+t.Name())
	s, err := serve(name, func(Want) Process { return Process{} })
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}
	defer restore()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		t.Fatal(err)
	}
	patience := time.Now().Add(20 * answerTime)
	for len(s.busy) < conversations && time.Now().Before(patience) { // so often the server has failed to accept
		runtime.Gosched()
	}
	restore()
	for {
		_, err := ask(t.Context(), name, WantStat)
		if err == nil {
			return
		}
		if time.Now().After(patience) {
			t.Fatalf("with descriptors again: got %v, want an answer", err)
		}
	}
}

func TestListen(t *testing.T) {
	one, other := Listen(), Listen()
	one()
	one() // nothing
	if listening.server == nil || listening.users != 1 {
		t.Errorf("one of two devices was closed: the program answers: %v, for %d; want it to, for 1", listening.server != nil, listening.users)
	}
	if other(); listening.server != nil || listening.users != 0 {
		t.Errorf("all devices were closed: the program answers: %v, for %d; want it not to, for none", listening.server != nil, listening.users)
	}
}

func TestListener(t *testing.T) {
	for line, want := range map[string]string{
		"0000000000000000: 00000002 00000000 00010000 0001 01 3146880 @adverb/watch/0/4711-AB": "@adverb/watch/0/4711-AB",
		"0000000000000000: 00000003 00000000 00000000 0001 03 3146880 @adverb/watch/0/4711-AB": "", // a conversation
		"0000000000000000: 00000002 00000000 00010000 0001 01 3146880":                         "",
		"Num       RefCount Protocol Flags    Type St Inode Path":                              "",
		"": "",
	} {
		if got, ok := listener(line); ok != (want != "") || ok && got != want {
			t.Errorf("%q: socket %q (%v), want %q", line, got, ok, want)
		}
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"soft_lo": "soft_lo", "a b": "a b", "\x1b[31mred": "?[31mred", "a\nb\tc\x00": "a?b?c?", "é": "é",
		strings.Repeat("x", 100): strings.Repeat("x", 64), "\xff": string('\uFFFD'), "\u202e": "?",
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) is %q, want %q", in, got, want)
		}
	}
}

// TestOfSameUser: processes that are there are of one user, or not.
func TestOfSameUser(t *testing.T) {
	me := os.Getpid()
	if !ofSameUser(me, me) || ofSameUser(me, 0) || ofSameUser(-1, me) {
		t.Errorf("a process is of its own user: %v; of that of a process that cannot be: %v", ofSameUser(me, me), ofSameUser(me, 0))
	}
	if os.Getuid() == 0 {
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		// The first thread of this process, whose user /proc shows, may be another user's since a test before this one.
		if ofSameUser(os.Getppid(), cmd.Process.Pid) {
			t.Error("a process of nobody is of root")
		}
	}
}

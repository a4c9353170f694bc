package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asPrograms returns a directory with the tool and two of its classic names. They are links to the
// test binary, which is the tool if its environment is env.
func asPrograms(t *testing.T) (dir string, env []string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for _, name := range []string{"adverb", "ibv_devinfo", "ibv_rc_pingpong"} {
		if err := os.Symlink(exe, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, append(os.Environ(), asTool+"=1", "PATH="+dir+":"+os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
}

// openTerminal makes a pseudo-terminal, and returns the test's end and the program's end.
func openTerminal(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("this system has no pseudo-terminals: ", err)
	}
	t.Cleanup(func() { ours.Close() })
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

// shell is an interactive shell at a terminal.
type shell struct {
	t        *testing.T
	terminal *os.File
	screen   bytes.Buffer // the shell's output since the last line was read
}

// startShell starts an interactive shell in dir.
func startShell(t *testing.T, dir string, env []string, program string, args ...string) *shell {
	t.Helper()
	ours, theirs := openTerminal(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, append(env, "TERM=dumb", "PS1=> ", "HISTFILE=", "INPUTRC=/dev/null")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	t.Cleanup(func() {
		cancel()
		cmd.Wait() // the shell was killed
	})
	return &shell{t: t, terminal: ours}
}

func (s *shell) keys(keys string) {
	s.t.Helper()
	if _, err := s.terminal.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// await reads until the shell's output matches, and returns the match's first group.
func (s *shell) await(pattern string) string {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	buf := make([]byte, 4096)
	for {
		if m := re.FindSubmatch(s.screen.Bytes()); m != nil {
			s.screen.Reset()
			return string(m[1])
		}
		n, err := s.terminal.Read(buf)
		if err != nil {
			s.t.Fatalf("the shell has ended: %v; got %q, want a match of %s", err, s.screen.String(), pattern)
		}
		s.screen.Write(buf[:n])
	}
}

// edit types keys, and returns the command line that they lead to. To print it, Control-A goes to the start of the
// line, where a command goes in. The quotes in that command tell its output from its echo.
func (s *shell) edit(keys string) string {
	s.t.Helper()
	s.keys(keys + "\x01echo LI''NE: '\x05'\n")
	return s.await(`LINE: ([^\r\n]*)\r?\n`)
}

// edits are keys, and the command lines that the shell's completion makes of them.
var edits = []struct{ keys, want string }{
	{"adverb devin\t", "adverb devinfo "},
	{"adverb devinfo -d soft_l\t", "adverb devinfo -d soft_lo "},
	{"adverb devinfo -dsoft_l\t", "adverb devinfo -dsoft_lo "},
	{"adverb devinfo --ib-d\t", "adverb devinfo --ib-dev="},
	{"adverb devinfo --ib-dev=soft_l\t", "adverb devinfo --ib-dev=soft_lo "},
	{"adverb gids soft_l\t", "adverb gids soft_lo "},
	{"adverb rc_pingpong -m 10\t", "adverb rc_pingpong -m 1024 "},
	{"adverb rc_pingpong --mt\t51\t", "adverb rc_pingpong --mtu=512 "},
	{"adverb rc_pingpong -e --chk --gid\t", "adverb rc_pingpong -e --chk --gid-idx="},
	{"adverb demo --pcap some-f\t", "adverb demo --pcap some-file.pcapng "},
	{"adverb completion z\t", "adverb completion zsh "},
	{"ibv_devinfo --verb\t", "ibv_devinfo --verbose "},
	{"ibv_rc_pingpong -m 20\t", "ibv_rc_pingpong -m 2048 "},
	{"./adverb udad\t", "./adverb udaddy "},
	{"adverb devinfo -d soft_lo@127\t", "adverb devinfo -d soft_lo@127"}, // nothing is known of the device
}

// checkEdits makes all edits. Some shells take back the space behind a completed word when the cursor moves on.
func checkEdits(t *testing.T, s *shell, keepsSpace bool) {
	t.Helper()
	for _, tt := range edits {
		want := tt.want
		if !keepsSpace {
			want = strings.TrimSuffix(want, " ")
		}
		if got := s.edit(tt.keys); got != want {
			t.Errorf("%q: got %q, want %q", tt.keys, got, want)
		}
	}
}

// needShell returns the path of a shell. Without the shell the test is skipped, but not in CI if the shell must be
// there.
func needShell(t *testing.T, name string, must bool) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if must && os.Getenv("CI") == "true" {
			t.Fatalf("CI must have %s", name)
		}
		t.Skipf("%s is not installed", name)
	}
	return path
}

func TestCompletionInBash(t *testing.T) {
	bash := needShell(t, "bash", true)
	dir, env := asPrograms(t)
	if err := os.WriteFile(filepath.Join(dir, "some-file.pcapng"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := startShell(t, dir, env, bash, "--norc", "--noprofile", "-i")
	s.keys("bind 'set bell-style none'; eval \"$(adverb completion bash)\"; echo RE''ADY\n")
	s.await(`(READY)`)
	checkEdits(t, s, true)
}

func TestCompletionInZsh(t *testing.T) {
	zsh := needShell(t, "zsh", false)
	dir, env := asPrograms(t)
	if err := os.WriteFile(filepath.Join(dir, "some-file.pcapng"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := startShell(t, dir, env, zsh, "-f", "-i")
	s.keys("bindkey -e; unsetopt zle_bracketed_paste; autoload -U compinit; compinit -D -u; eval \"$(adverb completion zsh)\"; echo RE''ADY\n")
	s.await(`(READY)`)
	checkEdits(t, s, false)
}

// fish completes without a terminal too, by the same code.
func TestCompletionInFish(t *testing.T) {
	fish := needShell(t, "fish", false)
	dir, env := asPrograms(t)
	for _, tt := range []struct{ line, want string }{ // want is one of the lines
		{"adverb devin", "devinfo\tPrint the attributes of RDMA devices"},
		{"adverb devinfo -d soft_l", "soft_lo\tdevice of lo"},
		{"adverb devinfo --ib-dev=soft_l", "--ib-dev=soft_lo\tdevice of lo"},
		{"ibv_rc_pingpong --mtu=10", "--mtu=1024"},
		{"./adverb udad", "udaddy\tFind a peer by the connection manager and exchange datagrams"},
		{"adverb demo --pcap adv", "adverb"},
	} {
		cmd := exec.CommandContext(t.Context(), fish, "--no-config", "-c", "adverb completion fish | source; complete -C "+shellQuote(tt.line))
		cmd.Dir, cmd.Env = dir, append(env, "HOME="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains("\n"+string(out), "\n"+tt.want) {
			t.Errorf("%q: got %q, error %v; want the line %q", tt.line, out, err, tt.want)
		}
	}
}

func shellQuote(s string) string { return "'" + s + "'" }

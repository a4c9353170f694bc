// Package tooltest helps the tests of the tool's commands: it runs them in the test's own process
// and as processes of their own, and it plays the other end of a connection.
package tooltest

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/internal/hca"
	_ "github.com/adverb-rdma/adverb/provider/soft" // the devices of the tests
)

// Patience ends a run that got stuck, so that the test can say where.
const Patience = time.Minute

// Tool is the tool with the commands of the package under test.
type Tool struct{ tool *cli.Tool }

// New makes a tool of the commands.
func New(commands ...*cli.Command) *Tool {
	return &Tool{&cli.Tool{Name: "adverb", Commands: commands}}
}

// Result is the result of a run of the tool.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs a command line and returns its result.
func (t *Tool) Run(ctx context.Context, argv ...string) (code int, stdout, stderr string) {
	var out, err strings.Builder
	code = t.RunTo(ctx, &out, &err, argv...)
	return code, out.String(), err.String()
}

// RunTo runs a command line and writes its output as it comes.
func (t *Tool) RunTo(ctx context.Context, stdout, stderr io.Writer, argv ...string) (code int) {
	return t.tool.Run(ctx, argv, strings.NewReader(""), stdout, stderr)
}

// Result is Run with its results in one value.
func (t *Tool) Result(ctx context.Context, argv ...string) Result {
	code, stdout, stderr := t.Run(ctx, argv...)
	return Result{code, stdout, stderr}
}

// Background runs a command line in the background.
func (t *Tool) Background(ctx context.Context, argv ...string) <-chan Result {
	done := make(chan Result, 1)
	go func() { done <- t.Result(ctx, argv...) }()
	return done
}

// Started is a run of the tool in the background.
type Started struct {
	FirstLine string
	Done      chan Result
	PID       int // of StartProcess
}

// Start runs the tool in the background. It returns when the tool has printed a line or has ended.
func (t *Tool) Start(ctx context.Context, argv ...string) *Started {
	s := &Started{}
	s.Done = t.startUntil(ctx, func(line string) bool { s.FirstLine = line; return true }, argv...)
	return s
}

// StartUntil runs the tool in the background. It returns when the tool has printed the line or has
// ended.
func (t *Tool) StartUntil(ctx context.Context, line string, argv ...string) <-chan Result {
	return t.startUntil(ctx, func(got string) bool { return got == line+"\n" }, argv...)
}

func (t *Tool) startUntil(ctx context.Context, reached func(line string) bool, argv ...string) chan Result {
	r, w := io.Pipe()
	var stdout, stderr strings.Builder
	done, code := make(chan Result, 1), make(chan int, 1)
	go func() {
		code <- t.tool.Run(ctx, argv, strings.NewReader(""), w, &stderr)
		w.Close()
	}()
	out := bufio.NewReader(r)
	for {
		line, err := out.ReadString('\n')
		stdout.WriteString(line)
		if reached(line) || err != nil {
			break
		}
	}
	go func() {
		rest, _ := io.ReadAll(out)
		stdout.Write(rest)
		c := <-code // stderr is complete when the run has ended
		done <- Result{c, stdout.String(), stderr.String()}
	}()
	return done
}

// AsTool is a variable of the environment that makes the test binary be the tool, for tests with processes.
const AsTool = "ADVERB_TEST_AS_TOOL"

// Main is the TestMain of a package whose tests call StartProcess.
func (t *Tool) Main(m *testing.M) {
	if os.Getenv(AsTool) != "" {
		code := t.tool.Run(context.Background(), os.Args, os.Stdin, os.Stdout, os.Stderr)
		hca.DepartAll() // as main does
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// quitTime is how long a process that got stuck may write down where its goroutines are.
const quitTime = 10 * time.Second

// StartProcess runs the tool as a process of its own. It returns when the tool has printed a line
// or has ended. The end of ctx ends the process, which says on stderr where it was. The end of the test kills it.
func StartProcess(ctx context.Context, t *testing.T, argv ...string) *Started {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Args = argv
	cmd.Cancel = func() error {
		if cmd.Process.Signal(syscall.SIGQUIT) != nil { // Windows has none
			return cmd.Process.Kill()
		}
		return nil
	}
	cmd.WaitDelay = quitTime
	// Without this the race detector makes each process sleep for a second when it ends.
	cmd.Env = append(os.Environ(), AsTool+"=1", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &Started{Done: make(chan Result, 1), PID: cmd.Process.Pid}
	out := bufio.NewReader(stdout)
	s.FirstLine, _ = out.ReadString('\n')
	ended := make(chan struct{})
	t.Cleanup(func() {
		cmd.Process.Kill() // if it runs still
		<-ended
	})
	go func() {
		defer close(ended)
		rest, _ := io.ReadAll(out)
		cmd.Wait() // the exit status tells of a failure
		s.Done <- Result{cmd.ProcessState.ExitCode(), s.FirstLine + string(rest), stderr.String()}
	}()
	return s
}

// Invocation is a call of a command by its classic name.
func Invocation(t *testing.T, c *cli.Command, line string) (inv *cli.Invocation, stdout, stderr *strings.Builder) {
	stdout, stderr = new(strings.Builder), new(strings.Builder)
	return &cli.Invocation{Ctx: t.Context(), Cmd: c, Prog: c.Classic[0], ByClassicName: true,
		Args: strings.Fields(line), Stdout: stdout, Stderr: stderr}, stdout, stderr
}

// PSK makes a file with a key for --psk, the same for the same text.
func PSK(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(strings.Repeat(text, 16)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

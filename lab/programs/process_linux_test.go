package programs

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/lab/agent"
)

const (
	// patience is the time that a program may take, on a machine that is busy.
	patience = 5 * time.Minute
	nobody   = 65534
	adverb   = "/run/adverb" // the tool, in the tree
	home     = "/var"        // which has nothing for them, and takes nothing
)

// process is a program that runs in the tree, as nobody.
type process struct {
	name   string
	cmd    *exec.Cmd
	output buffer
	done   chan struct{}
	status agent.Status
}

// buffer collects a program's output.
type buffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	more chan struct{} // closed by the next write; nil unless somebody waits
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.more != nil {
		close(b.more)
		b.more = nil
	}
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// await waits until text has been written.
func (b *buffer) await(ctx context.Context, text string) error {
	for {
		b.mu.Lock()
		if b.more == nil {
			b.more = make(chan struct{})
		}
		found, more := strings.Contains(b.b.String(), text), b.more
		b.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("no %q in the output: %w", text, ctx.Err())
		}
	}
}

// start starts a program. The test's end kills the program.
func start(ctx context.Context, t *testing.T, env []string, argv ...string) *process {
	t.Helper()
	p := &process{name: strings.Join(argv, " "), done: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	p.cmd.Path = argv[0] // below the new root
	if !strings.Contains(argv[0], "/") {
		p.cmd.Path, p.cmd.Err = "/usr/bin/"+argv[0], nil
	}
	p.cmd.Dir = home
	p.cmd.Env = append([]string{"PATH=/usr/bin:/usr/sbin", "HOME=" + home, "LANG=C.UTF-8", "USER=nobody", "LD_LIBRARY_PATH=/run/lib"}, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot:     os.Getenv(treeEnv),
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
		Setpgid:    true,
	}
	p.cmd.Cancel = func() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	go func() {
		defer close(p.done)
		p.status = agent.Wait(p.cmd)
	}()
	return p
}

// signal sends a signal to the program, and to adverb run if that is what runs it.
func (p *process) signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// wait waits until the program has ended.
func (p *process) wait() { <-p.done }

// whileRuns returns a context that ends with the program.
func (p *process) whileRuns(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.done:
			cancel(fmt.Errorf("the program has ended"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// listens waits until the program listens on a TCP port. A program that ends before is an error.
func (p *process) listens(ctx context.Context, port int) error {
	ctx, cancel := p.whileRuns(ctx)
	defer cancel()
	return agent.AwaitTCP(ctx, port)
}

// listensCM waits until the program listens on a port of address by the connection manager, as adverb res shows. A program
// that listens on all addresses has a listener for each, and not all of them begin at once. A program that ends before is
// an error.
func (p *process) listensCM(ctx context.Context, port int) error {
	ctx, cancel := p.whileRuns(ctx)
	defer cancel()
	at := fmt.Sprintf("%s:%d", address, port)
	err := agent.Poll(ctx, func() bool {
		programs, _, err := watch.Ask(ctx, watch.WantRes)
		if err != nil {
			return false
		}
		for _, program := range programs {
			for _, d := range program.Devices {
				if slices.ContainsFunc(d.CMID, func(id watch.CMID) bool { return id.State == "LISTEN" && id.Local == at }) {
					return true
				}
			}
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("wait for a listener of the connection manager on %s: %w", at, err)
	}
	return nil
}

// prints waits until the program has printed text. A program that ends before is an error.
func (p *process) prints(ctx context.Context, text string) error {
	ctx, cancel := p.whileRuns(ctx)
	defer cancel()
	return p.output.await(ctx, text)
}

// report returns everything that is known about a program, for messages.
func (p *process) report() string {
	state := "still runs"
	select {
	case <-p.done:
		state = p.status.String()
	default:
	}
	lines := strings.Split(strings.TrimSpace(p.output.String()), "\n")
	const most = 60
	if len(lines) > most {
		lines = slices.Concat(lines[:most/2], []string{"..."}, lines[len(lines)-most/2:])
	}
	return fmt.Sprintf("%s: %s\n\t%s\n", p.name, state, strings.Join(lines, "\n\t"))
}

// others returns the processes of this PID namespace beside this one, without those that have ended.
func others() (list []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil || pid == os.Getpid() {
			continue
		}
		_, state, _ := bytes.Cut(stat, []byte(") "))
		if len(state) > 0 && state[0] != 'Z' && state[0] != 'X' {
			line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			list = append(list, fmt.Sprintf("%d (%s)", pid, bytes.TrimSpace(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))))
		}
	}
	return list
}

// files returns the files in the directories where programs leave some.
func files() (list []string) {
	root := os.Getenv(treeEnv)
	for _, dir := range []string{"tmp", "dev/shm", "run"} {
		filepath.WalkDir(filepath.Join(root, dir), func(name string, d fs.DirEntry, err error) error {
			if err == nil && name != filepath.Join(root, dir) {
				list = append(list, strings.TrimPrefix(name, root))
			}
			return nil
		})
	}
	return list
}

// leavesNothing has a test fail that leaves a process or a file behind, but for files that may stay.
func leavesNothing(t *testing.T, stay ...string) {
	t.Helper()
	before := append(files(), stay...)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if agent.Poll(ctx, func() bool { return len(others()) == 0 }) != nil {
			t.Errorf("left processes: %q", others())
			syscall.Kill(-1, syscall.SIGKILL)
		}
		for { // the orphans that ended are this process's, and no program is running
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		after := slices.DeleteFunc(files(), func(name string) bool { return slices.Contains(before, name) })
		if len(after) > 0 {
			t.Errorf("left files: %q", after)
		}
		for _, name := range stay {
			os.Remove(filepath.Join(os.Getenv(treeEnv), name))
		}
	})
}

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"

	"github.com/adverb-rdma/adverb/lab/agent"
)

// Side is a machine on the lab's network: a [Guest], or the [Host], where our programs run.
type Side interface {
	String() string
	// Addr returns an address on the lab's network.
	Addr(v6 bool) netip.Addr
	// Start runs a program. The program is killed when ctx ends.
	Start(ctx context.Context, argv ...string) (*Process, error)
	// AwaitTCP returns when a program listens on a TCP port.
	AwaitTCP(ctx context.Context, port int) error
}

// Process is a program on either side.
type Process struct {
	name           string // for messages: where it runs, and its command line
	stdout, stderr output

	done   chan struct{}
	status agent.Status
	err    error // that the guest has gone, so that the status is unknown

	signal func(syscall.Signal) error
}

// Result is what a program leaves behind.
type Result struct {
	agent.Status
	Stdout, Stderr string
}

func newProcess(where string, argv []string) *Process {
	return &Process{name: where + ": " + strings.Join(argv, " "), done: make(chan struct{})}
}

// String returns the side on which the program runs, and its command line.
func (p *Process) String() string { return p.name }

// Signal sends a signal to the program and to all processes that the program started.
func (p *Process) Signal(sig syscall.Signal) error { return p.signal(sig) }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits until the program has ended, and returns its result. If the guest has gone, nobody
// knows how the program ended. Wait then returns an error, together with the output that has
// arrived.
func (p *Process) Wait() (Result, error) {
	<-p.done
	return Result{p.status, p.stdout.String(), p.stderr.String()}, p.err
}

// AwaitOutput returns as soon as the program has written text to stdout or stderr. The stdout of a C
// program is a pipe here, so text may come late: when the program ends or flushes its buffer.
func (p *Process) AwaitOutput(ctx context.Context, text string) error {
	for {
		out, outMore := p.stdout.contains(text)
		err, errMore := p.stderr.contains(text)
		if out || err {
			return nil
		}
		select {
		case <-outMore:
		case <-errMore:
		case <-p.done:
			if out, _ := p.stdout.contains(text); out {
				return nil
			}
			if err, _ := p.stderr.contains(text); err {
				return nil
			}
			return fmt.Errorf("%v: ended (%v) without %q in its output", p, p.status, text)
		case <-ctx.Done():
			return fmt.Errorf("%v: no %q in its output: %w", p, text, context.Cause(ctx))
		}
	}
}

// Report returns everything that is known about a process, for messages.
func (p *Process) Report() string {
	state := "still runs"
	select {
	case <-p.done:
		state = p.status.String()
		if p.err != nil {
			state = p.err.Error()
		}
	default:
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %s\n", p, state)
	for _, o := range []struct{ name, text string }{{"stdout", p.stdout.String()}, {"stderr", p.stderr.String()}} {
		for line := range strings.Lines(o.text) {
			fmt.Fprintf(&b, "  %s: %s\n", o.name, strings.TrimSuffix(line, "\n"))
		}
	}
	return b.String()
}

// output collects the text that a program writes.
type output struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{} // closed by the next write; nil unless somebody waits
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.text.Len()+len(b) > maxOutput {
		return 0, errors.New("the output of a program of the lab is too long")
	}
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return o.text.Write(b)
}

const maxOutput = 64 << 20 // bytes

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// contains reports whether text has been written. The next write closes more.
func (o *output) contains(text string) (found bool, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return strings.Contains(o.text.String(), text), o.more
}

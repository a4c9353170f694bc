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
	// Start runs a program, until it ends by itself or ctx ends.
	Start(ctx context.Context, argv ...string) (*Process, error)
	// AwaitTCP returns when a program listens on a TCP port.
	AwaitTCP(ctx context.Context, port int) error
}

// Process is a program on either side.
type Process struct {
	name           string // for people
	stdout, stderr output

	done   chan struct{}
	status agent.Status
	err    error // the guest has gone

	signal func(syscall.Signal) error
}

// Result is what a program leaves.
type Result struct {
	agent.Status
	Stdout, Stderr string
}

func newProcess(where string, argv []string) *Process {
	return &Process{name: where + ": " + strings.Join(argv, " "), done: make(chan struct{})}
}

// String returns the command line, and on which side it runs.
func (p *Process) String() string { return p.name }

// Signal sends a signal to the program and all that it started.
func (p *Process) Signal(sig syscall.Signal) error { return p.signal(sig) }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns what the program has left when it has ended. The error says that it was not to be
// learnt how it ended; the result then holds what there is.
func (p *Process) Wait() (Result, error) {
	<-p.done
	return Result{p.status, p.stdout.String(), p.stderr.String()}, p.err
}

// AwaitOutput returns when text is in what the program has written to stdout or to stderr. A C
// program's stdout is a pipe here: it is written when the program ends, or flushes it.
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

// Report is all that is known of a process, for people.
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

// output collects what a program writes.
type output struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{} // closed, and replaced, when there is more
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

// contains says whether text has been written; more is closed by the next write.
func (o *output) contains(text string) (found bool, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return strings.Contains(o.text.String(), text), o.more
}

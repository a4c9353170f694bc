// Package cli is the frame that the tool's commands run in. A command is declared once, as a Command.
// Parsing, --help, shell completion and the manual page are all made from that declaration.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Command is a subcommand of adverb and, through a symlink, the program of each of its classic names.
type Command struct {
	Name    string   // as in "adverb devinfo"
	Classic []string // names of the C program, such as "ibv_devinfo"; help shows the first one
	Short   string   // one line for the list of commands

	Flags    []Flag
	Operands []Values // the possible values of each operand, for completion
	Forms    []Form   // the ways to call the command
	Usage    func(w io.Writer, c *Command, prog string)
	More     string // for --help, below the flags; PROG stands for the program's name
	Run      func(*Invocation) int

	// RunsProgram says that the operands are another program and its arguments. Flags behind the first are the program's,
	// and arguments may be empty.
	RunsProgram bool
}

// Form is one way to call a command.
type Form struct {
	Args string // as in "-s <host>"
	Does string // the command's action in this form; "" where the command's Short says it
}

// isClassic reports whether base is a classic name of the command.
func (c *Command) isClassic(base string) bool { return slices.Contains(c.Classic, base) }

// Exit statuses of the tool itself. A command has the statuses of its C program.
const (
	ExitOK    = 0
	ExitError = 1
	ExitUsage = 2

	StatusInterrupted = 130 // a shell reports this of a program that SIGINT ended
)

// Invocation is one run of a command.
type Invocation struct {
	Ctx    context.Context // ends when the user interrupts the run
	Cmd    *Command
	Prog   string // argv[0]; "adverb devinfo" for a subcommand
	Args   []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	// ByClassicName says that the program was called by a classic name. The flag -h then has the C program's meaning.
	ByClassicName bool

	// Endless says that only an interruption ends the run, so Finish has nothing to say about one. SIGTERM is then no
	// failure.
	Endless bool
}

// Printf prints to standard output.
func (inv *Invocation) Printf(format string, args ...any) { fmt.Fprintf(inv.Stdout, format, args...) }

// Errorf prints a line of the C program to standard error.
func (inv *Invocation) Errorf(format string, args ...any) { fmt.Fprintf(inv.Stderr, format, args...) }

// Explain adds to the C program's line. It prints on a line of its own, so that a script which looks for the C
// program's line still finds it. Where the cause has a remedy for programs, the line has one for the user.
func (inv *Invocation) Explain(err error) {
	if err != nil {
		fmt.Fprintf(inv.Stderr, "adverb: %s\n", inv.reword(err.Error()))
	}
}

// Fail prints a line of the C program and its cause. It returns the status of a failed run.
func (inv *Invocation) Fail(cause error, format string, args ...any) int {
	inv.Errorf(format, args...)
	inv.Explain(cause)
	return ExitError
}

var (
	// ErrReported is a failure whose lines have been printed.
	ErrReported = errors.New("reported")
	// ErrInterrupted is the user's message when Ctrl-C ends a run.
	ErrInterrupted = errors.New("interrupted")
)

// Interrupted reports whether the user has ended the run.
func (inv *Invocation) Interrupted() bool { return inv.Ctx.Err() != nil }

// Finish returns the exit status of a run that ended with err. Every command that can be
// interrupted ends here: an interruption is reported in one way, whatever err it led to. Any other
// failure goes to failed, which reports it and returns the status.
func (inv *Invocation) Finish(err error, failed func(error) int) int {
	switch {
	case err == nil:
		return ExitOK
	case inv.Endless && inv.Terminated(): // which is how services end
		return ExitOK
	case inv.Interrupted():
		if !inv.Endless {
			inv.Explain(ErrInterrupted)
		}
		return StatusInterrupted
	}
	return failed(err)
}

// ExplainUnlessReported explains err, and returns status.
func (inv *Invocation) ExplainUnlessReported(err error, status int) int {
	if !errors.Is(err, ErrReported) {
		inv.Explain(err)
	}
	return status
}

// PrintJSON prints v with the indentation that all of the tool's JSON has.
func (inv *Invocation) PrintJSON(v any) int {
	e := json.NewEncoder(inv.Stdout)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return inv.Fail(err, "")
	}
	return ExitOK
}

// output is standard output. It remembers that not all of it could be written, as to a disk that is full: a command
// prints without looking.
type output struct {
	w   io.Writer
	mu  sync.Mutex
	err error // the first
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.err = cmp.Or(o.err, err)
	}
	return n, err
}

func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// lockedWriter lets several goroutines write whole lines.
type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// LockOutput returns a copy of inv that several goroutines may print with.
func (inv *Invocation) LockOutput() *Invocation {
	locked, mu := *inv, new(sync.Mutex)
	locked.Stdout, locked.Stderr = lockedWriter{mu, inv.Stdout}, lockedWriter{mu, inv.Stderr}
	return &locked
}

// baseName is a program's name without its directory and, on Windows, without ".exe".
func baseName(prog string) string { return strings.TrimSuffix(filepath.Base(prog), ".exe") }

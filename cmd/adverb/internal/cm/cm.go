// Package cm has the common parts of the connection manager's programs: opening it, finding addresses, the flags and
// error lines of the C programs, and the feed of a connection's events.
package cm

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/rdmacm"
)

// DeviceFlag is a flag of ours that all these programs have.
var DeviceFlag = cli.Flag{Long: "ib-dev", Arg: "<dev>", Ours: true, Values: device.Names,
	Help: "use this RDMA device only (default any that has the address)"}

// Usage makes a usage that is the C program's text under a classic name. In "adverb cmatose
// --help" it is in the tool's own style, which shows the long names of the flags.
func Usage(classic string) func(w io.Writer, c *cli.Command, prog string) {
	return func(w io.Writer, c *cli.Command, prog string) {
		if !strings.HasPrefix(prog, "adverb ") {
			fmt.Fprintf(w, "usage: %s\n%s", prog, classic)
			return
		}
		cli.PrintForms(w, c, prog)
		fmt.Fprintln(w)
		cli.PrintFlags(w, c)
	}
}

// Failed is a failure that has been reported. Its value is the number in "return status".
type Failed int

func (f Failed) Error() string { return fmt.Sprintf("status %d", int(f)) }

// Is makes a Failed count as reported.
func (f Failed) Is(target error) bool { return target == cli.ErrReported }

// Statuses that are errnos of Linux.
const (
	StatusFailed   = -1
	StatusNoMemory = -12
	StatusInvalid  = -22
)

// MaxConnections is the largest -c. A connection takes a few kilobytes and its QP's queues.
const MaxConnections = 1 << 20

// ErrTooMany is the cause of refusing a request beyond -c.
var ErrTooMany = errors.New("a peer asked for more connections than -c says: give both ends the same -c")

// IgnoreOperands says that operands have no effect. These programs ignore them as in C, where a client whose -s was
// forgotten becomes a server, and waits without a word.
func IgnoreOperands(inv *cli.Invocation, operands []string) {
	if len(operands) > 0 {
		inv.Explain(fmt.Errorf("ignore %q: %s takes flags alone, and -s names what it is to connect to", operands, inv.Cmd.Name))
	}
}

// Perror prints a line that ends in an errno, as perror does, and then the cause.
func Perror(inv *cli.Invocation, what string, err error) error {
	inv.Errorf("%s: %s\n", what, clib.Strerror(err))
	inv.Explain(err)
	return Failed(StatusFailed)
}

// Complain prints a line to standard output, where these programs have many of theirs, and then
// the cause.
func Complain(inv *cli.Invocation, status int, cause error, format string, args ...any) error {
	inv.Printf(format+"\n", args...)
	inv.Explain(cause)
	return Failed(status)
}

// Open makes the function that makes event channels: of the named device or, for "", of all. done closes what Open
// opened. If ok is false, then Open failed and has reported it.
func Open(inv *cli.Invocation, name string) (channel func() *rdmacm.EventChannel, done func(), ok bool) {
	if name != "" {
		dev := device.Open(inv, name)
		if dev == nil {
			return nil, nil, false
		}
		return func() *rdmacm.EventChannel { return rdmacm.NewEventChannel(dev) },
			func() { inv.Explain(dev.Close()) }, true
	}
	if _, err := device.First(); err != nil {
		inv.Fail(err, "No RDMA devices were detected\n")
		return nil, nil, false
	}
	return func() *rdmacm.EventChannel { return rdmacm.NewEventChannel() }, func() {}, true
}

// ExitStatus is the exit status that a shell sees of main's return value.
func ExitStatus(status int) int { return status & 0xff }

// StatusOf is the number in "return status" of a run that ended with err.
func StatusOf(err error) int {
	f, ok := errors.AsType[Failed](err)
	switch {
	case ok:
		return int(f)
	case err != nil:
		return StatusFailed
	}
	return 0
}

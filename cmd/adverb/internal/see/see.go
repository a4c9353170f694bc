// Package see has the command see, which draws a capture, or the packets of a command that it runs, as a ladder.
package see

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/internal/ladder"
)

// Command is the command see.
var Command = &cli.Command{
	Name:  "see",
	Short: "Draw the packets of a capture or of a command, in time between the ends",
	Flags: []cli.Flag{
		{Long: "text", Help: "print text of 100 columns (default)", Ours: true},
		{Long: "svg", Help: "print a picture (SVG)", Ours: true},
		{Long: "qp", Arg: "<qpn>", Help: "show this QP and its peer alone; may be given several times", Ours: true},
		{Long: "addr", Arg: "<addr>", Help: "show this address alone; may be given several times", Ours: true},
		{Long: "from", Arg: "<time>", Help: "begin so long after the first packet, such as 1.5ms", Ours: true},
		{Long: "to", Arg: "<time>", Help: "end so long after the first packet", Ours: true},
		{Long: "limit", Arg: "<rows>", Help: "draw so many rows, 0 for all (default 200)", Ours: true},
		{Long: "all", Help: "give each packet a row, also where many follow that are alike", Ours: true},
	},
	Operands: []cli.Values{cli.Files, cli.Files},
	Forms: []cli.Form{
		{Args: "[<flag>...] <file>...", Does: "draw captures, pcap or pcapng, of any sender; - is the standard input"},
		{Args: "[<flag>...] -- <program> [<argument>...]", Does: "run a program, and draw the packets of its software devices"},
	},
	Usage: cli.UsageLine,
	More: `Each end has a line, and each packet an arrow from line to line. Beside it stand the operation, the QP
that the packet is for, its PSN, the bytes of payload, and what its other headers say. Messages of the
connection manager have their names. A "*" marks what was lost, repeated or refused, and why.

Captures of both ends may be given together: a packet is drawn once, and one that is missing at the other
end is marked as lost. Of a capture at one end a loss is marked where the receiver asks for the packet again.

The program and what it starts get a variable ADVERB_PCAP, by which its software devices write captures.
Its exit status is that of the command. Ctrl-C ends the program, and its packets are drawn.
`,
	Run: run,
}

const (
	defaultLimit = 200 // rows
	toolName     = "adverb"
)

type flags struct {
	ladder.Options
	svg bool
}

func run(inv *cli.Invocation) int {
	args, program, isProgram := inv.Args, []string(nil), false
	if i := slices.Index(args, "--"); i >= 0 {
		args, program, isProgram = args[:i], args[i+1:], true
	}
	inv.Args = args
	f := flags{Options: ladder.Options{Limit: defaultLimit}}
	var bad error
	operands, code, ok := inv.Parse(cli.ExitUsage, func(name, arg string) bool {
		if bad = f.set(name, arg); bad != nil {
			inv.Explain(fmt.Errorf("read --%s=%s: %w", name, arg, bad))
		}
		return bad == nil
	})
	switch {
	case !ok:
		return code
	case isProgram && (len(program) == 0 || len(operands) > 0), !isProgram && len(operands) == 0:
		inv.Explain(errors.New(`give captures, or "--" and a program, and not both`))
		inv.PrintUsage()
		return cli.ExitUsage
	}
	c := ladder.NewCollector()
	title := strings.Join(operands, ", ")
	status := cli.ExitOK
	var err error
	if isProgram {
		title = strings.Join(program, " ")
		status, err = watch(inv, c, program, f.svg)
	} else {
		err = readAll(c, operands, inv.Stdin)
	}
	if err == nil {
		err = f.print(inv.Stdout, c, title)
	}
	if err == nil {
		return status
	}
	return inv.Finish(err, func(err error) int { return inv.Fail(fmt.Errorf("see: %w", err), "") })
}

// set takes a flag.
func (f *flags) set(name, arg string) (err error) {
	switch name {
	case "text":
		f.svg = false
	case "svg":
		f.svg = true
	case "all":
		f.All = true
	case "limit":
		f.Limit, err = strconv.Atoi(arg)
		if err == nil && f.Limit < 0 {
			err = errors.New("a number of rows is not negative")
		}
	case "qp":
		var n uint64
		n, err = strconv.ParseUint(arg, 0, 24)
		f.QPN = append(f.QPN, uint32(n))
	case "addr":
		var a netip.Addr
		a, err = netip.ParseAddr(arg)
		f.Addrs = append(f.Addrs, a.Unmap())
	case "from":
		f.From, err = parseTime(arg)
	case "to":
		f.To, err = parseTime(arg)
	default:
		cli.Undeclared(name)
	}
	return err
}

// parseTime reads a time with a unit, or in seconds, as rows have it.
func parseTime(arg string) (time.Duration, error) {
	d, err := time.ParseDuration(arg)
	if seconds, e := time.ParseDuration(arg + "s"); err != nil && e == nil {
		d, err = seconds, nil
	}
	if err == nil && d < 0 {
		err = errors.New("times count from the first packet")
	}
	return d, err
}

func (f *flags) print(w io.Writer, c *ladder.Collector, title string) error {
	l := c.Ladder(f.Options)
	if f.svg {
		return l.SVG(w, title)
	}
	return l.Text(w)
}

func readAll(c *ladder.Collector, files []string, stdin io.Reader) error {
	for _, name := range files {
		if err := readOne(c, name, stdin); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func readOne(c *ladder.Collector, name string, stdin io.Reader) error {
	if name == "-" {
		return c.Read(stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err // the caller names the file
		}
		return err
	}
	defer f.Close()
	return c.Read(f)
}

// quitTime is how long a program may take to end when it is interrupted.
const quitTime = 5 * time.Second

// watch runs a program, reads the captures that it leaves, and returns its exit status.
func watch(inv *cli.Invocation, c *ladder.Collector, program []string, apart bool) (status int, err error) {
	dir, err := os.MkdirTemp("", "adverb-see-")
	if err != nil {
		return cli.ExitError, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	status, err = start(inv, program, filepath.Join(dir, "%p.pcapng"), apart)
	if err != nil {
		return status, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return status, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Size() == 0 { // a process that was killed before it wrote
			continue
		}
		if err := readOne(c, filepath.Join(dir, e.Name()), nil); err != nil {
			return status, err
		}
	}
	if len(entries) == 0 {
		inv.Explain(fmt.Errorf("see: %s opened no software device", program[0]))
	}
	return status, nil
}

// start runs a program to its end. The output of the program comes before the ladder, or stays apart from it.
func start(inv *cli.Invocation, program []string, capture string, apart bool) (status int, err error) {
	path, err := exec.LookPath(program[0])
	if err != nil && program[0] == toolName {
		path, err = os.Executable() // this program, which need not be installed
	}
	if err != nil {
		return cli.ExitError, err
	}
	cmd := exec.CommandContext(inv.Ctx, path)
	cmd.Args = program
	cmd.Env = append(os.Environ(), "ADVERB_PCAP="+capture)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inv.Stdin, inv.Stdout, inv.Stderr
	if apart {
		cmd.Stdout = inv.Stderr
	}
	cmd.Cancel = func() error {
		if err := cmd.Process.Signal(os.Interrupt); err == nil || errors.Is(err, os.ErrProcessDone) {
			return err
		}
		return cmd.Process.Kill() // Windows has no interrupt for others
	}
	cmd.WaitDelay = quitTime
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case inv.Interrupted(): // which is how programs end that wait for others: their packets are drawn
		return cli.StatusInterrupted, nil
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode(), nil
	case err != nil:
		return cli.ExitError, err
	}
	return cli.ExitOK, nil
}

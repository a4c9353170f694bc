// Package see has the command see, which draws a capture, or the packets of a command that it runs, as a ladder.
package see

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
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
		{Long: "html", Help: "write a page for a browser: all packets, charts, memory and findings", Ours: true},
		{Long: "svg", Help: "print a picture (SVG)", Ours: true},
		{Long: "perfetto", Help: "write a trace (JSON) that ui.perfetto.dev and chrome://tracing open", Ours: true},
		{Short: 'o', Long: "output", Arg: "<file>", Help: "write to this file; .html, .svg, .json and .txt say which form", Ours: true, Values: cli.Files},
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
connection manager have their names. Of iWARP the MPA frames and FPDUs of TCP's streams are drawn, with MSN,
STag and offset. A "*" marks what was lost, repeated or refused, and why.

Captures of both ends may be given together: a packet is drawn once, and one that is missing at the other
end is marked as lost. Of a capture at one end a loss is marked where the receiver asks for the packet again.

A page (--html, or -o FILE.html) is one file that needs no network. It has all packets, whatever --limit
is, and what "adverb diagnose" finds in them.

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
	form   form
	output string // a file; empty for the standard output
}

// form is what a ladder is drawn as.
type form string

const (
	formText     form = "text"
	formHTML     form = "html"
	formSVG      form = "svg"
	formPerfetto form = "perfetto"
)

// formOf says which form the name of a file asks for. A name without an ending, and no name, ask for text.
func formOf(name string) (form, error) {
	switch ending := strings.ToLower(filepath.Ext(name)); ending {
	case "", ".txt":
		return formText, nil
	case ".html", ".htm":
		return formHTML, nil
	case ".svg":
		return formSVG, nil
	case ".json":
		return formPerfetto, nil
	default:
		return "", fmt.Errorf("write %s: %s is no form that see writes: name it .html, .svg, .json (a trace) or .txt, or give --html, --svg, --perfetto or --text", name, ending)
	}
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
	if err := f.spares(operands); err != nil {
		return inv.Fail(fmt.Errorf("see: %w", err), "")
	}
	if f.form == "" {
		if f.form, bad = formOf(f.output); bad != nil {
			inv.Explain(bad)
			return cli.ExitUsage
		}
	}
	c := newCaptures(f.form == formHTML)
	title := titleOf(operands, f.form)
	status := cli.ExitOK
	var err error
	if isProgram {
		title = strings.Join(program, " ")
		status, err = watch(inv, c, program, f.form != formText && f.output == "")
	} else {
		err = c.readAll(operands, inv.Stdin)
	}
	if err == nil {
		err = f.write(inv.Stdout, c, title)
	}
	if err == nil {
		return status
	}
	return inv.Finish(err, func(err error) int { return inv.Fail(fmt.Errorf("see: %w", err), "") })
}

// titleOf names captures. A page may go to others, whom directories are no business of.
func titleOf(files []string, f form) string {
	if f == formHTML {
		files = slices.Clone(files)
		for i, name := range files {
			files[i] = filepath.Base(name)
		}
	}
	return strings.Join(files, ", ")
}

// set takes a flag.
func (f *flags) set(name, arg string) (err error) {
	switch name {
	case "text", "html", "svg", "perfetto":
		f.form = form(name)
	case "output":
		f.output = arg
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

// spares makes sure that the output does not replace a capture.
func (f *flags) spares(files []string) error {
	out, err := os.Stat(f.output)
	if f.output == "" || err != nil { // a new file, or one that os.Create will refuse
		return nil
	}
	for _, name := range files {
		if in, err := os.Stat(name); err == nil && os.SameFile(in, out) {
			return fmt.Errorf("write %s: it is a capture that is read: choose another name", f.output)
		}
	}
	return nil
}

// write writes the ladder to the file that was asked for, or to the standard output.
func (f *flags) write(stdout io.Writer, c *captures, title string) (err error) {
	if f.output == "" {
		return f.print(stdout, c, title)
	}
	file, err := os.Create(f.output)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriter(file)
	if err := f.print(w, c, title); err != nil {
		return err
	}
	return w.Flush()
}

func (f *flags) print(w io.Writer, c *captures, title string) error {
	switch f.form {
	case formHTML:
		return c.HTML(w, title, f.Options, c.diagnosis())
	case formPerfetto:
		return c.Perfetto(w, f.Options)
	case formSVG:
		return c.Ladder(f.Options).SVG(w, title)
	}
	return c.Ladder(f.Options).Text(w)
}

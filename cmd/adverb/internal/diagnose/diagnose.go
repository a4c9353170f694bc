// Package diagnose has the command diagnose, which says in words what happened in captures of RDMA packets.
package diagnose

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/diagnose"
)

// Exit statuses of the command.
const (
	exitClean      = 0
	exitFindings   = 1
	exitUnreadable = 2
)

// Command is the command diagnose.
var Command = &cli.Command{
	Name:  "diagnose",
	Short: "Say in words what happened in a capture of RDMA packets",
	Flags: []cli.Flag{
		cli.JSONFlag,
		{Long: "redact", Help: "replace addresses, keys and payloads, the same by the same"},
		{Short: 'i', Long: "interface", Arg: "<name>", Help: "capture at this interface, or at all (any): Linux, as root or with CAP_NET_RAW", Values: device.Netdevs},
		{Long: "for", Arg: "<time>", Help: "end a capture that goes on after this time: 30s, 5m (default: at Ctrl-C)"},
		{Long: "tcp", Arg: "<port,…>", Help: "with -i: iWARP connections of these ports that have begun before"},
	},
	Operands: []cli.Values{cli.Files, cli.Files, cli.Files, cli.Files},
	Forms:    []cli.Form{{Args: "[options] <file>…"}, {Args: "[options] -i <interface>"}},
	Usage: func(w io.Writer, c *cli.Command, prog string) {
		fmt.Fprintf(w, "Usage:\n")
		for _, f := range c.Forms {
			fmt.Fprintf(w, "  %s %s\n", prog, f.Args)
		}
		fmt.Fprintln(w)
		cli.PrintFlags(w, c)
	},
	More: `Reads captures of RoCE v1 and v2 and of iWARP between any devices: pcap or pcapng, plain or compressed by
gzip, of Ethernet with or without VLAN tags, Linux's cooked captures, raw IP, ERF, and mirrors in VXLAN,
Geneve, GRE or ERSPAN. "-" is standard input.

While packets come that are being captured now, by -i or in a pipe (tcpdump -U -w - | adverb diagnose -),
each finding is printed when it becomes certain, and the report at Ctrl-C. With --json such a capture gives
a line of JSON for each, and one for the report.

The verdict comes first. Each finding has its certainty, frames, a display filter for Wireshark, a remedy,
and the case in which it would be wrong. Then comes what was in order, and what could not be checked.

The status is 0 if there is no error and no warning, 1 if there is one, and 2 if a file cannot be read, or
has nothing of RDMA.
`,
	Run: run,
}

// result is a file's report as JSON.
type result struct {
	File string `json:"file"`
	*diagnose.Report
}

func run(inv *cli.Invocation) int {
	var (
		l live
		o diagnose.Options
	)
	files, code, ok := inv.Parse(cli.ExitUsage, func(name, arg string) bool {
		var err error
		switch name {
		case "json":
			l.json = true
		case "redact":
			o.Redact = true
		case "interface":
			l.iface = arg
		case "for":
			l.limit, err = parseLimit(arg)
		case "tcp":
			l.ports, err = parsePorts(arg)
		default:
			cli.Undeclared(name)
		}
		inv.Explain(err)
		return err == nil
	})
	problem := ""
	switch {
	case !ok:
		return code
	case l.iface != "" && len(files) > 0:
		problem = "-i captures, and takes no file"
	case l.iface != "":
		return l.watch(inv, o)
	case len(files) == 0:
		problem = "no file is named, and no interface"
	}
	if problem != "" {
		inv.Errorf("%s: %s\n", inv.Prog, problem)
		inv.PrintUsage()
		return cli.ExitUsage
	}
	return l.files(inv, files, o)
}

// files diagnoses captures one after the other.
func (l *live) files(inv *cli.Invocation, files []string, o diagnose.Options) int {
	json := l.json
	code := exitClean
	results, lines := []result{}, 0
	for i, name := range files {
		report, streamed, err := l.read(inv, name, o)
		if err != nil {
			inv.Explain(fmt.Errorf("%s: %s", name, strings.ReplaceAll(err.Error(), "\n", ": ")))
			code = exitUnreadable
			continue
		}
		code = max(code, statusOf(report))
		if !report.Judged() && !streamed {
			code = exitUnreadable // a script must not take it for a clean one
		}
		if o.Redact { // the path may name hosts, users or customers
			name = fmt.Sprintf("capture %d", i+1)
		}
		if json && streamed {
			(&teller{inv, true}).report(report)
			lines++
			continue
		}
		if json {
			results = append(results, result{name, report})
			continue
		}
		if len(files) > 1 {
			if i > 0 {
				inv.Printf("\n")
			}
			inv.Printf("== %s\n", name)
		}
		if err := report.Print(inv.Stdout); err != nil {
			return inv.Fail(err, "")
		}
	}
	if json && lines < len(files) {
		code = max(code, inv.PrintJSON(results))
	}
	return code
}

// statusOf is the exit status for a report.
func statusOf(r *diagnose.Report) int {
	if len(r.Findings) > 0 {
		return exitFindings
	}
	return exitClean
}

// read diagnoses a file, or standard input. streamed says that findings have been told by the line.
func (l *live) read(inv *cli.Invocation, name string, o diagnose.Options) (report *diagnose.Report, streamed bool, err error) {
	in := inv.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, false, err
		}
		defer f.Close()
		in = f
	}
	if isPipe(in) {
		return l.follow(inv, in, o)
	}
	report, err = diagnose.File(in, o)
	return report, false, err
}

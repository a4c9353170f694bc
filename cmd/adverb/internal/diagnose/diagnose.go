// Package diagnose has the command diagnose, which says in words what happened in captures of RDMA packets.
package diagnose

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
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
	},
	Operands: []cli.Values{cli.Files, cli.Files, cli.Files, cli.Files},
	Forms:    []cli.Form{{Args: "[options] <file>…"}},
	Usage: func(w io.Writer, c *cli.Command, prog string) {
		fmt.Fprintf(w, "Usage:\n  %s %s\n\n", prog, c.Forms[0].Args)
		cli.PrintFlags(w, c)
	},
	More: `Reads captures of RoCE v1 and v2 between any devices: pcap or pcapng, plain or compressed by gzip, of
Ethernet with or without VLAN tags, Linux's cooked captures, raw IP, ERF, and mirrors in VXLAN, Geneve,
GRE or ERSPAN. "-" is standard input.

The verdict comes first. Each finding has its certainty, frames, a display filter for Wireshark, a remedy,
and the case in which it would be wrong. Then comes what was in order, and what could not be checked.

The status is 0 if there is no error and no warning, 1 if there is one, and 2 if a file cannot be read.
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
		json bool
		o    diagnose.Options
	)
	files, code, ok := inv.Parse(cli.ExitUsage, func(name, _ string) bool {
		switch name {
		case "json":
			json = true
		case "redact":
			o.Redact = true
		default:
			cli.Undeclared(name)
		}
		return true
	})
	if !ok {
		return code
	}
	if len(files) == 0 {
		inv.Errorf("%s: no file is named\n", inv.Prog)
		inv.PrintUsage()
		return cli.ExitUsage
	}
	code = exitClean
	results := []result{}
	for i, name := range files {
		report, err := read(inv, name, o)
		if err != nil {
			inv.Explain(fmt.Errorf("%s: %s", name, strings.ReplaceAll(err.Error(), "\n", ": ")))
			code = exitUnreadable
			continue
		}
		if len(report.Findings) > 0 {
			code = max(code, exitFindings)
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
	if json {
		code = max(code, inv.PrintJSON(results))
	}
	return code
}

// read diagnoses a file, or standard input.
func read(inv *cli.Invocation, name string, o diagnose.Options) (*diagnose.Report, error) {
	if name == "-" {
		return diagnose.File(inv.Stdin, o)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return diagnose.File(f, o)
}

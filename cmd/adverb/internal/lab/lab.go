// Package lab has the command lab: the software HCA in a page, to step through packet by packet.
package lab

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
)

// Command is the command lab.
var Command = &cli.Command{
	Name:  "lab",
	Short: "Show two devices and the packets between them in a page, to step through and to disturb",
	Flags: []cli.Flag{
		{Long: "port", Arg: "<port>", Help: "serve at this port of 127.0.0.1 (default: a free one)", Ours: true},
		{Long: "out", Arg: "<dir>", Help: "write the files into a directory, for any server of static files", Ours: true, Values: cli.Files},
	},
	Forms: []cli.Form{
		{Args: "[--port=<port>]", Does: "serve the page on this machine alone, until Ctrl-C"},
		{Args: "--out=<dir>", Does: "write the page's files"},
	},
	Usage: cli.UsageLine,
	More: `The page has the whole software HCA in it, compiled to WebAssembly: both ends' queues, states, timers and
memory. Each packet can be looked at bit by bit, and dropped, delayed, damaged, copied or hurried. The address
of the page has the seed and all decisions, so that it shows the same again, to anybody.

Released programs have the page in them. One that was built by "go build" or "go install" compiles it the
first time, with the Go toolchain and the module's sources, and keeps it in the user's cache directory.
`,
	Run: run,
}

func run(inv *cli.Invocation) int {
	port, out := 0, ""
	var bad error
	operands, code, ok := inv.Parse(cli.ExitUsage, func(name, arg string) bool {
		switch name {
		case "out":
			out = arg
		case "port":
			if port, bad = strconv.Atoi(arg); bad != nil || port < 0 || port > 65535 {
				bad = fmt.Errorf("--port=%s: want a number from 0 to 65535", arg)
			}
		default:
			cli.Undeclared(name)
		}
		if bad != nil {
			inv.Explain(bad)
		}
		return bad == nil
	})
	switch {
	case !ok:
		return code
	case len(operands) > 0:
		inv.Explain(fmt.Errorf("%q: nothing is to be named", operands))
		inv.PrintUsage()
		return cli.ExitUsage
	}
	failed := func(err error) int { return inv.Fail(fmt.Errorf("lab: %w", err), "") }
	site, err := files(inv.Ctx, inv.Stderr)
	if err != nil {
		return inv.Finish(err, failed)
	}
	if out != "" {
		if err := write(out, site); err != nil {
			return failed(err)
		}
		inv.Printf("The lab is in %s. It works from any server of static files, such as: python3 -m http.server -d %s\n", out, out)
		return cli.ExitOK
	}
	inv.Endless = true
	return inv.Finish(open(inv.Ctx, port, site, func(url string) { inv.Printf("The lab is at %s\nCtrl-C ends it.\n", url) }), failed)
}

// open serves the files until ctx ends. It tells the address.
func open(ctx context.Context, port int, site map[string]file, tell func(url string)) error {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("%w: without --port a free port is taken", err)
	}
	tell(fmt.Sprintf("http://%s/", l.Addr()))
	return serve(ctx, l, site)
}

// write writes the files into a directory.
func write(dir string, site map[string]file) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, f := range site {
		if !fs.ValidPath(name) {
			return fmt.Errorf("write %q: it is no name of a file", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), f.data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Command filecopy copies files to a server, and verifies them.
//
//	filecopy serve -addr 127.0.0.1:7472 -dir incoming
//	filecopy put -addr 127.0.0.1:7472 FILE…
//
// A file goes in pieces, each of which the sender reads from the disk straight into registered
// memory, and the receiver fetches by RDMA READ when the receiver has room. So the slower of
// both ends sets the pace, and both ends hold a few pieces only, however large the file is.
package main

import (
	"context"
	"errors"
	"flag"

	"github.com/adverb-rdma/adverb/examples/internal/node"
)

func main() { node.Main("filecopy", run) }

var errUsage = errors.New("usage: filecopy serve [-addr ADDR:PORT] [-dir DIR] | filecopy put [-addr ADDR:PORT] [-local ADDR] [-forever] FILE…")

func run(ctx context.Context, args []string) error {
	var dir string
	var forever bool
	line, err := node.Parse("filecopy", "127.0.0.1:7472", args, func(f *flag.FlagSet) {
		f.StringVar(&dir, "dir", ".", "the `directory` in which the server puts files")
		f.BoolVar(&forever, "forever", false, "copy again and again, and connect again when the server is gone")
	})
	if err != nil {
		return err
	}
	switch {
	case line.Verb == "serve":
		l, err := line.Listen()
		if err != nil {
			return err
		}
		return serve(ctx, l, dir)
	case line.Verb == "put" && len(line.Args) > 0:
		return put(ctx, line.Addr, line.Local, line.Args, forever)
	}
	return errUsage
}

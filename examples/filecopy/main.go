// Command filecopy copies files to a server, and verifies them.
//
//	filecopy serve -addr 127.0.0.1:7472 -dir incoming
//	filecopy put -addr 127.0.0.1:7472 FILE…
//
// A file goes in pieces, each of which the sender reads from the disk straight into registered
// memory, and the receiver fetches by RDMA READ when it has room. So the slower end, whichever it
// is, sets the pace, and both hold a few pieces only, however large the file is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/adverb-rdma/adverb/examples/internal/node"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "filecopy:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: filecopy serve [-addr ADDR:PORT] [-dir DIR] | filecopy put [-addr ADDR:PORT] [-local ADDR] [-forever] FILE…")

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	f := flag.NewFlagSet("filecopy "+args[0], flag.ContinueOnError)
	addr := f.String("addr", "127.0.0.1:7472", "the server's `address`")
	local := f.String("local", "", "the `address` to connect from")
	dir := f.String("dir", ".", "the `directory` in which the server puts files")
	forever := f.Bool("forever", false, "copy again and again, and connect again when the server is gone")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "serve":
		l, err := node.Listen(*addr)
		if err != nil {
			return err
		}
		fmt.Printf("listening on %v\n", l.Addr())
		return serve(ctx, l, *dir)
	case "put":
		if f.NArg() == 0 {
			return errUsage
		}
		return put(ctx, *addr, *local, f.Args(), *forever)
	}
	return errUsage
}

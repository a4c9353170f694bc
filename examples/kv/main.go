// Command kv is a key-value store whose clients read the server's memory.
//
//	kv serve -addr 127.0.0.1:7471
//	kv put -addr 127.0.0.1:7471 color green
//	kv get -addr 127.0.0.1:7471 color
//
// A put is a message to the server (package rdmamsg). A get is an RDMA READ of the bucket that the
// key hashes to: the server's program has no part in it. A bucket that the server changes during
// the READ arrives as a mixture of old and new; its checksum tells, and the client reads again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/adverb-rdma/adverb/examples/internal/node"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kv:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: kv serve|get|put|load [-addr ADDR:PORT] [-local ADDR] [KEY [VALUE]]")

// run runs a command line.
func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	f := flag.NewFlagSet("kv "+args[0], flag.ContinueOnError)
	addr := f.String("addr", "127.0.0.1:7471", "the server's `address`")
	local := f.String("local", "", "the `address` to connect from")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	if args[0] == "serve" {
		l, err := node.Listen(*addr)
		if err != nil {
			return err
		}
		fmt.Printf("listening on %v\n", l.Addr())
		return serve(ctx, l)
	}
	if args[0] == "load" {
		return load(ctx, *addr, *local)
	}
	if !(args[0] == "get" && f.NArg() == 1 || args[0] == "put" && f.NArg() == 2) {
		return errUsage
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := dial(ctx, *addr, *local)
	if err != nil {
		return err
	}
	defer c.close()
	if args[0] == "put" {
		return c.put(ctx, f.Arg(0), f.Arg(1))
	}
	value, version, err := c.get(ctx, f.Arg(0))
	if err != nil {
		return err
	}
	fmt.Printf("%s (version %d)\n", value, version)
	return nil
}

// load puts and gets a key of its own until ctx ends, and checks that it reads what it wrote. When
// the server is gone it says so, and dials again.
func load(ctx context.Context, addr, local string) error {
	for ctx.Err() == nil {
		c, err := dial(ctx, addr, local)
		if err != nil { // the server is not there yet
			node.Pause(ctx)
			continue
		}
		fmt.Printf("connected from %v\n", c.rpc.Conn().LocalAddr())
		err = c.check(ctx)
		if ctx.Err() == nil {
			fmt.Printf("server gone: %v\n", err)
		}
		c.close()
		if errors.Is(err, errWrong) {
			return err
		}
	}
	return nil
}

// errWrong is a value that was never put.
var errWrong = errors.New("a wrong value was read")

// check puts and gets until an operation fails.
func (c *client) check(ctx context.Context) error {
	key := c.rpc.Conn().LocalAddr().String()
	for i := 0; ; i++ {
		if i%200 == 199 {
			fmt.Printf("progress: %d puts\n", i+1)
			node.Pause(ctx) // so that many clients fit a small machine
		}
		want := fmt.Sprintf("%s is %d", key, i)
		err := c.put(ctx, key, want)
		if err != nil {
			return err
		}
		for range 4 {
			got, _, err := c.get(ctx, key)
			if err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("%w: %q, want %q", errWrong, got, want)
			}
		}
	}
}

// Command kv is a key-value store whose clients read the server's memory.
//
//	kv serve -addr 127.0.0.1:7471
//	kv put -addr 127.0.0.1:7471 color green
//	kv get -addr 127.0.0.1:7471 color
//
// A put is a message to the server (package rdmamsg). A get is an RDMA READ of the bucket that the
// key hashes to: the server's program has no part in the READ. A bucket that the server changes during
// the READ arrives as a mixture of old and new; its checksum tells, and the client reads again.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/examples/internal/node"
)

func main() { node.Main("kv", run) }

var errUsage = errors.New("usage: kv serve|get|put|load [-addr ADDR:PORT] [-local ADDR] [KEY [VALUE]]")

// run runs a command line.
func run(ctx context.Context, args []string) error {
	line, err := node.Parse("kv", "127.0.0.1:7471", args, nil)
	if err != nil {
		return err
	}
	switch {
	case line.Verb == "serve":
		l, err := line.Listen()
		if err != nil {
			return err
		}
		return newServer().serve(ctx, l)
	case line.Verb == "load":
		return load(ctx, line.Addr, line.Local)
	case line.Verb == "get" && len(line.Args) == 1, line.Verb == "put" && len(line.Args) == 2:
		return ask(ctx, &line)
	}
	return errUsage
}

// ask gets or puts one key.
func ask(ctx context.Context, line *node.Line) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := dial(ctx, line.Addr, line.Local)
	if err != nil {
		return err
	}
	defer c.close()
	if line.Verb == "put" {
		return c.put(ctx, line.Args[0], line.Args[1])
	}
	value, version, err := c.get(ctx, line.Args[0])
	if err != nil {
		return err
	}
	fmt.Printf("%s (version %d)\n", value, version)
	return nil
}

// load puts and gets a key of its own until ctx ends, and checks that the get returns the
// value of the put. When the server is gone load says so, and dials again.
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

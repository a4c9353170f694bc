// Command rpc is a server for remote procedure calls, and its client.
//
//	rpc serve -addr 127.0.0.1:7473
//	rpc call -addr 127.0.0.1:7473 upper "some text"
//	rpc load -addr 127.0.0.1:7473 -conns 1000 -calls 10
//
// A call is a message, and so is its answer; a number tells which answer belongs to which call, so
// many calls share a connection. The server has one goroutine for a connection, and each connection
// holds little memory, so that a thousand of them cost some megabytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/examples/internal/node"
)

func main() { node.Main("rpc", run) }

var errUsage = errors.New("usage: rpc serve|call|load [-addr ADDR:PORT] [-local ADDR] [-conns N] [-calls N] [-forever] [METHOD ARGUMENT]")

// callTime is how long the commands wait for an answer.
const callTime = 20 * time.Second

func run(ctx context.Context, args []string) error {
	var conns, calls int
	var forever bool
	line, err := node.Parse("rpc", "127.0.0.1:7473", args, func(f *flag.FlagSet) {
		f.IntVar(&conns, "conns", 1, "how many connections load makes")
		f.IntVar(&calls, "calls", 10, "how many calls load makes on each")
		f.BoolVar(&forever, "forever", false, "have load go on, and connect again when the server is gone")
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
		return serve(ctx, l)
	case line.Verb == "call" && len(line.Args) == 2:
		c, err := dial(ctx, line.Addr, line.Local)
		if err != nil {
			return err
		}
		defer c.close()
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		result, err := c.call(ctx, line.Args[0], []byte(line.Args[1]))
		if err != nil {
			return err
		}
		fmt.Printf("%s\n", result)
		return nil
	case line.Verb == "load" && forever:
		return loadForever(ctx, line.Addr, line.Local)
	case line.Verb == "load":
		return load(ctx, line.Addr, line.Local, conns, calls)
	}
	return errUsage
}

// dialing is how many connections load makes at a time.
const dialing = 16

// load makes all connections, and only then all calls, so that all connections are there at once.
func load(ctx context.Context, addr, local string, conns, calls int) error {
	clients := make([]*client, conns)
	errs := make([]error, conns)
	start := time.Now()
	each(conns, dialing, func(i int) { clients[i], errs[i] = dial(ctx, addr, local) })
	defer each(conns, conns, func(i int) {
		if clients[i] != nil {
			clients[i].close()
		}
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("%d connections in %v\n", conns, time.Since(start).Round(time.Millisecond))
	start = time.Now()
	var good atomic.Int64
	each(conns, conns, func(i int) {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		for j := range calls {
			if errs[i] = clients[i].check(ctx, i, j); errs[i] != nil {
				return
			}
			good.Add(1)
		}
	})
	fmt.Printf("%d calls answered in %v\n", good.Load(), time.Since(start).Round(time.Millisecond))
	return errors.Join(errs...)
}

// each calls f with 0 to n-1, from at most width goroutines.
func each(n, width int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, width) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// loadForever calls on one connection until ctx ends. When the server is gone loadForever says
// so, and dials again.
func loadForever(ctx context.Context, addr, local string) error {
	for ctx.Err() == nil {
		c, err := dial(ctx, addr, local)
		if err != nil { // the server is not there yet
			node.Pause(ctx)
			continue
		}
		fmt.Printf("connected from %v\n", c.ch.Conn().LocalAddr())
		for i := 0; err == nil; i++ {
			if err = c.check(ctx, 0, i); i%200 == 199 {
				fmt.Printf("progress: %d calls\n", i+1)
				node.Pause(ctx) // so that many clients fit a small machine
			}
		}
		c.close()
		if errors.Is(err, errWrong) {
			return err
		}
		fmt.Printf("server gone: %v\n", err)
	}
	return nil
}

// errWrong is an answer that belongs to no call or to another.
var errWrong = errors.New("a wrong answer")

// check makes a call whose answer is known.
func (c *client) check(ctx context.Context, i, j int) error {
	got, err := c.call(ctx, "upper", fmt.Appendf(nil, "call %d of %d", j, i))
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("CALL %d OF %d", j, i); string(got) != want {
		return fmt.Errorf("%w: %q, want %q", errWrong, got, want)
	}
	return nil
}

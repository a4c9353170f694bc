// Command redis is Redis over RDMA: go-redis, a client, and redcon, which speaks Redis' protocol as a server,
// unchanged on the connections of package rsocket.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/adverb-rdma/adverb/examples/internal/node"
	"github.com/adverb-rdma/adverb/rsocket"
)

const usage = `usage:
  redis serve [-addr ADDR]                serve GET, SET, DEL, INCRBY, PUBLISH and SUBSCRIBE by RDMA
  redis do    [-addr ADDR] COMMAND ARG …  run one command, such as: set color green
  redis load  [-addr ADDR] [-n N]         N times SET and GET, one by one and in pipelines of 100`

func main() { node.Main("redis", run) }

func run(ctx context.Context, args []string) error {
	n := 0
	line, err := node.Parse("redis", "127.0.0.1:7483", args, func(f *flag.FlagSet) {
		f.IntVar(&n, "n", 10000, "how many `keys` load writes and reads")
		f.Usage = func() { fmt.Fprintln(os.Stderr, usage) }
	})
	if err != nil {
		return err
	}
	if line.Verb == "serve" {
		l, err := rsocket.Listen("rsocket", line.Addr)
		if err != nil {
			return err
		}
		fmt.Printf("listening on %v\n", l.Addr())
		defer context.AfterFunc(ctx, func() { l.Close() })()
		if err := serve(l); ctx.Err() == nil {
			return err
		}
		return nil
	}
	c := newClient(line.Addr, rsocket.DialContext)
	defer c.Close()
	switch line.Verb {
	case "do":
		return do(ctx, c, line.Args)
	case "load":
		return load(ctx, c, n)
	}
	return fmt.Errorf("no such command: %q\n%s", line.Verb, usage)
}

// newClient is a client whose connections are RDMA's. The server knows RESP2 alone.
func newClient(addr string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, Dialer: dial, Protocol: 2, DisableIdentity: true})
}

func do(ctx context.Context, c *redis.Client, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no command is given\n%s", usage)
	}
	words := make([]any, len(args))
	for i, a := range args {
		words[i] = a
	}
	v, err := c.Do(ctx, words...).Result()
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	fmt.Println(v)
	return nil
}

func load(ctx context.Context, c *redis.Client, n int) error {
	key := func(i int) string { return fmt.Sprint("key:", i) }
	start := time.Now()
	for i := range n {
		if err := c.Set(ctx, key(i), i, 0).Err(); err != nil {
			return err
		}
		if v, err := c.Get(ctx, key(i)).Int(); err != nil {
			return err
		} else if v != i {
			return fmt.Errorf("%s is %d, want %d", key(i), v, i)
		}
	}
	report("one by one", 2*n, start)
	start = time.Now()
	const batch = 100
	for at := 0; at < n; at += batch {
		cmds, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := at; i < min(at+batch, n); i++ {
				p.Set(ctx, key(i), -i, 0)
				p.Get(ctx, key(i))
			}
			return nil
		})
		if err != nil {
			return err
		}
		for i := at; i < min(at+batch, n); i++ {
			if v, err := cmds[2*(i-at)+1].(*redis.StringCmd).Int(); err != nil {
				return err
			} else if v != -i {
				return fmt.Errorf("%s is %d, want %d", key(i), v, -i)
			}
		}
	}
	report("in pipelines", 2*n, start)
	return nil
}

func report(how string, n int, start time.Time) {
	took := time.Since(start)
	fmt.Printf("%d commands %s in %v, %.0f per second\n", n, how, took.Round(time.Millisecond), float64(n)/took.Seconds())
}

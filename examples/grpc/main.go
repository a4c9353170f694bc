// Command grpc is gRPC over RDMA: grpc-go unchanged, on the connections of package rsocket, with calls of
// all four kinds.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/adverb-rdma/adverb/examples/internal/node"
	"github.com/adverb-rdma/adverb/rsocket"
)

const usage = `usage:
  grpc serve [-addr ADDR]            serve by RDMA
  grpc upper [-addr ADDR] TEXT       call: the text in capital letters
  grpc zeros [-addr ADDR] N          the server streams N bytes; print how fast
  grpc sum   [-addr ADDR] FILE       stream a file to the server; print its SHA-256
  grpc echo  [-addr ADDR]            stream standard input there and back`

func main() { node.Main("grpc", run) }

func run(ctx context.Context, args []string) error {
	line, err := node.Parse("grpc", "127.0.0.1:7482", args, func(f *flag.FlagSet) {
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
		return serve(ctx, l)
	}
	call, ok := map[string]func(context.Context, client, []string) error{"upper": upper, "zeros": zeros, "sum": sum, "echo": echo}[line.Verb]
	if !ok {
		return fmt.Errorf("no such command: %q\n%s", line.Verb, usage)
	}
	conn, err := dial(line.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	return call(ctx, client{conn}, line.Args)
}

// serve serves until ctx ends.
func serve(ctx context.Context, l net.Listener) error {
	s := grpc.NewServer()
	s.RegisterService(&desc, service{})
	defer context.AfterFunc(ctx, s.Stop)()
	return s.Serve(l)
}

// dial makes a channel whose connections are RDMA's. For TLS give grpc credentials, as over TCP.
func dial(addr string) (*grpc.ClientConn, error) { return dialBy(rsocket.DialContext, addr) }

func dialBy(by func(ctx context.Context, network, addr string) (net.Conn, error), addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return by(ctx, "rsocket", addr) }))
}

func one(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func upper(ctx context.Context, c client, args []string) error {
	s, err := c.upper(ctx, one(args))
	if err == nil {
		fmt.Println(s)
	}
	return err
}

func zeros(ctx context.Context, c client, args []string) error {
	n, err := strconv.ParseInt(one(args), 10, 64)
	if err != nil {
		return err
	}
	start := time.Now()
	s, err := c.zeros(ctx, n)
	if err != nil {
		return err
	}
	got := int64(0)
	for {
		b, err := s.Recv()
		if err == io.EOF {
			took := time.Since(start)
			fmt.Printf("%d bytes in %v, %.0f MB/s\n", got, took.Round(time.Millisecond), float64(got)/took.Seconds()/1e6)
			return nil
		}
		if err != nil {
			return err
		}
		got += int64(len(b.Value))
	}
}

func sum(ctx context.Context, c client, args []string) error {
	f, err := os.Open(one(args))
	if err != nil {
		return err
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of a stream that is not ended
	s, err := c.sum(ctx)
	if err != nil {
		return err
	}
	if err := pieces(f, s.Send); err != nil {
		return err
	}
	t, err := s.CloseAndRecv()
	if err == nil {
		fmt.Println(t.Value)
	}
	return err
}

// pieces sends the data of r. A stream that has ended is no error: receiving from the stream says why.
func pieces(r io.Reader, send func(*chunk) error) error {
	b := make([]byte, piece)
	for {
		n, err := r.Read(b)
		if n > 0 {
			if err := send(wrapperspb.Bytes(b[:n])); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func echo(ctx context.Context, c client, _ []string) error {
	return echoAll(ctx, c, os.Stdin, os.Stdout)
}

// echoAll sends the data of r, and writes to w the data that comes back meanwhile.
func echoAll(ctx context.Context, c client, r io.Reader, w io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := c.echo(ctx)
	if err != nil {
		return err
	}
	go func() {
		if err := pieces(r, s.Send); err != nil {
			cancel(err)
			return
		}
		s.CloseSend()
	}()
	for {
		b, err := s.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return cmp.Or(context.Cause(ctx), err) // r may have failed, and the failure has ended the stream
		}
		if _, err := w.Write(b.Value); err != nil {
			return err
		}
	}
}

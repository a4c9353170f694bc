// Package demo has the command demo, which plays both ends of the read/write demonstration in one
// process and explains each step and each packet.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rwdemo"
)

// Command is the command demo.
var Command = &cli.Command{
	Name:  "demo",
	Short: "Show an RDMA read and an RDMA write, both ends in one process, with every packet",
	Flags: []cli.Flag{
		{Short: 'q', Long: "quiet", Help: "print only the two programs' output", Ours: true},
		{Long: "pcap", Arg: "<file>", Help: "write the packets to a file for Wireshark", Ours: true, Values: cli.Files},
	},
	Operands: []cli.Values{cli.OneOf(string(rwdemo.Read), string(rwdemo.Write))},
	Forms:    []cli.Form{{Args: "[read|write] [-q] [--pcap=<file>]"}},
	Usage:    cli.UsageLine,
	More: `Two software devices on loopback addresses play rdma-server and rdma-client of "RDMA read and
write with IB verbs": each end registers memory, tells the other its key, and then writes
into the other's memory, or reads from it, without the other's program taking part. Real UDP
packets go between them. The left column has the program and what it prints. The right column
has what happens underneath. Without an argument both modes run, write first.
`,
	Run: run,
}

// timeout ends a demonstration that got stuck. A demonstration takes milliseconds.
const timeout = 10 * time.Second

type flags struct {
	modes []rwdemo.Mode
	quiet bool
	pcap  string // file, or ""
}

func run(inv *cli.Invocation) int {
	f := flags{modes: []rwdemo.Mode{rwdemo.Write, rwdemo.Read}}
	operands, code, ok := inv.Parse(cli.ExitUsage, func(name, arg string) bool {
		switch name {
		case "quiet":
			f.quiet = true
		case "pcap":
			f.pcap = arg
		default:
			cli.Undeclared(name)
		}
		return true
	})
	if !ok {
		return code
	}
	switch {
	case len(operands) == 1 && rwdemo.Mode(operands[0]).Valid():
		f.modes = []rwdemo.Mode{rwdemo.Mode(operands[0])}
	case len(operands) > 0:
		inv.Errorf("%s: %q: there are the demonstrations read and write\n", inv.Prog, operands)
		inv.PrintUsage()
		return cli.ExitUsage
	}
	return inv.Finish(demonstrate(inv.Ctx, inv.Stdout, f), func(err error) int {
		return inv.Fail(fmt.Errorf("demo: %w", err), "")
	})
}

// demonstrate runs the modes of f one after the other.
func demonstrate(ctx context.Context, w io.Writer, f flags) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not done after %v", timeout))
	defer cancel()
	v := newView(w, f.quiet)
	net, err := openNetwork(v, f.pcap)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, net.close()) }()
	for _, mode := range f.modes {
		if err := demonstrateOne(ctx, v, net, mode); err != nil {
			return err
		}
	}
	return nil
}

// demonstrateOne runs one mode: the server until it listens, then both ends at the same time.
func demonstrateOne(ctx context.Context, v *view, net *network, mode rwdemo.Mode) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server := &end{who: roleServer, mode: mode, view: v, dev: net.server, done: make(chan struct{})}
	client := &end{who: roleClient, mode: mode, view: v, dev: net.client, done: make(chan struct{})}
	server.peer, client.peer = client, server
	defer server.close()
	defer client.close()

	v.begin(mode)
	l, err := server.listen(net.serverAddr)
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	v.command(roleClient, fmt.Sprintf("rdma-client %s %v %d", mode, net.serverAddr, l.port()))

	errs := make(chan error, 2)
	for _, run := range []func() error{
		func() error { return server.serve(ctx, l) },
		func() error { return client.call(ctx, l.addr()) },
	} {
		go func() {
			err := run()
			if err != nil {
				cancel(err) // the other end waits for this one
			}
			errs <- err
		}()
	}
	<-errs
	<-errs
	// Return the cause, and not the error that the cancellation led to at the other end.
	if err := context.Cause(ctx); err != nil {
		return err
	}
	v.end()
	return nil
}

// listener is where the server waits for the exchange of addresses.
type listener struct{ net.Listener }

func (l listener) addr() netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }
func (l listener) port() uint16         { return l.addr().Port() }

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

var demoCmd = &command{
	name:  "demo",
	short: "Show an RDMA read and an RDMA write, both ends in one process, with every packet",
	options: []option{
		{short: 'q', long: "quiet", help: "print only what the two programs print", ours: true},
		{long: "pcap", arg: "<file>", help: "write the packets to a file for Wireshark", ours: true},
	},
	usage: func(w io.Writer, _ *command, prog string) {
		fmt.Fprintf(w, "Usage: %s [read|write] [-q] [--pcap=<file>]\n", prog)
	},
	more: `Two software devices on loopback addresses play rdma-server and rdma-client of "RDMA read and
write with IB verbs": each end registers memory, tells the other its key, and then writes
into the other's memory, or reads from it, without the other's program taking part. What goes
between them are real UDP packets. On the left stands who it is and what the program prints,
on the right what happens underneath. Without an argument both run, write first.
`,
	run: runDemo,
}

// demoTimeout ends a demonstration that got stuck. One takes milliseconds.
const demoTimeout = 10 * time.Second

// demoMode is what the two ends do with each other's memory.
type demoMode string

const (
	demoWrite demoMode = "write"
	demoRead  demoMode = "read"
)

type demoFlags struct {
	modes []demoMode
	quiet bool
	pcap  string // file, or ""
}

func runDemo(inv *invocation) int {
	f := demoFlags{modes: []demoMode{demoWrite, demoRead}}
	operands, code, ok := inv.parse(exitUsage, func(name, arg string) bool {
		switch name {
		case "quiet":
			f.quiet = true
		case "pcap":
			f.pcap = arg
		}
		return true
	})
	if !ok {
		return code
	}
	switch {
	case len(operands) == 1 && (operands[0] == string(demoWrite) || operands[0] == string(demoRead)):
		f.modes = []demoMode{demoMode(operands[0])}
	case len(operands) > 0:
		inv.errorf("%s: %q: there are the demonstrations read and write\n", inv.prog, operands)
		inv.printUsage()
		return exitUsage
	}
	if err := demonstrate(inv.ctx, inv.stdout, f); err != nil {
		if inv.ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		return inv.fail(fmt.Errorf("demo: %w", err), "")
	}
	return exitOK
}

// demonstrate runs the modes of f one after the other.
func demonstrate(ctx context.Context, w io.Writer, f demoFlags) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, demoTimeout, fmt.Errorf("not done after %v", demoTimeout))
	defer cancel()
	view := newDemoView(w, f.quiet)
	net, err := openDemoNet(view, f.pcap)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, net.close()) }()
	for _, mode := range f.modes {
		if err := demonstrateOne(ctx, view, net, mode); err != nil {
			return err
		}
	}
	return nil
}

// demonstrateOne runs one mode: the server until it listens, then both ends at the same time.
func demonstrateOne(ctx context.Context, view *demoView, net *demoNet, mode demoMode) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server := &demoEnd{who: demoServer, mode: mode, view: view, dev: net.server, done: make(chan struct{})}
	client := &demoEnd{who: demoClient, mode: mode, view: view, dev: net.client, done: make(chan struct{})}
	server.peer, client.peer = client, server
	defer server.close()
	defer client.close()

	view.begin(mode)
	l, err := server.listen(net.serverAddr)
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	view.command(demoClient, fmt.Sprintf("rdma-client %s %v %d", mode, net.serverAddr, l.port()))

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
	// The cause, and not what its cancellation brought about at the other end.
	if err := context.Cause(ctx); err != nil {
		return err
	}
	view.end()
	return nil
}

// demoListener is where the server waits for the exchange of addresses.
type demoListener struct{ net.Listener }

func (l demoListener) addr() netip.AddrPort { return l.Addr().(*net.TCPAddr).AddrPort() }
func (l demoListener) port() uint16         { return l.addr().Port() }

// demoPID is the pid in the messages; the two ends have the same.
func demoPID() int { return os.Getpid() }

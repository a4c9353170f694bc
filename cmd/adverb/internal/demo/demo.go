// Package demo has the command demo: demonstrations in one process, told step by step. Two of them play both ends of
// the read/write demonstration over loopback, with each step and each packet (demo.go, end.go, view.go, net.go). The others
// are scenes of one thing each, on a network in memory and by a clock of their own (stage.go, props.go, scenes.go).
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rwdemo"
)

// Command is the command demo.
var Command = &cli.Command{
	Name:  "demo",
	Short: "Show what RDMA does, both ends in one process: SEND, READ, WRITE, atomics, losses, refusals",
	Flags: []cli.Flag{
		{Short: 'q', Long: "quiet", Help: "print only the two programs' output; of a scene only what other flags ask for", Ours: true},
		{Long: "trace", Help: "print each packet when it is sent", Ours: true},
		{Long: "see", Help: "draw the packets at the end, as adverb see does", Ours: true},
		{Long: "svg", Arg: "<file>", Help: "draw the packets into a picture", Ours: true, Values: cli.Files},
		{Long: "pcap", Arg: "<file>", Help: "write the packets to a file for Wireshark", Ours: true, Values: cli.Files},
	},
	Operands: []cli.Values{cli.OneOf(names()...)},
	Forms:    []cli.Form{{Args: "[" + strings.Join(names(), "|") + "] [<flag>...]"}},
	Usage:    cli.UsageLine,
	More: `read and write: two software devices on loopback addresses play rdma-server and rdma-client of "RDMA read
and write with IB verbs": each end registers memory, tells the other its key, and then writes
into the other's memory, or reads from it, without the other's program taking part. Real UDP
packets go between them. The left column has the program and what it prints. The right column
has what happens underneath. Without an argument both run, write first.

The others are scenes of one thing each, told step by step, on a network in memory. They print the same at
each run.
` + sceneList(),
	Run: run,
}

// names are the demonstrations.
func names() []string {
	list := []string{string(rwdemo.Read), string(rwdemo.Write)}
	for _, s := range scenes {
		list = append(list, s.name)
	}
	return list
}

func sceneList() string {
	var b strings.Builder
	for _, s := range scenes {
		fmt.Fprintf(&b, "  %-7s %s\n", s.name, s.does)
	}
	return b.String()
}

// timeout ends a demonstration that got stuck. A demonstration takes milliseconds.
const timeout = 10 * time.Second

type flags struct {
	modes []rwdemo.Mode
	quiet bool
	trace bool
	see   bool
	svg   string // file, or ""
	pcap  string // file, or ""
	name  string // of the demonstration, for the picture
}

// draws reports whether the packets are drawn.
func (f flags) draws() bool { return f.see || f.svg != "" }

func run(inv *cli.Invocation) int {
	f := flags{modes: []rwdemo.Mode{rwdemo.Write, rwdemo.Read}}
	operands, code, ok := inv.Parse(cli.ExitUsage, func(name, arg string) bool {
		switch name {
		case "quiet":
			f.quiet = true
		case "trace":
			f.trace = true
		case "see":
			f.see = true
		case "svg":
			f.svg = arg
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
	fail := func(err error) int { return inv.Fail(fmt.Errorf("demo: %w", err), "") }
	f.name = strings.Join(append([]string{inv.Prog}, operands...), " ")
	refuse := func(format string, args ...any) int {
		inv.Errorf(inv.Prog+": "+format+"\n", args...)
		inv.PrintUsage()
		return cli.ExitUsage
	}
	if len(operands) == 1 {
		for _, s := range scenes {
			if s.name == operands[0] {
				if shows := f.trace || f.draws() || f.pcap != ""; s.told && (shows || f.quiet) {
					return refuse("the scene %s tells of its packets, which are InfiniBand's: leave out the flags", s.name)
				}
				if f.quiet && !f.trace && !f.draws() && f.pcap == "" {
					return refuse("with -q alone the scene %s prints nothing: add --see, --svg=<file>, --trace or --pcap=<file>, or leave out -q", s.name)
				}
				return inv.Finish(errors.Join(play(inv.Stdout, f, s.play), inv.Ctx.Err()), fail)
			}
		}
	}
	switch {
	case len(operands) == 1 && rwdemo.Mode(operands[0]).Valid():
		f.modes = []rwdemo.Mode{rwdemo.Mode(operands[0])}
	case len(operands) > 1:
		return refuse("%d demonstrations were named: name one, or none for write and read", len(operands))
	case len(operands) == 1:
		return refuse("there is no demonstration %q: there are %s", operands[0], strings.Join(names(), ", "))
	}
	return inv.Finish(demonstrate(inv.Ctx, inv.Stdout, f), fail)
}

// demonstrate runs the modes of f one after the other.
func demonstrate(ctx context.Context, w io.Writer, f flags) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not done after %v", timeout))
	defer cancel()
	v := newView(w, f.quiet)
	net, err := openNetwork(v, f)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, net.close()); err == nil {
			err = net.captures.draw(w, f, true)
		}
	}()
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

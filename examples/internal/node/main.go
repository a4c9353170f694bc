package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// Main runs a command line, and ends the process. SIGINT and SIGTERM end the context.
func Main(program string, run func(ctx context.Context, args []string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) { // which has printed the flags
		fmt.Fprintln(os.Stderr, program+":", err)
		os.Exit(1)
	}
}

// Line is a command line: a verb, flags, and the arguments behind them.
type Line struct {
	Verb  string
	Addr  string // the server's address and port, by -addr
	Local string // the address to connect from, by -local; empty for any
	Args  []string
}

// Parse parses the arguments after the program's name. addr is the default of -addr. own declares the
// program's own flags, and may be nil. Without arguments the verb is empty.
func Parse(program, addr string, args []string, own func(*flag.FlagSet)) (Line, error) {
	if len(args) == 0 {
		return Line{}, nil
	}
	l := Line{Verb: args[0]}
	f := flag.NewFlagSet(program+" "+l.Verb, flag.ContinueOnError)
	f.StringVar(&l.Addr, "addr", addr, "the server's `address`")
	f.StringVar(&l.Local, "local", "", "the `address` to connect from")
	if own != nil {
		own(f)
	}
	err := f.Parse(args[1:])
	l.Args = f.Args()
	return l, err
}

// Listen listens on the line's address, and says so.
func (l *Line) Listen() (*rdmacm.Listener, error) {
	listener, err := Listen(l.Addr)
	if err != nil {
		return nil, err
	}
	fmt.Printf("listening on %v\n", listener.Addr())
	return listener, nil
}

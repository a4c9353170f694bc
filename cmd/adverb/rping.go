package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"

	"github.com/adverb-rdma/adverb/rdmacm"
)

const (
	rpingPort   = 7174
	rpingSize   = 64
	rpingFailed = 255 // of main's return -1
	rpingUsage  = 22  // EINVAL
)

var rpingCmd = &command{
	name:    "rping",
	classic: "rping",
	short:   "Ping by SEND, RDMA READ and RDMA WRITE, over the connection manager",
	options: []option{
		{short: 's', long: "server", help: "be the server"},
		{short: 'c', long: "client", help: "be the client"},
		{short: 'a', long: "address", arg: "<addr>", help: "server's address (default any; ::0 for any of IPv6)"},
		{short: 'I', long: "source", arg: "<addr>", help: "client's own address"},
		{short: 'p', long: "port", arg: "<port>", help: "port (default 7174)"},
		{short: 'S', long: "size", arg: "<size>", help: "bytes of data (default 64)"},
		{short: 'C', long: "count", arg: "<count>", help: "client's rounds (default without end)"},
		{short: 'v', long: "verbose", help: "print the data"},
		{short: 'V', long: "validate", help: "client: compare what comes back"},
		{short: 'd', long: "debug", help: "say what is done, from the options behind it on"},
		{short: 'P', long: "persistent", help: "server: serve any number of clients, at once"},
		{short: 'q', long: "own-qp", help: "make the QP, and modify it, without the connection manager"},
		cmDeviceOption,
	},
	usage: rpingCommandUsage,
	more: `Two terminals of one machine; between two machines <addr> is the server's:
  PROG -s -v
  PROG -c -v -a 127.0.0.1 -C 3
A round: the client SENDs where its data is, and the server READs it and SENDs a go-ahead; the client
SENDs where it has room, and the server WRITEs the data back and SENDs a go-ahead. So each end knows
when its memory is its own again. The server's -S must not be below the client's.
The other end may be the C program. Without -P the server ends with its client. An end that hears
nothing for 10 s asks by an empty WRITE whether the peer still exists, and fails if not.
`,
	run: runRping,
}

func rpingCommandUsage(w io.Writer, c *command, prog string) {
	if !strings.HasPrefix(prog, "adverb ") {
		prog = c.classic // whatever the program is called as
	}
	fmt.Fprintf(w, "Usage:\n")
	fmt.Fprintf(w, "  %s -s [-vVd] [-S size] [-C count] [-a addr] [-p port]\n", prog)
	fmt.Fprintf(w, "  %s -c [-vVd] [-S size] [-C count] [-I addr] -a addr [-p port]\n\n", prog)
	printOptions(w, c)
}

// rpingClassicUsage is what the C program prints for options that it does not take.
const rpingClassicUsage = `PROG -s [-vVd] [-S size] [-C count] [-a addr] [-p port]
PROG -c [-vVd] [-S size] [-C count] [-I addr] -a addr [-p port]
	-c		client side
	-I		Source address to bind to for client.
	-s		server side.  To bind to any address with IPv6 use -a ::0
	-v		display ping data to stdout
	-V		validate ping data
	-d		debug printfs
	-S size 	ping data size
	-C count	ping count times
	-a addr		address
	-p port		port
	-P		persistent server mode allowing multiple connections
	-q		use self-created, self-modified QP
`

// rpingFlags are the options of rping.
type rpingFlags struct {
	role       string // "server", "client" or ""
	addr       netip.Addr
	source     netip.Addr
	port       uint16
	size       int // bytes
	count      int // 0: without end
	verbose    bool
	validate   bool
	debug      bool
	persistent bool
	ownQP      bool
	device     string
}

// rping is a run of the program.
type rping struct {
	*invocation
	flags rpingFlags
	ch    *rdmacm.EventChannel
}

// errReported is a failure that has had its lines.
var errReported = errors.New("reported")

// errInterrupted ends the programs upon Ctrl-C.
var errInterrupted = errors.New("interrupted")

func runRping(inv *invocation) int {
	r := &rping{invocation: inv.lockOutput()}
	if code, ok := r.parse(); !ok {
		return code
	}
	newChannel, done, ok := r.cmOpen(r.flags.device)
	if !ok {
		return int(cmErrno(rdmacm.ErrNoDevice))
	}
	defer done()
	r.ch = newChannel()
	ctx, cancel := context.WithCancel(inv.ctx)
	var router sync.WaitGroup
	router.Go(func() { routeEvents(ctx, r.ch) })
	f := newFeed(ctx)
	err := r.run(f)
	cancel()
	router.Wait()
	f.drain()
	r.explain(r.ch.Close())
	switch {
	case err == nil:
		return exitOK
	case inv.ctx.Err() != nil:
		r.explain(errInterrupted)
		return statusInterrupted
	case !errors.Is(err, errReported):
		r.explain(err)
	}
	return rpingFailed
}

// run does what main of the C program does with its options.
func (r *rping) run(f *feed) error {
	id, err := rdmacm.NewID(r.ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return r.perror("rdma_create_id", err)
	}
	id.Context = f
	r.debugf("created cm_id %p\n", id)
	defer func() {
		r.debugf("destroy cm_id %p\n", id)
		r.explain(id.Close())
	}()
	if r.flags.role == "client" {
		return r.runClient(id, f)
	}
	return r.runServer(id, f)
}

// debugf prints a line of -d.
func (r *rping) debugf(format string, args ...any) {
	if r.flags.debug {
		r.printf(format, args...)
	}
}

// perror reports a failed call.
func (r *rping) perror(call string, err error) error {
	r.cmPerror(call, err)
	return errReported
}

// report reports a failure by a line of the C program.
func (r *rping) report(cause error, format string, args ...any) error {
	r.errorf(format, args...)
	r.explain(cause)
	return errReported
}

// parse reads the options. ok is false if the run ends here, with status code.
func (r *rping) parse() (code int, ok bool) {
	r.flags = rpingFlags{addr: netip.IPv4Unspecified(), port: rpingPort, size: rpingSize}
	g := r.parser()
	g.stderr = io.Discard // as opterr = 0
	for {
		o, arg, st := g.next()
		switch {
		case st == optEnd && code != exitOK:
			return code, false
		case st == optEnd && r.flags.role != "":
			return exitOK, true
		case st != optFound:
			return r.wrongUsage(), false
		case o.long == "help":
			r.printHelp()
			return exitOK, false
		}
		if c := r.set(o.long, arg); c != exitOK {
			code = c
		}
	}
}

func (r *rping) wrongUsage() int {
	prog := r.cmd.classic
	if !r.isName {
		prog = r.prog
	}
	r.printf("%s", strings.ReplaceAll(rpingClassicUsage, "PROG", prog))
	return rpingUsage
}

// set takes one option, and returns the status of a value that is refused.
func (r *rping) set(name, arg string) int {
	f := &r.flags
	switch name {
	case "address":
		return r.lookup(arg, &f.addr)
	case "source":
		return r.lookup(arg, &f.source)
	case "persistent":
		f.persistent = true
	case "port":
		f.port = uint16(cmAtoi(arg))
		r.debugf("port %d\n", f.port)
	case "server", "client":
		f.role = name
		r.debugf("%s\n", name)
	case "size":
		f.size = cmAtoi(arg)
		if f.size < rpingMinSize || f.size > rpingMaxSize {
			r.errorf("Invalid size %d (valid range is %d to %d)\n", f.size, rpingMinSize, rpingMaxSize+1)
			return rpingUsage
		}
		r.debugf("size %d\n", f.size)
	case "count":
		f.count = cmAtoi(arg)
		if f.count < 0 {
			r.errorf("Invalid count %d\n", f.count)
			return rpingUsage
		}
		r.debugf("count %d\n", f.count)
	case "verbose":
		f.verbose = true
		r.debugf("verbose\n")
	case "validate":
		f.validate = true
		r.debugf("validate data\n")
	case "debug":
		f.debug = true
	case "own-qp":
		f.ownQP = true
	case "ib-dev":
		f.device = arg
	}
	return exitOK
}

// lookup finds the address of a host.
func (r *rping) lookup(host string, addr *netip.Addr) int {
	a, err := cmLookup(r.ctx, host, false, netip.Addr{})
	if err == nil {
		*addr = a
		return exitOK
	}
	e, ok := errors.AsType[*cmLookupError](err)
	if !ok {
		e = &cmLookupError{eaiNoName, err}
	}
	r.printf("getaddrinfo failed (%s) - invalid hostname or IP address\n", e.text())
	r.explain(e.cause)
	return cmExit(e.code)
}

// lockedWriter lets several goroutines write, each a whole line at a time.
type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// lockOutput returns inv for use by several goroutines.
func (inv *invocation) lockOutput() *invocation {
	locked, mu := *inv, new(sync.Mutex)
	locked.stdout, locked.stderr = lockedWriter{mu, inv.stdout}, lockedWriter{mu, inv.stderr}
	return &locked
}

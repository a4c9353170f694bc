// Package rping has the program rping: a client and a server that bounce data by SEND, RDMA READ and
// RDMA WRITE, over the connection manager.
package rping

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
)

const (
	defaultPort  = 7174
	defaultSize  = 64
	statusFailed = 255 // main returns -1
	statusUsage  = 22  // EINVAL
)

// Command is the command rping.
var Command = &cli.Command{
	Name:    "rping",
	Classic: []string{"rping"},
	Short:   "Ping by SEND, RDMA READ and RDMA WRITE, over the connection manager",
	Flags: []cli.Flag{
		{Short: 's', Long: "server", Help: "be the server"},
		{Short: 'c', Long: "client", Help: "be the client"},
		{Short: 'a', Long: "address", Arg: "<addr>", Help: "server's address (default any; ::0 for any of IPv6)"},
		{Short: 'I', Long: "source", Arg: "<addr>", Help: "client's own address"},
		{Short: 'p', Long: "port", Arg: "<port>", Help: "port (default 7174)", Check: clib.DecimalWithin(0, math.MaxUint16)},
		{Short: 'S', Long: "size", Arg: "<size>", Help: "bytes of data (default 64)"},
		{Short: 'C', Long: "count", Arg: "<count>", Help: "client's rounds (default without end)", Check: clib.DecimalWithin(math.MinInt32, math.MaxInt32)},
		{Short: 'v', Long: "verbose", Help: "print the data"},
		{Short: 'V', Long: "validate", Help: "client: compare the data that come back"},
		{Short: 'd', Long: "debug", Help: "print each step, from the options behind it on"},
		{Short: 'P', Long: "persistent", Help: "server: serve any number of clients, at once"},
		{Short: 'q', Long: "own-qp", Help: "make the QP, and modify it, without the connection manager"},
		cm.DeviceFlag,
		cm.PSKFlag,
	},
	Forms: []cli.Form{
		{Args: "-s [-vVd] [-S size] [-C count] [-a addr] [-p port]", Does: "be the server"},
		{Args: "-c [-vVd] [-S size] [-C count] [-I addr] -a addr [-p port]", Does: "be the client"},
	},
	Usage: usage,
	More: `Two terminals of one machine; between two machines <addr> is the server's:
  PROG -s -v
  PROG -c -v -a 127.0.0.1 -C 3
A round: the client SENDs where its data is, and the server READs it and SENDs a go-ahead; the client
SENDs where it has room, and the server WRITEs the data back and SENDs a go-ahead. So each end knows
when its memory is its own again. The server's -S must not be below the client's.
The other end may be the C program. Without -P the server ends with its client. An end that hears
nothing for 10 s asks by an empty WRITE whether the peer still exists, and fails if not.
`,
	Run: run,
}

func usage(w io.Writer, c *cli.Command, prog string) {
	if !strings.HasPrefix(prog, "adverb ") {
		prog = c.Classic[0] // as in the C program, whatever argv[0] is
	}
	fmt.Fprintf(w, "Usage:\n")
	for _, f := range c.Forms {
		fmt.Fprintf(w, "  %s %s\n", prog, f.Args)
	}
	fmt.Fprintln(w)
	cli.PrintFlags(w, c)
}

// classicUsage is the C program's output for flags that it does not take.
const classicUsage = `PROG -s [-vVd] [-S size] [-C count] [-a addr] [-p port]
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

// flags are the flags of rping.
type flags struct {
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
	psk        string // file, or ""
}

// rping is a run of the program.
type rping struct {
	*cli.Invocation
	flags flags
	ch    *rdmacm.EventChannel

	security *rdmacm.Security // or nil
}

func run(inv *cli.Invocation) int {
	r := &rping{Invocation: inv.LockOutput()}
	if code, ok := r.parse(); !ok {
		return code
	}
	if r.flags.psk != "" {
		var err error
		if r.security, err = cm.ReadPSK(r.flags.psk); err == nil && r.flags.ownQP {
			err = errors.New("--psk and -q exclude each other: the connection manager gives the keys to a QP of its own")
		}
		if err != nil {
			r.Explain(err)
			return statusUsage
		}
	}
	newChannel, done, ok := cm.Open(r.Invocation, r.flags.device)
	if !ok {
		return int(clib.Errno(rdmacm.ErrNoDevice))
	}
	defer done()
	r.ch = newChannel()
	err := cm.RunWithFeed(r.Invocation, r.ch, r.main)
	return r.Finish(err, func(err error) int { return r.ExplainUnlessReported(err, statusFailed) })
}

// main does the work of the C program's main once that has read its flags.
func (r *rping) main(f *cm.Feed) error {
	id, err := rdmacm.NewID(r.ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return r.perror("rdma_create_id", err)
	}
	id.Context = f
	r.debugf("created cm_id %p\n", id)
	defer func() {
		r.debugf("destroy cm_id %p\n", id)
		r.Explain(id.Close())
	}()
	if err := id.SetSecurity(r.security); err != nil {
		return r.perror("rdma_set_option", err)
	}
	if r.flags.role == "client" {
		return r.client(id, f)
	}
	return r.server(id, f)
}

// debugf prints a line if -d was given.
func (r *rping) debugf(format string, args ...any) {
	if r.flags.debug {
		r.Printf(format, args...)
	}
}

// perror reports a failed call.
func (r *rping) perror(call string, err error) error {
	cm.Perror(r.Invocation, call, err)
	return cli.ErrReported
}

// report prints the C program's line about a failure, and its cause.
func (r *rping) report(cause error, format string, args ...any) error {
	r.Errorf(format, args...)
	r.Explain(cause)
	return cli.ErrReported
}

// parse reads the flags. If ok is false, then the run ends here with status code.
func (r *rping) parse() (code int, ok bool) {
	r.flags = flags{addr: netip.IPv4Unspecified(), port: defaultPort, size: defaultSize}
	g := r.Getopt()
	g.Stderr = io.Discard // the C program sets opterr to 0
	for {
		o, arg, state := g.Next()
		switch {
		case state == cli.GetoptEnd && code != cli.ExitOK:
			return code, false
		case state == cli.GetoptEnd && r.flags.role != "":
			return cli.ExitOK, true
		case state != cli.GetoptFlag:
			return r.wrongUsage(), false
		case o.Long == "help":
			r.PrintHelp()
			return cli.ExitOK, false
		}
		if c := r.set(o.Long, arg); c != cli.ExitOK {
			code = c
		}
	}
}

func (r *rping) wrongUsage() int {
	prog := r.Cmd.Classic[0]
	if !r.ByClassicName {
		prog = r.Prog
	}
	r.Printf("%s", strings.ReplaceAll(classicUsage, "PROG", prog))
	return statusUsage
}

// set takes one flag. It returns the exit status that a refused value leads to.
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
		f.port = uint16(clib.Atoi(arg))
		r.debugf("port %d\n", f.port)
	case "server", "client":
		f.role = name
		r.debugf("%s\n", name)
	case "size":
		f.size = clib.Atoi(arg)
		if f.size < minSize || f.size > maxSize {
			r.Errorf("Invalid size %d (valid range is %d to %d)\n", f.size, minSize, maxSize+1)
			return statusUsage
		}
		r.debugf("size %d\n", f.size)
	case "count":
		f.count = clib.Atoi(arg)
		if f.count < 0 {
			r.Errorf("Invalid count %d\n", f.count)
			return statusUsage
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
	case "psk":
		f.psk = arg
	default:
		cli.Undeclared(name)
	}
	return cli.ExitOK
}

// lookup finds the address of a host.
func (r *rping) lookup(host string, addr *netip.Addr) int {
	a, err := cm.Lookup(r.Ctx, host, false, netip.Addr{})
	if err == nil {
		*addr = a
		return cli.ExitOK
	}
	e, ok := errors.AsType[*cm.LookupError](err)
	if !ok {
		e = &cm.LookupError{Code: cm.EAINoName, Cause: err}
	}
	r.Printf("getaddrinfo failed (%s) - invalid hostname or IP address\n", e.Text())
	r.Explain(e.Cause)
	return cm.ExitStatus(e.Code)
}

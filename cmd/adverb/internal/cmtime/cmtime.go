// Package cmtime has the program cmtime, which measures how long each step of making connections
// takes.
package cmtime

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
)

// cmtime comes in three forms. The oldest is that of rdma-core up to 51: a client of a server that serves for ever.
// In rdma-core 52 to 58 client and server wait for each other over TCP. Both take the same flags, so our ends find
// out the other one's form: see classicsync.go. The newest form, of rdma-core 59 and later, connects each of several
// clients with each of several servers, which find each other through a controller. It has few flags in common with
// the others, so the flags show that it is meant. "Older form" below is the first two, and "newer form" the last.

const classicUsage = `	[-s server_address]
	[-b bind_address]
	[-c connections]
	[-p port_number]
	[-r retries]
	[-t timeout_ms]
`

const meshUsage = `	-B bind_interface (only one of -B or -b accepted)
	-b bind_address (only one of -B or -b accepted)
	-C controller_address
	[-c num_conns] connections per listener
	[-L] run as listening server
	[-m mimic_qp_delay_us]
	[-n num_threads]
	[-P num_peers] total number of peers
	[-p oob_port]
	[-q base_qpn]
	[-r retries]
	[-S] run socket baseline test, 2 peers only
	[-t timeout_ms]
`

// meshFlags are the long names of the flags that only the newer form has.
var meshFlags = []string{"controller", "interface", "listen", "peers", "threads", "mimic-qp", "base-qpn", "sockets"}

// Command is the command cmtime.
var Command = &cli.Command{
	Name:    "cmtime",
	Classic: []string{"cmtime"},
	Short:   "Measure how long the connection manager takes for each step of a connection",
	Flags: []cli.Flag{
		{Short: 's', Long: "server", Arg: "<host>", Help: "be the client of the server at <host>"},
		{Short: 'b', Long: "bind", Arg: "<host>", Help: "own address"},
		{Short: 'c', Long: "connections", Arg: "<num>", Help: "connections; with -C, to each server (default 100)", Check: clib.DecimalWithin(math.MinInt32, math.MaxInt32)},
		{Short: 'p', Long: "port", Arg: "<port>", Help: "of the server; with -C, TCP port of the controller (default 7471)"},
		{Short: 'r', Long: "retries", Arg: "<num>", Help: "of address and route resolution (default 2)", Check: clib.DecimalWithin(0, math.MaxInt32)},
		{Short: 't', Long: "timeout", Arg: "<ms>", Help: "of address and route resolution: has no effect here", Check: clib.DecimalWithin(0, math.MaxInt32)},
		{Short: 'C', Long: "controller", Arg: "<host>", Help: "where clients and servers of a mesh find each other"},
		{Short: 'B', Long: "interface", Arg: "<netdev>", Help: "mesh: own address, as that of an interface", Values: device.Netdevs},
		{Short: 'L', Long: "listen", Help: "mesh: be a server (default client)"},
		{Short: 'P', Long: "peers", Arg: "<num>", Help: "mesh: clients and servers together (default 2)", Check: clib.DecimalWithin(2, maxPeers)},
		{Short: 'n', Long: "threads", Arg: "<num>", Help: "mesh: goroutines that work on connections (default 1)", Check: clib.DecimalWithin(1, maxThreads)},
		{Short: 'm', Long: "mimic-qp", Arg: "<us>", Help: "mesh: make no QPs, but sleep so long instead", Check: clib.DecimalWithin(0, math.MaxInt32)},
		{Short: 'q', Long: "base-qpn", Arg: "<num>", Help: "mesh: first QPN of the runs without QPs (default 1000)", Check: clib.DecimalWithin(0, 1<<24-1)},
		{Short: 'S', Long: "sockets", Help: "mesh: connect TCP sockets instead, for comparison"},
		{Long: "rate", Help: "print connections per second as well", Ours: true},
		cm.DeviceFlag,
	},
	Forms: []cli.Form{
		{Args: "", Does: "serve clients for ever"},
		{Args: "-s <host>", Does: "measure connections to the server at <host>"},
		{Args: "-C <host> -b <addr> [-L]", Does: "be one end of a mesh, with a table at either end"},
	},
	Usage: cm.Usage(classicUsage),
	More: `Two terminals of one machine:
  PROG
  PROG -s localhost -c 1000 --rate
Each step is done for all connections before the next one begins. The other end may be the C
program: of rdma-core up to 58 without -C, and of 59 and later with it. That of rdma-core 52 to 58 uses
the server's port for TCP too, knows IPv4 only, and as a server has to be given the client's -c. With
-C the first to start is the controller, and all must give the same -P and -c:
  PROG -C 127.0.0.1 -b 127.0.0.1 -L
  PROG -C 127.0.0.1 -b 127.0.0.1
Over iWARP there is no -m and no test without QPs, since a connection belongs to a QP, and the form of
rdma-core 52 to 58 does not serve: the listener has its TCP port.
`,
	Run: run,
}

// flags are the flags of both forms.
type flags struct {
	server      string
	bind        string
	connections int
	port        string
	retries     int
	timeout     bool // -t was given
	rate        bool
	device      string

	mesh       bool // a flag of the newer form was given
	controller string
	netdev     string
	listen     bool
	peers      int
	threads    int
	mimic      bool
	mimicDelay time.Duration
	baseQPN    int
	sockets    bool
}

const (
	defaultConnections = 100
	defaultPort        = "7471"
	defaultRetries     = 2
	defaultBaseQPN     = 1000

	maxPeers   = 1 << 12
	maxThreads = 1 << 10
)

var (
	errTimeout = errors.New("-t: addresses and routes come from the host's tables here, at once; the timeout has no effect")
	errMixed   = errors.New("-s is of the form without controller, and -B, -C, -L, -m, -n, -P, -q and -S are of the form with -C: use one form")
)

func parse(inv *cli.Invocation) (f flags, code int, ok bool) {
	f = flags{connections: defaultConnections, port: defaultPort, retries: defaultRetries, peers: 2, threads: 1, baseQPN: defaultBaseQPN}
	var operands []string
	operands, code, ok = inv.Parse(cli.ExitError, f.set)
	if !ok {
		return f, code, false
	}
	if !f.mesh { // whose -S takes an argument in the C program, which is an operand here
		cm.IgnoreOperands(inv, operands)
	}
	if f.mesh && f.server != "" {
		return f, inv.Fail(errMixed, ""), false
	}
	if f.mesh && (f.controller == "" || f.bind == "" && f.netdev == "" || f.sockets && f.peers > 2) {
		printMeshUsage(inv)
		return f, cli.ExitError, false
	}
	if f.connections < 1 || f.connections > cm.MaxConnections {
		return f, inv.Fail(fmt.Errorf("-c %d: connections are 1 to %d", f.connections, cm.MaxConnections), ""), false
	}
	if f.timeout {
		inv.Explain(errTimeout)
	}
	return f, cli.ExitOK, true
}

// printMeshUsage prints the usage of the newer form.
func printMeshUsage(inv *cli.Invocation) {
	if strings.HasPrefix(inv.Prog, "adverb ") {
		inv.PrintUsage()
		return
	}
	inv.Printf("usage: %s\n%s", inv.Prog, meshUsage)
}

// set takes one flag. It returns false for a value that the C program refuses.
func (f *flags) set(name, arg string) bool {
	f.mesh = f.mesh || slices.Contains(meshFlags, name)
	switch name {
	case "server":
		f.server = arg
	case "bind":
		if f.netdev != "" || f.bind != "" {
			return false
		}
		f.bind = arg
	case "connections":
		f.connections = clib.Atoi(arg)
	case "port":
		f.port = arg
	case "retries":
		f.retries = clib.Atoi(arg)
	case "rate":
		f.rate = true
	case "ib-dev":
		f.device = arg
	case "controller":
		f.controller = arg
	case "interface":
		if f.bind != "" || f.netdev != "" {
			return false
		}
		f.netdev = arg
	case "listen":
		f.listen = true
	case "peers":
		f.peers = clib.Atoi(arg)
	case "threads":
		f.threads = clib.Atoi(arg)
	case "mimic-qp":
		f.mimic, f.mimicDelay = true, time.Duration(clib.Atoi(arg))*time.Microsecond
	case "base-qpn":
		f.baseQPN = clib.Atoi(arg)
	case "sockets":
		f.sockets = true
	case "timeout":
		f.timeout = true
	default:
		cli.Undeclared(name)
	}
	return true
}

func run(inv *cli.Invocation) int {
	f, code, ok := parse(inv)
	switch {
	case !ok:
		return code
	case f.mesh:
		return runMesh(inv, &f)
	case f.server == "":
		return serve(inv, &f)
	}
	return runClient(inv, &f)
}

// interval is when a step began and when it ended, in nanoseconds of a stopwatch. 0 means that it
// has not yet begun or ended.
type interval struct{ start, end int64 }

// took is the time between. ok is false if the step has not ended.
func (v interval) took() (ns int64, ok bool) { return v.end - v.start, v.start != 0 && v.end != 0 }

// stopwatch tells the time since it was made.
type stopwatch struct{ base time.Time }

func newStopwatch() stopwatch { return stopwatch{time.Now()} }

// now is the time in nanoseconds. It is never 0.
func (s stopwatch) now() int64 { return int64(time.Since(s.base)) + 1 }

// perSecond is the rate of n connections in v. It is 0 if nothing was measured.
func perSecond(n int, v interval) float64 {
	ns, ok := v.took()
	if !ok || ns <= 0 {
		return 0
	}
	return float64(n) / (float64(ns) / 1e9)
}

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// cmtime comes in two forms. The older one, of rdma-core up to 56 or so, is a client of a server
// that serves for ever; this is what distributions have. The newer one connects each of several
// clients with each of several servers, which find each other through a controller. Their options
// differ but for a few, so that the options tell which is meant.

const cmtimeUsage = `	[-s server_address]
	[-b bind_address]
	[-c connections]
	[-p port_number]
	[-r retries]
	[-t timeout_ms]
`

const cmtimeMeshUsage = `	-B bind_interface (only one of -B or -b accepted)
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

// cmtimeMeshOptions are those that only the newer form has, by their long names.
var cmtimeMeshOptions = []string{"controller", "interface", "listen", "peers", "threads", "mimic-qp", "base-qpn", "sockets"}

var cmtimeCmd = &command{
	name:    "cmtime",
	classic: "cmtime",
	short:   "Measure how long the connection manager takes for each step of a connection",
	options: []option{
		{short: 's', long: "server", arg: "<host>", help: "be the client of the server at <host>"},
		{short: 'b', long: "bind", arg: "<host>", help: "own address"},
		{short: 'c', long: "connections", arg: "<num>", help: "connections; with -C, to each server (default 100)"},
		{short: 'p', long: "port", arg: "<port>", help: "of the server; with -C, TCP port of the controller (default 7471)"},
		{short: 'r', long: "retries", arg: "<num>", help: "of address and route resolution (default 2)"},
		{short: 't', long: "timeout", arg: "<ms>", help: "of address and route resolution: has no effect here"},
		{short: 'C', long: "controller", arg: "<host>", help: "where clients and servers of a mesh find each other"},
		{short: 'B', long: "interface", arg: "<netdev>", help: "mesh: own address, as that of an interface"},
		{short: 'L', long: "listen", help: "mesh: be a server (default client)"},
		{short: 'P', long: "peers", arg: "<num>", help: "mesh: clients and servers together (default 2)"},
		{short: 'n', long: "threads", arg: "<num>", help: "mesh: goroutines that work on connections (default 1)"},
		{short: 'm', long: "mimic-qp", arg: "<us>", help: "mesh: make no QPs, but sleep so long instead"},
		{short: 'q', long: "base-qpn", arg: "<num>", help: "mesh: first QPN of the runs without QPs (default 1000)"},
		{short: 'S', long: "sockets", help: "mesh: connect TCP sockets instead, for comparison"},
		{long: "rate", help: "print connections per second as well", ours: true},
		cmDeviceOption,
	},
	usage: func(w io.Writer, c *command, prog string) {
		cmUsage(cmtimeUsage,
			"           serve clients for ever",
			"-s <host>  measure connections to the server at <host>",
			"-C <host> -b <addr> [-L]  be one end of a mesh, with a table at either end",
		)(w, c, prog)
	},
	more: `Two terminals of one machine:
  PROG
  PROG -s localhost -c 1000 --rate
Each step is done for all connections before the next one begins. The other end may be the C
program: of rdma-core up to 56 or so without -C, and later ones with it. With -C the first to start is
the controller, and all must give the same -P and -c:
  PROG -C 127.0.0.1 -b 127.0.0.1 -L
  PROG -C 127.0.0.1 -b 127.0.0.1
`,
	run: runCmtime,
}

// cmtimeFlags are the options of both forms.
type cmtimeFlags struct {
	server      string
	bind        string
	connections int
	port        string
	retries     int
	rate        bool
	device      string

	mesh       bool // an option of the newer form was given
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
	cmtimeConnections = 100
	cmtimePort        = "7471"
	cmtimeRetries     = 2
	cmtimeBaseQPN     = 1000

	maxCmtimePeers   = 1 << 12
	maxCmtimeThreads = 1 << 10
)

var (
	errCmtimeTimeout = errors.New("-t: addresses and routes come from the host's tables here, at once; the timeout has no effect")
	errCmtimeMixed   = errors.New("-s is of the form without controller, and -B, -C, -L, -m, -n, -P, -q and -S are of the form with -C: use one form")
)

func parseCmtime(inv *invocation) (f cmtimeFlags, code int, ok bool) {
	f = cmtimeFlags{connections: cmtimeConnections, port: cmtimePort, retries: cmtimeRetries, peers: 2, threads: 1, baseQPN: cmtimeBaseQPN}
	timeout := false
	_, code, ok = inv.parse(exitError, func(name, arg string) bool {
		if name == "timeout" {
			timeout = true
		}
		return f.set(name, arg)
	})
	if !ok {
		return f, code, false
	}
	if f.mesh && f.server != "" {
		return f, inv.fail(errCmtimeMixed, ""), false
	}
	if f.mesh && (f.controller == "" || f.bind == "" && f.netdev == "" || f.sockets && f.peers > 2) {
		inv.printMeshUsage()
		return f, exitError, false
	}
	if f.connections < 1 || f.connections > maxCMConnections {
		return f, inv.fail(fmt.Errorf("-c %d: connections are 1 to %d", f.connections, maxCMConnections), ""), false
	}
	if timeout {
		inv.explain(errCmtimeTimeout)
	}
	return f, exitOK, true
}

// printMeshUsage is the usage of the newer form.
func (inv *invocation) printMeshUsage() {
	if strings.HasPrefix(inv.prog, "adverb ") {
		inv.printUsage()
		return
	}
	inv.printf("usage: %s\n%s", inv.prog, cmtimeMeshUsage)
}

// set takes one option. It is false for a value that the classic program refuses.
func (f *cmtimeFlags) set(name, arg string) bool {
	f.mesh = f.mesh || slices.Contains(cmtimeMeshOptions, name)
	switch name {
	case "server":
		f.server = arg
	case "bind":
		if f.netdev != "" || f.bind != "" {
			return false
		}
		f.bind = arg
	case "connections":
		f.connections = cmAtoi(arg)
	case "port":
		f.port = arg
	case "retries":
		f.retries = cmAtoi(arg)
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
		f.peers = cmAtoi(arg)
		return f.peers >= 2 && f.peers <= maxCmtimePeers
	case "threads":
		f.threads = cmAtoi(arg)
		return f.threads >= 1 && f.threads <= maxCmtimeThreads
	case "mimic-qp":
		f.mimic, f.mimicDelay = true, time.Duration(max(0, cmAtoi(arg)))*time.Microsecond
	case "base-qpn":
		f.baseQPN = cmAtoi(arg)
	case "sockets":
		f.sockets = true
	}
	return true
}

func runCmtime(inv *invocation) int {
	f, code, ok := parseCmtime(inv)
	switch {
	case !ok:
		return code
	case f.mesh:
		return runCmtimeMesh(inv, &f)
	case f.server == "":
		return serveCmtime(inv, &f)
	}
	return runCmtimeClient(inv, &f)
}

// interval is when a step began and when it ended, in nanoseconds of a stopwatch; 0 for not yet.
type interval struct{ start, end int64 }

// took is how long it took. ok is false if it did not come to an end.
func (v interval) took() (ns int64, ok bool) { return v.end - v.start, v.start != 0 && v.end != 0 }

// stopwatch gives the time since it was made.
type stopwatch struct{ base time.Time }

func newStopwatch() stopwatch { return stopwatch{time.Now()} }

// now is never 0.
func (s stopwatch) now() int64 { return int64(time.Since(s.base)) + 1 }

// perSecond is a rate, 0 where nothing was measured.
func perSecond(n int, v interval) float64 {
	ns, ok := v.took()
	if !ok || ns <= 0 {
		return 0
	}
	return float64(n) / (float64(ns) / 1e9)
}

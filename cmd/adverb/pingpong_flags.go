package main

import (
	"fmt"
	"io"
	"math"

	"github.com/adverb-rdma/adverb/verbs"
)

var rcPingpongCmd = &command{
	name:    "rc_pingpong",
	classic: "ibv_rc_pingpong",
	short:   "Bounce messages between two hosts over a reliable connection",
	options: []option{
		{short: 'p', long: "port", arg: "<port>", help: "TCP port for the exchange of addresses (default 18515)"},
		{short: 'd', long: "ib-dev", arg: "<dev>", help: "RDMA device (default first device found)"},
		{short: 'i', long: "ib-port", arg: "<port>", help: "port of the device (default 1)"},
		{short: 's', long: "size", arg: "<size>", help: "bytes in a message (default 4096)"},
		{short: 'm', long: "mtu", arg: "<size>", help: "path MTU (default 1024)"},
		{short: 'r', long: "rx-depth", arg: "<dep>", help: "receives to have posted (default 500)"},
		{short: 'n', long: "iters", arg: "<iters>", help: "messages each way (default 1000)"},
		{short: 'l', long: "sl", arg: "<sl>", help: "service level"},
		{short: 'e', long: "events", help: "sleep until a CQ event (default poll)"},
		{short: 'g', long: "gid-idx", arg: "<gid index>", help: "own GID, by its place in the port's table"},
		{short: 'o', long: "odp", help: "register memory on demand"},
		{short: 'O', long: "iodp", help: "register all memory on demand, implicitly"},
		{short: 'P', long: "prefetch", help: "prefetch memory that is registered on demand"},
		{short: 't', long: "ts", help: "take completion timestamps"},
		{short: 'c', long: "chk", help: "check the data received"},
		{short: 'j', long: "dm", help: "use memory of the device"},
		{short: 'N', long: "new_send", help: "post by the work request builders"},
		{short: 'U', long: "allow-cc-unprotected", help: "allow memory that confidential computing leaves unprotected"},
	},
	usage: func(w io.Writer, c *command, prog string) {
		fmt.Fprintf(w, "Usage:\n")
		fmt.Fprintf(w, "  %s            wait for a client\n", prog)
		fmt.Fprintf(w, "  %s <host>     be the client of the server at <host>\n\n", prog)
		printOptions(w, c)
	},
	more: `Two terminals of one machine, each with a loopback address of its own:
  PROG -d soft_lo@127.0.0.1 -g 0
  PROG -d soft_lo@127.0.0.2 -g 0 127.0.0.1
Without -g an Ethernet port takes its first IPv4 address as GID; the C program does not and
fails, so give -g there. "adverb gids" lists them. The other end may be the C program.
`,
	run: runRCPingpong,
}

// pingpongFlags are the options of the pingpong programs.
type pingpongFlags struct {
	host     string // of the server; "" for a server
	port     int    // TCP
	device   string
	ibPort   int
	size     int64
	mtu      verbs.MTU
	rxDepth  int
	iters    int
	sl       int
	events   bool
	gidIndex int // -1: none given
	odp      bool
	iodp     bool
	prefetch bool
	ts       bool
	check    bool
	dm       bool
	newSend  bool
	cocoOpen bool // allow-cc-unprotected
}

const (
	defaultTCPPort = 18515
	maxTCPPort     = 65535
)

// parsePingpong reads the options. ok is false if the run ends here, with status code.
func parsePingpong(inv *invocation) (f pingpongFlags, code int, ok bool) {
	f = pingpongFlags{port: defaultTCPPort, ibPort: 1, size: 4096, mtu: verbs.MTU1024, rxDepth: 500, iters: 1000, gidIndex: -1}
	g := inv.parser()
	for {
		o, arg, st := g.next()
		if st == optEnd {
			break
		}
		if st == optBad || !f.set(o.long, arg) {
			inv.printUsage()
			return f, exitError, false
		}
		if o.long == "help" {
			inv.printHelp()
			return f, exitOK, false
		}
	}
	switch len(g.operands) {
	case 0:
	case 1:
		f.host = g.operands[0]
	default:
		inv.printUsage()
		return f, exitError, false
	}
	if text := f.conflict(); text != "" {
		inv.errorf("%s\n", text)
		return f, exitError, false
	}
	return f, exitOK, true
}

// set takes one option. It is false for a value which the classic program refuses.
func (f *pingpongFlags) set(name, arg string) bool {
	switch name {
	case "port":
		f.port = optInt(arg)
		return f.port >= 0 && f.port <= maxTCPPort
	case "ib-dev":
		f.device = arg
	case "ib-port":
		f.ibPort = optInt(arg)
		return f.ibPort >= 1
	case "size":
		f.size = max(0, min(strtol(arg), math.MaxUint32))
	case "mtu":
		mtu, ok := verbs.MTUFromBytes(optInt(arg))
		f.mtu = mtu
		return ok
	case "rx-depth":
		f.rxDepth = optInt(arg)
	case "iters":
		f.iters = optInt(arg)
	case "sl":
		f.sl = optInt(arg)
	case "events":
		f.events = true
	case "gid-idx":
		f.gidIndex = optInt(arg)
	case "odp":
		f.odp = true
	case "iodp":
		f.odp, f.iodp = true, true
	case "prefetch":
		f.prefetch = true
	case "ts":
		f.ts = true
	case "chk":
		f.check = true
	case "dm":
		f.dm = true
	case "new_send":
		f.newSend = true
	case "allow-cc-unprotected":
		f.cocoOpen = true
	}
	return true
}

// conflict names options that exclude each other, or is "".
func (f *pingpongFlags) conflict() string {
	switch {
	case f.dm && f.odp:
		return "DM memory region can't be on demand"
	case f.cocoOpen && f.odp:
		return "CoCo unprotected memory cannot be used with ODP"
	case f.cocoOpen && f.dm:
		return "CoCo unprotected memory cannot be used with device memory"
	case f.prefetch && !f.odp:
		return "prefetch is valid only with on-demand memory region"
	}
	return ""
}

package main

import (
	"fmt"
	"math"

	"github.com/adverb-rdma/adverb/verbs"
)

// pingpongFlags are the options of the pingpong programs.
type pingpongFlags struct {
	host     string // of the server; "" for a server
	port     int    // TCP
	device   string
	ibPort   int
	size     int64
	mtu      verbs.MTU
	numQP    int
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
func parsePingpong(inv *invocation, k *pingpongKind) (f pingpongFlags, code int, ok bool) {
	f = pingpongFlags{port: defaultTCPPort, ibPort: 1, size: k.size, mtu: verbs.MTU1024, numQP: k.numQP,
		rxDepth: 500, iters: 1000, gidIndex: -1}
	operands, code, ok := inv.parse(exitError, func(name, arg string) bool { return f.set(name, arg, k) })
	if !ok {
		return f, code, false
	}
	switch len(operands) {
	case 0:
	case 1:
		f.host = operands[0]
	default:
		inv.printUsage()
		return f, exitError, false
	}
	if text := f.conflict(k); text != "" {
		inv.errorf("%s\n", text)
		return f, exitError, false
	}
	return f, exitOK, true
}

// set takes one option. It is false for a value which the classic program refuses.
func (f *pingpongFlags) set(name, arg string, k *pingpongKind) bool {
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
		n := strtol(arg)
		f.size = max(0, min(n, math.MaxUint32))
		return n >= 1 || !k.sizeAtLeastOne
	case "mtu":
		mtu, ok := verbs.MTUFromBytes(optInt(arg))
		f.mtu = mtu
		return ok
	case "num-qp":
		f.numQP = optInt(arg)
		return f.numQP >= 1 // the classic program would wait for ever
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
func (f *pingpongFlags) conflict(k *pingpongKind) string {
	switch {
	case k.srq && f.numQP > f.rxDepth:
		return fmt.Sprintf("rx_depth %d is too small for %d QPs -- must have at least one receive per QP.", f.rxDepth, f.numQP)
	case k.srq && f.numQP >= srqMaxQP:
		return fmt.Sprintf("num_qp %d must be less than %d", f.numQP, srqMaxQP-1)
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

package pingpong

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/verbs"
)

// flags are the flags of the pingpong programs.
type flags struct {
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

	clients   int // of xsrq_pingpong: of a server; 0: one
	asClients int // of xsrq_pingpong: of a client; 0: one
}

const (
	defaultPort = 18515
	maxTCPPort  = 65535
)

// parse reads the flags. If ok is false, then the run ends here with status code.
func parse(inv *cli.Invocation, k *kind) (f flags, code int, ok bool) {
	f = flags{port: defaultPort, ibPort: 1, size: k.size, mtu: verbs.MTU1024, numQP: k.numQP,
		rxDepth: 500, iters: cmp.Or(k.iters, 1000), gidIndex: -1}
	operands, code, ok := inv.Parse(cli.ExitError, func(name, arg string) bool {
		f.set(name, arg)
		return true
	})
	if !ok {
		return f, code, false
	}
	switch len(operands) {
	case 0:
	case 1:
		f.host = operands[0]
	default:
		inv.Explain(fmt.Errorf("%q: one server alone can be named", operands))
		inv.PrintUsage()
		return f, cli.ExitError, false
	}
	if text := f.conflict(k); text != "" {
		inv.Errorf("%s\n", text)
		return f, cli.ExitError, false
	}
	return f, cli.ExitOK, true
}

// checkMTU is the check of -m.
func checkMTU(arg string) error {
	if _, ok := verbs.MTUFromBytes(clib.Int(arg)); !ok {
		return errors.New("that is no path MTU: give 256, 512, 1024, 2048 or 4096")
	}
	return nil
}

// set takes one flag, whose argument has been checked.
func (f *flags) set(name, arg string) {
	switch name {
	case "port":
		f.port = clib.Int(arg)
	case "ib-dev":
		f.device = arg
	case "ib-port":
		f.ibPort = clib.Int(arg)
	case "size":
		f.size = clib.Strtol(arg)
	case "mtu":
		f.mtu, _ = verbs.MTUFromBytes(clib.Int(arg))
	case "num-qp":
		f.numQP = clib.Int(arg)
	case "rx-depth":
		f.rxDepth = clib.Int(arg)
	case "clients":
		f.clients = clib.Int(arg)
	case "as-clients":
		f.asClients = clib.Int(arg)
	case "iters", "num_tests":
		f.iters = clib.Int(arg)
	case "sl":
		f.sl = clib.Int(arg)
	case "events":
		f.events = true
	case "gid-idx":
		f.gidIndex = clib.Int(arg)
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
	default:
		cli.Undeclared(name)
	}
}

// conflict returns the error line for flags that exclude each other, or "".
func (f *flags) conflict(k *kind) string {
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

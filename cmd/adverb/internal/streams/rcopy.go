package streams

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

// Rcopy is the command rcopy.
var Rcopy = &cli.Command{
	Name:    "rcopy",
	Classic: []string{"rcopy"},
	Short:   "Copy files over RDMA",
	Flags: append([]cli.Flag{
		{Short: 'p', Long: "port", Arg: "port_number", Help: "the server's port (default 7427)"},
		{Long: "into", Arg: "dir", Help: "server: where the files go (default: the current directory)", Ours: true, Values: cli.Files},
		{Long: "verify", Help: "client: compare checksums; the server must be an adverb", Ours: true},
		{Long: "progress", Help: "client: say on stderr how far it is", Ours: true},
		cm.PSKFlag,
	}, rcopyLimits.flags()...),
	Forms: []cli.Form{
		{Does: "start a server"},
		{Args: "<source> <server>[:<destination>]", Does: "copy a file, or a directory with all that is in it"},
	},
	Operands: []cli.Values{cli.Files},
	More: "The other end may be rdma-core's rcopy, which takes files into directories that are there. Empty\n" +
		"directories and modification times arrive where the server is an adverb too. A file is written beside\n" +
		"the one that it replaces. Zeros become holes. Files that are left out, such as symbolic links, are\n" +
		"named, and the exit status is 1.\n" +
		"A destination that begins with / is below the server's directory: --into / makes it the root.\n",
	Usage: func(w io.Writer, c *cli.Command, prog string) {
		cli.PrintForms(w, c, prog)
		cli.PrintFlags(w, c)
	},
	Run: runRcopy,
}

// rcopyLimits are the limits of a server unless the user says otherwise.
var rcopyLimits = limits{clients: 256, idle: 2 * time.Minute, drain: drainTime}

type rcopy struct {
	*cli.Invocation
	port, into       string
	verify, progress bool
	security         *rdmacm.Security // or nil
	limits           limits           // of a server

	greeted bool // the server was sent a command
	adverb  bool // it is an adverb
	left    int  // files that a client has left out

	devices []*verbs.Device // of tests; nil is any
	address string          // to listen on; empty is all
}

func runRcopy(inv *cli.Invocation) int {
	r := &rcopy{Invocation: inv, port: "7427", into: ".", limits: rcopyLimits}
	var refused error
	operands, code, ok := inv.Parse(cli.ExitError, func(name, arg string) bool {
		switch name {
		case "port":
			r.port = arg
		case "into":
			r.into = arg
		case "verify":
			r.verify = true
		case "progress":
			r.progress = true
		case "psk":
			r.security, refused = cm.ReadPSK(arg)
		default:
			ok, err := r.limits.set(name, arg)
			if !ok {
				cli.Undeclared(name)
			}
			refused = cmp.Or(err, refused)
		}
		return true
	})
	if !ok {
		return code
	}
	if refused != nil {
		return inv.Fail(refused, "")
	}
	var err error
	switch len(operands) {
	case 0:
		inv.Endless = true
		err = r.serve()
	case 2:
		err = r.copy(operands[0], operands[1])
	default:
		inv.Explain(fmt.Errorf("%q: a source and a server are needed, or neither for a server", operands))
		inv.PrintUsage()
		return cli.ExitError
	}
	return inv.Finish(err, func(err error) int { return inv.Fail(err, "") })
}

// destination cuts SERVER[:DESTINATION]. An IPv6 address stands in brackets if a destination follows.
func destination(operand, source string) (host, path string) {
	if rest, ok := strings.CutPrefix(operand, "["); ok {
		if host, path, ok := strings.Cut(rest, "]"); ok {
			if path = strings.TrimPrefix(path, ":"); path == "" {
				path = source
			}
			return host, path
		}
	}
	if _, err := netip.ParseAddr(operand); err == nil {
		return operand, source
	}
	host, path, _ = strings.Cut(operand, ":")
	if path == "" {
		path = source
	}
	return host, path
}

func (r *rcopy) dial(host string) (net.Conn, error) {
	d := rsocket.Dialer{Devices: r.devices, Config: rsocket.Config{SendBuffer: 1 << 20, Security: r.security}}
	return d.DialContext(r.Ctx, "rsocket", net.JoinHostPort(host, r.port))
}

func (r *rcopy) listen() (net.Listener, error) {
	lc := rsocket.ListenConfig{Devices: r.devices, Config: rsocket.Config{RecvBuffer: 1 << 20, Security: r.security}}
	return lc.Listen(r.Ctx, "rsocket", net.JoinHostPort(r.address, r.port))
}

// errnoError is an errno that the peer has answered. Its number is Linux's.
type errnoError struct {
	what   string
	status uint32
	words  string // of the server, if it is an adverb
}

func (e *errnoError) Error() string {
	if e.words != "" {
		return fmt.Sprintf("%s: the server answers: %s", e.what, e.words)
	}
	name, ok := errnoNames[e.status]
	if !ok {
		name = fmt.Sprintf("error %d", e.status)
	}
	return fmt.Sprintf("%s: the server answers: %s", e.what, name)
}

// The errnos of Linux that servers answer.
const (
	errIO     = 5
	errAccess = 13
	errBusy   = 16
	errExist  = 17
	errIsDir  = 21
	errInval  = 22
	errNoEnt  = 2
	errAgain  = 11
	errNoSpc  = 28
)

var errnoNames = map[uint32]string{
	1: "operation not permitted", errNoEnt: "no such file or directory", errIO: "I/O error", errAgain: "it serves as many clients as it may (--clients): try again later", 12: "out of memory", errAccess: "permission denied",
	errBusy: "another file is open", errExist: "file exists", 20: "not a directory", errIsDir: "is a directory", errInval: "invalid request", errNoSpc: "no space left", 30: "read-only file system",
}

// Package rdmademo has the programs rdma-server and rdma-client, the two ends of the read/write
// demonstration over the connection manager.
package rdmademo

import (
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rwdemo"
	"github.com/adverb-rdma/adverb/rdmacm"
)

// Server is the command rdma-server.
var Server = &cli.Command{
	Name:    "rdma-server",
	Classic: []string{"rdma-server"},
	Short:   "Exchange texts with clients by RDMA READ or WRITE, and show the steps",
	Flags: []cli.Flag{
		{Long: "once", Help: "serve one client, and end with its success or failure", Ours: true},
		cm.DeviceFlag,
		cm.PSKFlag,
	},
	Operands: []cli.Values{modes},
	Forms:    []cli.Form{{Args: "<mode> [<port>]"}},
	Usage: func(w io.Writer, c *cli.Command, prog string) {
		cli.UsageLine(w, c, prog)
		fmt.Fprint(w, modesText)
		fmt.Fprintf(w, "  Without <port> a free one is taken. The first line says which.\n")
	},
	More: `It serves clients one after the other or at once until Ctrl-C. A client that fails is reported, and the
server goes on with the others, where the C program ends.

` + steps,
	Run: serverMain,
}

// Client is the command rdma-client.
var Client = &cli.Command{
	Name:     "rdma-client",
	Classic:  []string{"rdma-client"},
	Short:    "Exchange texts with rdma-server by RDMA READ or WRITE, and show the steps",
	Flags:    []cli.Flag{cm.DeviceFlag, cm.PSKFlag},
	Operands: []cli.Values{modes},
	Forms:    []cli.Form{{Args: "<mode> <server-address> <server-port>"}},
	Usage: func(w io.Writer, c *cli.Command, prog string) {
		cli.UsageLine(w, c, prog)
		fmt.Fprint(w, modesText)
	},
	More: steps,
	Run:  clientMain,
}

// modes are the values of the first operand.
var modes = cli.OneOf(string(rwdemo.Read), string(rwdemo.Write))

const modesText = "  mode = \"read\", \"write\"; the same at both ends\n"

// steps is the lesson in the help of both programs.
const steps = `What happens: each end registers two regions, "local", from or to which its own operation goes, and
"remote", which it opens to the peer's operation. To reach the peer's remote region an end must know
two numbers, its address and its R_Key. So each end SENDs them to the other first:

  client                                      server
  SEND MSG_MR: my remote region        --->
                                       <---   SEND MSG_MR: my remote region
  RDMA WRITE (or READ), and at once
  SEND MSG_DONE                        <-->   the same, of its own
  print the text, disconnect                  print the text, disconnect

Each end counts. Its two counters decide what it does next:

  send_state  completions of its own: 1 MSG_MR is sent, 2 READ or WRITE is done, 3 MSG_DONE is sent
  recv_state  messages from the peer: 1 its MSG_MR is here, 2 its MSG_DONE is here

  send_state >= 1 and recv_state >= 1   both know both regions: post READ or WRITE, then MSG_DONE
  send_state == 3 and recv_state == 2   both are done: print, and disconnect

A receive must be posted before its message comes. The first is posted before the ends connect, the
second when MSG_MR has come. There is no third message.

Why MSG_DONE: a WRITE or READ takes nothing from the peer's receive queue, and it completes only at the
end that posted it. The end whose memory it was learns nothing. If that end left now, it would pull
its region away from under the operation. MSG_DONE tells it. MSG_DONE need not wait for the
operation's completion: work requests of one queue take effect at the peer in their order. So when
MSG_DONE comes, the WRITE before it is in memory. In read mode the READ was at least answered.

In write mode the text printed is in the remote region, where the peer wrote it. In read mode it is in
the local region. A region is opened for one kind of access, so two ends of different modes refuse
each other: remote access error. The other end may be the C program.
`

// demo is a run of rdma-server or rdma-client.
type demo struct {
	*cli.Invocation
	mode   rwdemo.Mode
	device string
	once   bool
	port   uint16
	psk    string // file, or ""
	ch     *rdmacm.EventChannel

	security *rdmacm.Security // or nil
}

// The C programs' lines about failed calls. They quote the call.
const (
	callFailed = "error: %s failed (returned non-zero).\n"
	callNull   = "error: %s failed (returned zero/null).\n"
)

// die prints the C programs' line about a failure, and its cause.
func (d *demo) die(cause error, format string, args ...any) error {
	d.Errorf(format, args...)
	d.Explain(cause)
	return cli.ErrReported
}

// failed reports a failed call.
func (d *demo) failed(cause error, call string) error {
	return d.die(cause, callFailed, call)
}

// play reads the flags, and runs body with the operands that follow the mode. Their number must be
// in counts.
func play(inv *cli.Invocation, usage string, body func(d *demo, f *cm.Feed, operands []string) error, counts ...int) int {
	d := &demo{Invocation: inv.LockOutput()}
	operands, code, ok := d.parse(usage)
	if !ok {
		return code
	}
	if len(operands) == 0 || !slices.Contains(counts, len(operands)-1) {
		return d.wrongUsage(usage)
	}
	if d.mode = rwdemo.Mode(operands[0]); !d.mode.Valid() {
		return d.wrongUsage(usage)
	}
	if d.psk != "" {
		var err error
		if d.security, err = cm.ReadPSK(d.psk); err != nil {
			d.Explain(err)
			return cli.ExitError
		}
	}
	newChannel, done, ok := cm.Open(d.Invocation, d.device)
	if !ok {
		d.Errorf(callNull, "ec = rdma_create_event_channel()")
		return cli.ExitError
	}
	defer done()
	d.ch = newChannel()
	err := cm.RunWithFeed(d.Invocation, d.ch, func(f *cm.Feed) error { return body(d, f, operands[1:]) })
	return d.Finish(err, func(err error) int { return d.ExplainUnlessReported(err, cli.ExitError) })
}

func (d *demo) parse(usage string) (operands []string, code int, ok bool) {
	g := d.Getopt()
	if d.ByClassicName {
		g.Stderr = io.Discard // the C programs take a flag for one operand too many
	}
	for {
		o, arg, state := g.Next()
		switch {
		case state == cli.GetoptEnd:
			return g.Operands, cli.ExitOK, true
		case state != cli.GetoptFlag:
			return nil, d.wrongUsage(usage), false
		}
		switch o.Long {
		case "help":
			d.PrintHelp()
			return nil, cli.ExitOK, false
		case "once":
			d.once = true
		case "psk":
			d.psk = arg
		case "ib-dev":
			d.device = arg
		default:
			cli.Undeclared(o.Long)
		}
	}
}

func (d *demo) wrongUsage(usage string) int {
	d.Errorf("%s", strings.ReplaceAll(usage, "PROG", d.Prog))
	return cli.ExitError
}

func serverMain(inv *cli.Invocation) int {
	return play(inv, "usage: PROG <mode>\n  mode = \"read\", \"write\"\n", func(d *demo, f *cm.Feed, operands []string) error {
		if len(operands) == 1 {
			port, err := strconv.ParseUint(operands[0], 10, 16)
			if err != nil {
				d.wrongUsage("usage: PROG <mode> [<port>]\n")
				return fmt.Errorf("port %q: a number up to %d, or 0 for one that is free", operands[0], math.MaxUint16)
			}
			d.port = uint16(port)
		}
		return d.serve(f)
	}, 0, 1)
}

func clientMain(inv *cli.Invocation) int {
	return play(inv, "usage: PROG <mode> <server-address> <server-port>\n  mode = \"read\", \"write\"\n", func(d *demo, f *cm.Feed, operands []string) error {
		addr, err := cm.Lookup(d.Ctx, operands[0], false, netip.Addr{})
		var port uint16
		if err == nil {
			port, err = cm.Port(d.Ctx, operands[1])
		}
		if err != nil {
			return d.failed(err, "getaddrinfo(argv[2], argv[3], NULL, &addr)")
		}
		return d.connect(f, netip.AddrPortFrom(addr, port))
	}, 2)
}

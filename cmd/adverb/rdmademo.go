package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/adverb-rdma/adverb/rdmacm"
)

var rdmaServerCmd = &command{
	name:    "rdma-server",
	classic: "rdma-server",
	short:   "Exchange texts with clients by RDMA READ or WRITE, and show the steps",
	options: []option{
		{long: "once", help: "serve one client, and end with its success or failure", ours: true},
		rdmaDemoDeviceOption,
	},
	usage: func(w io.Writer, c *command, prog string) {
		fmt.Fprintf(w, "Usage: %s <mode> [<port>]\n  mode = \"read\", \"write\"; the same at both ends\n", prog)
		fmt.Fprintf(w, "  Without <port> a free one is taken. The first line says which.\n")
	},
	more: `It serves clients one after the other or at once until Ctrl-C. A client that fails is reported, and the
others are served on, where the C program ends.

` + rdmaDemoMore,
	run: runRDMAServer,
}

var rdmaClientCmd = &command{
	name:    "rdma-client",
	classic: "rdma-client",
	short:   "Exchange texts with rdma-server by RDMA READ or WRITE, and show the steps",
	options: []option{rdmaDemoDeviceOption},
	usage: func(w io.Writer, c *command, prog string) {
		fmt.Fprintf(w, "Usage: %s <mode> <server-address> <server-port>\n  mode = \"read\", \"write\"; the same at both ends\n", prog)
	},
	more: rdmaDemoMore,
	run:  runRDMAClient,
}

var rdmaDemoDeviceOption = cmDeviceOption

const rdmaDemoMore = `What happens. Each end registers two regions: "local", from or to which its own operation goes, and
"remote", which it opens to the peer's. To reach the peer's remote region an end must know two
numbers, its address and its R_Key, and so each SENDs them to the other first:

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
  send_state == 3 and recv_state == 2   both are through: print, and disconnect

A receive must be posted before its message comes. The first is posted before the ends connect, the
second when MSG_MR has come; a third message there is not.

Why MSG_DONE: a WRITE or READ takes nothing from the peer's receive queue and completes at the end
that posted it. Whose memory it was learns nothing, and if it left now it would pull its region away from
under the operation. MSG_DONE is the news. It need not wait for the operation's completion: work
requests of one queue take effect at the peer in their order, so when MSG_DONE comes, the WRITE before
it is in memory. In read mode the READ was at least answered.

In write mode the text printed is in the remote region, where the peer wrote it; in read mode in the
local one. A region is opened for one kind of access, so two ends of different modes refuse each
other: remote access error. The other end may be the C program.
`

// rdmaDemo is a run of rdma-server or rdma-client.
type rdmaDemo struct {
	*invocation
	mode   rdmaDemoMode
	device string
	once   bool
	port   uint16
	ch     *rdmacm.EventChannel
}

// rdmaDemoMode is what the ends do to each other's memory.
type rdmaDemoMode string

const (
	rdmaDemoRead  rdmaDemoMode = "read"
	rdmaDemoWrite rdmaDemoMode = "write"
)

// Lines of the C programs about failed calls quote them.
const (
	rdmaDemoCallFailed = "error: %s failed (returned non-zero).\n"
	rdmaDemoCallNull   = "error: %s failed (returned zero/null).\n"
)

// die reports a failure by the C programs' line for it.
func (d *rdmaDemo) die(cause error, format string, args ...any) error {
	d.errorf(format, args...)
	d.explain(cause)
	return errReported
}

// failed reports a failed call.
func (d *rdmaDemo) failed(cause error, call string) error {
	return d.die(cause, rdmaDemoCallFailed, call)
}

// rdmaDemoMain reads the options, and runs body with the operands that follow the mode. Their number
// must be in counts.
func rdmaDemoMain(inv *invocation, usage string, body func(d *rdmaDemo, f *feed, operands []string) error, counts ...int) int {
	d := &rdmaDemo{invocation: inv.lockOutput()}
	operands, code, ok := d.parseOptions(usage)
	if !ok {
		return code
	}
	wrong := len(operands) == 0 || !slices.Contains(counts, len(operands)-1)
	if !wrong {
		d.mode = rdmaDemoMode(operands[0])
	}
	if wrong || d.mode != rdmaDemoRead && d.mode != rdmaDemoWrite {
		return d.wrongUsage(usage)
	}
	newChannel, done, ok := d.cmOpen(d.device)
	if !ok {
		d.errorf(rdmaDemoCallNull, "ec = rdma_create_event_channel()")
		return exitError
	}
	defer done()
	d.ch = newChannel()
	ctx, cancel := context.WithCancel(inv.ctx)
	f := newFeed(ctx)
	var router sync.WaitGroup
	router.Go(func() { routeEvents(ctx, d.ch) })
	err := body(d, f, operands[1:])
	cancel()
	router.Wait()
	f.drain()
	d.explain(d.ch.Close())
	switch {
	case err == nil:
		return exitOK
	case inv.ctx.Err() != nil:
		d.explain(errInterrupted)
		return statusInterrupted
	case !errors.Is(err, errReported):
		d.explain(err)
	}
	return exitError
}

func (d *rdmaDemo) parseOptions(usage string) (operands []string, code int, ok bool) {
	g := d.parser()
	if d.isName {
		g.stderr = io.Discard // to the C programs it is one operand too many
	}
	for {
		o, arg, st := g.next()
		switch {
		case st == optEnd:
			return g.operands, exitOK, true
		case st != optFound:
			return nil, d.wrongUsage(usage), false
		case o.long == "help":
			d.printHelp()
			return nil, exitOK, false
		case o.long == "once":
			d.once = true
		case o.long == "ib-dev":
			d.device = arg
		}
	}
}

func (d *rdmaDemo) wrongUsage(usage string) int {
	d.errorf("%s", strings.ReplaceAll(usage, "PROG", d.prog))
	return exitError
}

func runRDMAServer(inv *invocation) int {
	return rdmaDemoMain(inv, "usage: PROG <mode>\n  mode = \"read\", \"write\"\n", func(d *rdmaDemo, f *feed, operands []string) error {
		if len(operands) == 1 {
			port, err := strconv.ParseUint(operands[0], 10, 16)
			if err != nil {
				d.wrongUsage("usage: PROG <mode> [<port>]\n")
				return fmt.Errorf("port %q: a number up to %d, or 0 for one that is free", operands[0], maxTCPPort)
			}
			d.port = uint16(port)
		}
		return d.serve(f)
	}, 0, 1)
}

func runRDMAClient(inv *invocation) int {
	return rdmaDemoMain(inv, "usage: PROG <mode> <server-address> <server-port>\n  mode = \"read\", \"write\"\n", func(d *rdmaDemo, f *feed, operands []string) error {
		addr, err := cmLookup(d.ctx, operands[0], false, netip.Addr{})
		var port uint16
		if err == nil {
			port, err = cmPort(d.ctx, operands[1])
		}
		if err != nil {
			return d.failed(err, "getaddrinfo(argv[2], argv[3], NULL, &addr)")
		}
		return d.connect(f, netip.AddrPortFrom(addr, port))
	}, 2)
}

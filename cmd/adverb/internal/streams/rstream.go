package streams

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/rdmacm"
)

// What the usage of both C programs begins with, and how it goes on in each.
const (
	streamUsage = `	[-s server_address]
	[-b bind_address]
	[-f address_format]
	    name, ip, ipv6, or gid
	[-B buffer_size]
	[-i inline_size]
	[-I iterations]
	[-C transfer_count]
	[-S transfer_size or all]
	[-p port_number]
`
	rstreamUsage = streamUsage + `	[-k keepalive_time]
	[-T test_option]
	    s|sockets - use standard tcp/ip sockets
	    a|async - asynchronous operation (use poll)
	    b|blocking - use blocking calls
	    f|fork - fork server processing
	    n|nonblocking - use nonblocking calls
	    r|resolve - use rdma cm to resolve address
	    v|verify - verify data
`
	riostreamUsage = streamUsage + `	[-T test_option]
	    a|async - asynchronous operation (use poll)
	    b|blocking - use blocking calls
	    n|nonblocking - use nonblocking calls
	    v|verify - verify data
`
)

const (
	defaultStreamPort = "7471"
	defaultTransfer   = 1000 // bytes, and transfers of an iteration
	maxTransfer       = 1 << 30

	// defaultStreamBuffer is that of the C programs.
	defaultStreamBuffer = 1 << 19
	maxStreamBuffer     = 1 << 29
)

// Rstream is the command rstream.
var Rstream = &cli.Command{
	Name:    "rstream",
	Classic: []string{"rstream"},
	Short:   "Measure a stream of bytes over RDMA",
	Flags: streamFlags(cli.Flag{Short: 'k', Long: "keepalive", Arg: "<s>", Help: "ask a peer that is silent for so many seconds whether it is there", Check: clib.DecimalWithin(0, math.MaxInt32)},
		rstreamOptions),
	Forms: streamForms,
	Usage: cm.Usage(rstreamUsage),
	More: streamMore + "Of -T, v compares the data, s and f are TCP, for comparison, without a process of its own, and a, b, n\n" +
		"and r make no difference: all calls wait, and the connection manager finds every address.\n",
	Run: func(inv *cli.Invocation) int { return runStream(inv, false) },
}

// Riostream is the command riostream.
var Riostream = &cli.Command{
	Name:    "riostream",
	Classic: []string{"riostream"},
	Short:   "Measure writes into memory that the peer of a stream has mapped",
	Flags:   streamFlags(cli.Flag{}, riostreamOptions),
	Forms:   streamForms,
	Usage:   cm.Usage(riostreamUsage),
	More: streamMore + "Each end maps memory, and the other writes there. An end that waits looks at the memory all the time.\n" +
		"Of -T, v compares the last transfer of an iteration, and a, b and n make no difference: all calls wait.\n",
	Run: func(inv *cli.Invocation) int { return runStream(inv, true) },
}

var streamForms = []cli.Form{
	{Args: "", Does: "serve one client"},
	{Args: "-s <host>", Does: "be the client of the server at <host>"},
}

const streamMore = `Two terminals of one machine:
  PROG -T v
  PROG -T v -s localhost
An iteration is -C transfers from the client to the server, and as many back. Without -I, -C and a
number for -S, a table is measured: latency over one connection, and then bandwidth over another.
The other end may be rdma-core's program. Both must have the same -I, -C, -S and -T v.
`

// streamFlags are the flags of both programs. keepalive is of one of them.
func streamFlags(keepalive cli.Flag, options []testOption) []cli.Flag {
	var names []string
	for _, o := range options {
		names = append(names, o.name)
	}
	dev := cm.DeviceFlag
	dev.Short = 'd' // which the C programs have no flag for
	list := []cli.Flag{
		{Short: 's', Long: "server", Arg: "<host>", Help: "be the client of the server at <host>"},
		{Short: 'b', Long: "bind", Arg: "<host>", Help: "own address (default any)"},
		{Short: 'f', Long: "format", Arg: "<format>", Help: "of <host>: name (default), ip or ipv6", Values: cli.OneOf("name", "ip", "ipv6"), Check: checkFormat},
		{Short: 'B', Long: "buffer", Arg: "<bytes>", Help: "half of each ring, as SO_SNDBUF has it (default 524288)", Check: clib.DecimalWithin(0, maxStreamBuffer)},
		{Short: 'i', Long: "inline", Arg: "<bytes>", Help: "no effect: the device chooses what it sends inline", Check: clib.DecimalWithin(0, math.MaxInt32)},
		{Short: 'I', Long: "iterations", Arg: "<num>", Help: "iterations (default 1)", Check: clib.DecimalWithin(1, math.MaxInt32)},
		{Short: 'C', Long: "count", Arg: "<num>", Help: "transfers each way in an iteration (default 1000)", Check: clib.DecimalWithin(1, math.MaxInt32)},
		{Short: 'S', Long: "size", Arg: "<bytes>", Help: "of a transfer (default 1000); all: more sizes in the table", Check: checkSize},
		{Short: 'p', Long: "port", Arg: "<port>", Help: "the server's port, or its name (default 7471)"},
	}
	if keepalive.Long != "" {
		list = append(list, keepalive)
	}
	return append(list,
		cli.Flag{Short: 'T', Long: "test", Arg: "<option>", Help: "how to test, by its name or its first letter; may be repeated", Values: optionValues(options), Check: func(s string) error {
			if _, ok := findOption(options, s); !ok {
				return fmt.Errorf("no such option: it is one of %q, or the first letter of one", names)
			}
			return nil
		}}, dev, cm.PSKFlag)
}

// testOption is a value of -T.
type testOption struct {
	name   string
	prefix string // which is enough, in any case
	help   string
}

func option(name, prefix, help string) testOption { return testOption{name, prefix, help} }

var (
	riostreamOptions = []testOption{
		option("async", "async", "wait by poll: no difference here"),
		option("blocking", "block", "calls wait: no difference here"),
		option("nonblocking", "nonblock", "calls do not wait: no difference here"),
		option("verify", "verify", "compare the data"),
	}
	rstreamOptions = append([]testOption{
		option("sockets", "socket", "use TCP"),
		option("fork", "fork", "use TCP"),
		option("resolve", "resolve", "find addresses by the connection manager: no difference here"),
	}, riostreamOptions...)
)

func optionValues(options []testOption) cli.Values {
	return cli.Values{List: func() (list []cli.Value) {
		for _, o := range options {
			list = append(list, cli.Value{Text: o.name, Help: o.help})
		}
		return list
	}}
}

// findOption returns the option that a value of -T means: a letter, or a text that begins with the option's name.
func findOption(options []testOption, s string) (name string, ok bool) {
	for _, o := range options {
		if s == o.name[:1] || clib.HasPrefix(s, o.prefix) {
			return o.name, true
		}
	}
	return "", false
}

func checkFormat(s string) error {
	if clib.HasPrefix(s, "gid") {
		return errors.New("addresses of streams are IP addresses here, and no GIDs: give the IP address that belongs to the GID")
	}
	return nil
}

func checkSize(s string) error {
	if clib.HasPrefix(s, "all") {
		return nil
	}
	if err := clib.DecimalWithin(1, maxTransfer)(s); err != nil {
		return fmt.Errorf("%w bytes, or all", err)
	}
	return nil
}

// streamOptions are the flags of a run.
type streamOptions struct {
	mapped bool // riostream

	server, bind, port, device string
	numeric                    bool // addresses, no names
	buffer                     int  // bytes; a ring has twice as many
	custom, all                bool
	iterations, count, size    int
	keepAlive                  time.Duration // or 0
	sockets, verify            bool
	security                   *rdmacm.Security // or nil
}

var (
	errSocketsPSK    = errors.New("--psk and -T sockets exclude each other: TCP has no packet security here")
	errSocketsDevice = errors.New("-d and -T sockets exclude each other: TCP needs no RDMA device")
)

// parse reads the flags. If ok is false, the run ends here with status code.
func (o *streamOptions) parse(inv *cli.Invocation) (code int, ok bool) {
	o.port, o.buffer = defaultStreamPort, defaultStreamBuffer
	o.iterations, o.count, o.size = 1, defaultTransfer, defaultTransfer
	var refused error
	operands, code, ok := inv.Parse(cli.ExitError, func(name, arg string) bool {
		switch name {
		case "server":
			o.server = arg
		case "bind":
			o.bind = arg
		case "format":
			switch {
			case clib.HasPrefix(arg, "ip"):
				o.numeric = true
			case !clib.HasPrefix(arg, "name"):
				inv.Errorf("Warning: unknown address format\n")
			}
		case "buffer":
			if n := clib.Atoi(arg); n > 0 {
				o.buffer = n
			}
		case "inline": // see its help
		case "iterations":
			o.custom, o.iterations = true, clib.Atoi(arg)
		case "count":
			o.custom, o.count = true, clib.Atoi(arg)
		case "size":
			if o.all = o.all || clib.HasPrefix(arg, "all"); !clib.HasPrefix(arg, "all") {
				o.custom, o.size = true, clib.Atoi(arg)
			}
		case "port":
			o.port = arg
		case "keepalive":
			o.keepAlive = time.Duration(clib.Atoi(arg)) * time.Second
		case "test":
			switch option, _ := findOption(rstreamOptions, arg); option {
			case "sockets", "fork":
				o.sockets = true
			case "verify":
				o.verify = true
			}
		case "ib-dev":
			o.device = arg
		case "psk":
			o.security, refused = cm.ReadPSK(arg)
		default:
			cli.Undeclared(name)
		}
		return true
	})
	switch {
	case !ok:
		return code, false
	case refused != nil:
		return inv.Fail(refused, ""), false
	case o.sockets && o.security != nil:
		return inv.Fail(errSocketsPSK, ""), false
	case o.sockets && o.device != "":
		return inv.Fail(errSocketsDevice, ""), false
	}
	cm.IgnoreOperands(inv, operands)
	return cli.ExitOK, true
}

func runStream(inv *cli.Invocation, mapped bool) int {
	s := &streamer{Invocation: inv, streamOptions: streamOptions{mapped: mapped}}
	if code, ok := s.parse(inv); !ok {
		return code
	}
	switch {
	case s.device != "":
		dev := device.Open(inv, s.device)
		if dev == nil {
			return cm.ExitStatus(cm.StatusFailed)
		}
		defer func() { inv.Explain(dev.Close()) }()
		s.devices = append(s.devices, dev)
	case !s.sockets:
		if _, err := device.First(); err != nil {
			inv.Fail(err, "No RDMA devices were detected\n")
			return cm.ExitStatus(cm.StatusFailed)
		}
	}
	return inv.Finish(s.run(), func(err error) int {
		return inv.ExplainUnlessReported(err, cm.ExitStatus(cm.StatusOf(err)))
	})
}

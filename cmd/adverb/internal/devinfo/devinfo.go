package devinfo

import (
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/verbs"
)

// Devinfo is the command devinfo.
var Devinfo = &cli.Command{
	Name:    "devinfo",
	Classic: []string{"ibv_devinfo"},
	Short:   "Print the attributes of RDMA devices",
	Flags: []cli.Flag{
		{Short: 'd', Long: "ib-dev", Arg: "<dev>", Help: "the device to query (default all devices)", Values: device.Names},
		{Short: 'i', Long: "ib-port", Arg: "<port>", Help: "the port to query (default all ports)"},
		{Short: 'l', Long: "list", Help: "only list the names of the devices"},
		{Short: 'v', Long: "verbose", Help: "print every attribute and the GID table"},
		{Long: "report", Help: "print the host's RDMA software too, for whoever is to help: versions, drivers, limits", Ours: true},
		redactFlag,
		cli.JSONFlag,
	},
	Forms: []cli.Form{{Does: "print the attributes of RDMA devices"}},
	Usage: func(w io.Writer, c *cli.Command, prog string) {
		fmt.Fprintf(w, "Usage: %s             %s\n\n", prog, c.Forms[0].Does)
		cli.PrintFlags(w, c)
	},
	More: "A software device that has one address only is named after interface and address:\n" +
		"  PROG -v -d soft_lo@127.0.0.2\n",
	Run: runDevinfo,
}

// Exit statuses of the C program. The program combines those of several devices by a bitwise OR.
const (
	statusUsage       = 255
	statusNoDevice    = 255
	statusOpenFailed  = 1
	statusQueryFailed = 2
	statusCloseFailed = 3
	statusNoPort      = 4
)

type flags struct {
	device        string
	port          int // 0 for all
	verbose, json bool
	host, redact  bool // --report, --redact
}

// redactFlag leaves the addresses of devices out of a report.
var redactFlag = cli.Flag{Long: "redact", Help: "print numbers in place of GUIDs and GIDs", Ours: true}

// hostJSON is the output of --report with --json.
type hostJSON struct {
	Host    hostFacts    `json:"host"`
	Devices []reportJSON `json:"devices"`
}

func runDevinfo(inv *cli.Invocation) int {
	var f flags
	g := inv.Getopt()
	for {
		o, arg, state := g.Next()
		if state == cli.GetoptEnd {
			break
		}
		if state == cli.GetoptBad {
			inv.PrintUsage()
			return statusUsage
		}
		switch o.Long {
		case "ib-dev":
			f.device = arg
		case "ib-port":
			if err := clib.Within(1, math.MaxUint8)(arg); err != nil { // no Check, which would end with another status than C's
				inv.Explain(fmt.Errorf("read --ib-port=%s: %w", arg, err))
				inv.PrintUsage()
				return cli.ExitError
			}
			f.port = clib.Int(arg)
		case "list": // acts at once, and ignores the flags behind it
			return listHCAs(inv)
		case "verbose":
			f.verbose = true
		case "json":
			f.json = true
		case "report":
			f.host, f.verbose = true, true
		case "redact":
			f.redact = true
		case "help":
			inv.PrintHelp()
			return cli.ExitOK
		default:
			cli.Undeclared(o.Long)
		}
	}
	names, code := deviceNames(inv, f.device)
	if code != cli.ExitOK {
		return code
	}
	var host hostFacts
	if f.host {
		host = factsOfHost()
		if !f.json {
			host.print(inv.Stdout)
		}
	}
	reports := []*report{}
	for _, name := range names {
		r, c := query(inv, name, f)
		code |= c
		if r == nil {
			continue
		}
		reports = append(reports, r)
		if f.redact {
			r.redact()
		}
		if f.host {
			r.card = factsOfCard(r.info.KernelName)
		}
		if !f.json {
			if f.host {
				inv.Printf("\n")
				r.card.print(inv.Stdout)
			}
			r.print(inv.Stdout, f.verbose)
		}
	}
	switch {
	case f.json && f.host:
		code |= inv.PrintJSON(hostJSON{host, newReportsJSON(reports)})
	case f.json:
		code |= inv.PrintJSON(newReportsJSON(reports))
	}
	return code
}

func listHCAs(inv *cli.Invocation) int {
	list, ok := device.List(inv)
	if !ok {
		return statusNoDevice
	}
	s := "s"
	if len(list) == 1 {
		s = ""
	}
	inv.Printf("%d HCA%s found:\n", len(list), s)
	for _, d := range list {
		inv.Printf("\t%s\n", d.Name)
	}
	inv.Printf("\n")
	return cli.ExitOK
}

// deviceNames returns the devices to report on.
func deviceNames(inv *cli.Invocation, only string) ([]string, int) {
	if only != "" {
		return []string{only}, cli.ExitOK
	}
	list, ok := device.List(inv)
	if !ok {
		return nil, statusNoDevice
	}
	if len(list) == 0 {
		inv.Fail(device.ErrNone, "No IB devices found\n")
		return nil, statusNoDevice
	}
	var names []string
	for _, d := range list {
		names = append(names, d.Name)
	}
	return names, cli.ExitOK
}

// report is the printed data of a device.
type report struct {
	card  cardFacts // with --report
	board string    // of a card, as its driver tells it
	info  verbs.DeviceInfo
	attr  verbs.DeviceAttr
	ports []portinfo
}

type portinfo struct {
	number int
	attr   verbs.PortAttr
	gids   []verbs.GIDEntry
}

// query asks a device for all printed data. It returns nil if nothing is to be printed. If a query fails halfway,
// then it returns the data from before the failure.
func query(inv *cli.Invocation, name string, f flags) (r *report, code int) {
	dev, err := verbs.Open(name)
	if errors.Is(err, verbs.ErrNotFound) {
		inv.Fail(err, "IB device '%s' wasn't found\n", name)
		device.ExplainUnserved(inv)
		return nil, statusNoDevice
	}
	if err != nil {
		inv.Fail(err, "Failed to open device\n")
		return nil, statusOpenFailed
	}
	defer func() {
		if err := dev.Close(); err != nil {
			inv.Fail(err, "Failed to close device\n")
			code |= statusCloseFailed
		}
	}()
	r = &report{info: dev.Info()}
	r.board = boardOf(r.info.KernelName)
	if r.attr, err = dev.Query(); err != nil {
		inv.Fail(err, "Failed to query device props\n")
		return nil, statusQueryFailed
	}
	if f.port > r.attr.PhysPortCnt {
		inv.Fail(fmt.Errorf("%s has %d port(s), counted from 1", name, r.attr.PhysPortCnt), "Invalid port requested for device\n")
		return nil, statusNoPort
	}
	first, last := 1, r.attr.PhysPortCnt
	if f.port > 0 {
		first, last = f.port, f.port
	}
	for n := first; n <= last; n++ {
		p := portinfo{number: n}
		if p.attr, err = dev.QueryPort(n); err != nil {
			inv.Fail(err, "Failed to query port %d props\n", n)
			return r, statusOf(err)
		}
		if f.verbose || f.json {
			if p.gids, err = dev.GIDs(n); err != nil {
				inv.Fail(err, "Failed to query gid to port %d, index %d\n", n, len(p.gids))
				return r, statusOf(err)
			}
		}
		r.ports = append(r.ports, p)
	}
	return r, cli.ExitOK
}

// statusOf is the exit status of a failed query: the errno, if err has one.
func statusOf(err error) int {
	if e, ok := errors.AsType[syscall.Errno](err); ok && e > 0 && e <= 255 {
		return int(e)
	}
	return cli.ExitError
}

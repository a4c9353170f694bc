package main

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/adverb-rdma/adverb/verbs"
)

var devinfoCmd = &command{
	name:    "devinfo",
	classic: "ibv_devinfo",
	short:   "Print the attributes of RDMA devices",
	options: []option{
		{short: 'd', long: "ib-dev", arg: "<dev>", help: "the device to query (default all devices)"},
		{short: 'i', long: "ib-port", arg: "<port>", help: "the port to query (default all ports)"},
		{short: 'l', long: "list", help: "only list the names of the devices"},
		{short: 'v', long: "verbose", help: "print every attribute and the GID table"},
		jsonOption,
	},
	usage: func(w io.Writer, c *command, prog string) {
		fmt.Fprintf(w, "Usage: %s             print the attributes of RDMA devices\n\n", prog)
		printOptions(w, c)
	},
	more: "A software device of one address only is called by interface and address:\n" +
		"  PROG -v -d soft_lo@127.0.0.2\n",
	run: runDevinfo,
}

// Exit statuses of the classic program. Those of several devices are or-ed.
const (
	devinfoUsage       = 255
	devinfoNoDevice    = 255
	devinfoOpenFailed  = 1
	devinfoQueryFailed = 2
	devinfoCloseFailed = 3
	devinfoNoPort      = 4
)

type devinfoFlags struct {
	device        string
	port          int // 0 for all
	verbose, json bool
}

func runDevinfo(inv *invocation) int {
	var f devinfoFlags
	g := inv.parser()
	for {
		o, arg, st := g.next()
		if st == optEnd {
			break
		}
		if st == optBad {
			inv.printUsage()
			return devinfoUsage
		}
		switch o.long {
		case "ib-dev":
			f.device = arg
		case "ib-port":
			if f.port = optInt(arg); f.port <= 0 {
				inv.printUsage()
				return exitError
			}
		case "list": // at once: what follows it is not looked at
			return inv.listHCAs()
		case "verbose":
			f.verbose = true
		case "json":
			f.json = true
		case "help":
			inv.printHelp()
			return exitOK
		}
	}
	names, code := inv.devinfoNames(f.device)
	if code != exitOK {
		return code
	}
	reports := []*devinfo{}
	for _, name := range names {
		r, c := inv.queryDevinfo(name, f)
		code |= c
		if r == nil {
			continue
		}
		reports = append(reports, r)
		if !f.json {
			r.print(inv.stdout, f.verbose)
		}
	}
	if f.json {
		code |= inv.printJSON(newDevinfoJSON(reports))
	}
	return code
}

func (inv *invocation) listHCAs() int {
	list, err := verbs.Devices()
	if err != nil && len(list) == 0 {
		inv.fail(err, "Failed to get IB devices list: %v\n", errno(err))
		return devinfoNoDevice
	}
	inv.explain(err)
	s := "s"
	if len(list) == 1 {
		s = ""
	}
	inv.printf("%d HCA%s found:\n", len(list), s)
	for _, d := range list {
		inv.printf("\t%s\n", d.Name)
	}
	inv.printf("\n")
	return exitOK
}

// devinfoNames returns the devices to report on.
func (inv *invocation) devinfoNames(only string) ([]string, int) {
	if only != "" {
		return []string{only}, exitOK
	}
	list, err := verbs.Devices()
	if err != nil && len(list) == 0 {
		inv.fail(err, "Failed to get IB devices list: %v\n", errno(err))
		return nil, devinfoNoDevice
	}
	inv.explain(err)
	if len(list) == 0 {
		inv.fail(errNoDevices, "No IB devices found\n")
		return nil, devinfoNoDevice
	}
	var names []string
	for _, d := range list {
		names = append(names, d.Name)
	}
	return names, exitOK
}

// devinfo is what is printed of a device.
type devinfo struct {
	info  verbs.DeviceInfo
	attr  verbs.DeviceAttr
	ports []portinfo
}

type portinfo struct {
	number int
	attr   verbs.PortAttr
	gids   []verbs.GIDEntry
}

// queryDevinfo asks a device for all that is printed. It returns nil if nothing is to be
// printed; otherwise what it got before a failure, if there was one.
func (inv *invocation) queryDevinfo(name string, f devinfoFlags) (r *devinfo, code int) {
	dev, err := verbs.Open(name)
	if errors.Is(err, verbs.ErrNotFound) {
		inv.fail(err, "IB device '%s' wasn't found\n", name)
		return nil, devinfoNoDevice
	}
	if err != nil {
		inv.fail(err, "Failed to open device\n")
		return nil, devinfoOpenFailed
	}
	defer func() {
		if err := dev.Close(); err != nil {
			inv.fail(err, "Failed to close device\n")
			code |= devinfoCloseFailed
		}
	}()
	r = &devinfo{info: dev.Info()}
	if r.attr, err = dev.Query(); err != nil {
		inv.fail(err, "Failed to query device props\n")
		return nil, devinfoQueryFailed
	}
	if f.port > r.attr.PhysPortCnt {
		inv.fail(fmt.Errorf("%s has %d port(s), counted from 1", name, r.attr.PhysPortCnt), "Invalid port requested for device\n")
		return nil, devinfoNoPort
	}
	first, last := 1, r.attr.PhysPortCnt
	if f.port > 0 {
		first, last = f.port, f.port
	}
	for n := first; n <= last; n++ {
		p := portinfo{number: n}
		if p.attr, err = dev.QueryPort(n); err != nil {
			inv.fail(err, "Failed to query port %d props\n", n)
			return r, statusOf(err)
		}
		if f.verbose || f.json {
			if p.gids, err = dev.GIDs(n); err != nil {
				inv.fail(err, "Failed to query gid to port %d, index %d\n", n, len(p.gids))
				return r, statusOf(err)
			}
		}
		r.ports = append(r.ports, p)
	}
	return r, exitOK
}

// statusOf is the exit status of a failed query: its errno, as far as there is one.
func statusOf(err error) int {
	if e, ok := errors.AsType[syscall.Errno](err); ok && e > 0 && e <= 255 {
		return int(e)
	}
	return exitError
}

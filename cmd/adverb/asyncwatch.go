package main

import (
	"fmt"
	"io"

	"github.com/adverb-rdma/adverb/verbs"
)

var asyncwatchCmd = &command{
	name:    "asyncwatch",
	classic: "ibv_asyncwatch",
	short:   "Print the asynchronous events of an RDMA device",
	options: []option{
		{short: 'd', long: "ib-dev", arg: "<dev>", help: "RDMA device (default first device found)"},
		{short: 'h', long: "help", help: "print this text"},
	},
	usage: func(w io.Writer, c *command, prog string) {
		fmt.Fprintf(w, "Usage:\n  %s            print events as they come\n\n", prog)
		printOptions(w, c)
	},
	more: `A software device has them when its interface goes down or up and when its addresses change.
Ctrl-C ends the program. There is no file descriptor behind the events: its number is -1.
`,
	run: runAsyncwatch,
}

// watchedEvents are those that the classic program knows by name: of the device and its port.
var watchedEvents = map[verbs.EventType]bool{
	verbs.EventDeviceFatal:      true,
	verbs.EventPortActive:       true,
	verbs.EventPortErr:          true,
	verbs.EventLIDChange:        true,
	verbs.EventPKeyChange:       true,
	verbs.EventSMChange:         true,
	verbs.EventClientReregister: true,
	verbs.EventGIDChange:        true,
}

func runAsyncwatch(inv *invocation) int {
	name := ""
	_, code, ok := inv.parse(exitError, func(_, arg string) bool { name = arg; return true })
	if !ok {
		return code
	}
	if name == "" {
		list, err := verbs.Devices()
		if len(list) == 0 {
			if err == nil {
				err = errNoDevices
			}
			return inv.fail(err, "IB device %s not found\n", name)
		}
		name = list[0].Name
	}
	dev := inv.openDevice(name)
	if dev == nil {
		return exitError
	}
	code = inv.watch(dev)
	if err := dev.Close(); err != nil {
		inv.explain(err)
		code = exitError
	}
	return code
}

// watch prints events until the run is interrupted.
func (inv *invocation) watch(dev *verbs.Device) int {
	inv.printf("%s: async event FD %d\n", dev.Name(), -1)
	for {
		e, err := dev.NextEvent(inv.ctx)
		switch {
		case inv.ctx.Err() != nil:
			return statusInterrupted
		case err != nil:
			return inv.fail(err, "")
		}
		inv.printf("%s\n", eventLine(e))
	}
}

func eventLine(e verbs.AsyncEvent) string {
	name := "unexpected"
	if watchedEvents[e.Type] {
		name = "IBV_" + e.Type.String()
	}
	return fmt.Sprintf("  event_type %s (%d), port %d", name, e.Type, e.Port)
}

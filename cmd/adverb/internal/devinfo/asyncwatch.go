package devinfo

import (
	"fmt"
	"io"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/verbs"
)

// Asyncwatch is the command asyncwatch.
var Asyncwatch = &cli.Command{
	Name:    "asyncwatch",
	Classic: []string{"ibv_asyncwatch"},
	Short:   "Print the asynchronous events of an RDMA device",
	Flags: []cli.Flag{
		{Short: 'd', Long: "ib-dev", Arg: "<dev>", Help: "RDMA device (default first device found)", Values: device.Names},
		{Short: 'h', Long: "help", Help: "print this text"},
	},
	Forms: []cli.Form{{Does: "print events as they come"}},
	Usage: func(w io.Writer, c *cli.Command, prog string) {
		fmt.Fprintf(w, "Usage:\n  %s            %s\n\n", prog, c.Forms[0].Does)
		cli.PrintFlags(w, c)
	},
	More: `A software device has events when its interface goes down or up and when its addresses change.
Ctrl-C ends the program. There is no file descriptor behind the events: its number is -1.
`,
	Run: runAsyncwatch,
}

// watchedEvents are the events that the C program knows by name: those of the device and its port.
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

func runAsyncwatch(inv *cli.Invocation) int {
	name := ""
	_, code, ok := inv.Parse(cli.ExitError, func(flag, arg string) bool {
		if flag != "ib-dev" {
			cli.Undeclared(flag)
		}
		name = arg
		return true
	})
	if !ok {
		return code
	}
	if name == "" {
		var err error
		if name, err = device.First(); err != nil {
			return inv.Fail(err, "IB device %s not found\n", name)
		}
	}
	dev := device.Open(inv, name)
	if dev == nil {
		return cli.ExitError
	}
	inv.Endless = true
	code = inv.Finish(watch(inv, dev), func(err error) int { return inv.Fail(err, "") })
	if err := dev.Close(); err != nil {
		inv.Explain(err)
		code = cli.ExitError
	}
	return code
}

// watch prints events until the run is interrupted.
func watch(inv *cli.Invocation, dev *verbs.Device) error {
	inv.Printf("%s: async event FD %d\n", dev.Name(), -1)
	for {
		e, err := dev.NextEvent(inv.Ctx)
		if err != nil {
			return err
		}
		inv.Printf("%s\n", eventLine(e))
	}
}

func eventLine(e verbs.AsyncEvent) string {
	name := "unexpected"
	if watchedEvents[e.Type] {
		name = "IBV_" + e.Type.String()
	}
	return fmt.Sprintf("  event_type %s (%d), port %d", name, e.Type, e.Port)
}

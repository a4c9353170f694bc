// Package heir has the command that speaks for programs which are killed.
package heir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/user"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Command is the command heir.
var Command = &cli.Command{
	Name:     "heir",
	Short:    "Speak for programs of this user that are killed",
	Operands: []cli.Values{device.Names},
	Forms:    []cli.Form{{Args: "[<dev>...]", Does: "stand by on these devices (default all software devices)"}},
	Usage:    func(w io.Writer, c *cli.Command, prog string) { cli.PrintForms(w, c, prog) },
	More: `A program that is killed cannot disconnect. Where another program of the same user has a device open
on the same address, it does so in its place, and peers hear of the end at once. This program is
there to be that other one, for as long as it runs: a peer without keep-alive, such as a C program
on a kernel or a card that only receives, would otherwise wait for ever. It takes no connections.

Let it run as a service of the user whose programs it is for. Without a <dev> it follows the host's
network interfaces and addresses. Linux only.
`,
	Run: run,
}

func run(inv *cli.Invocation) int {
	names, code, ok := inv.Parse(cli.ExitUsage, func(flag, _ string) bool {
		cli.Undeclared(flag)
		return false
	})
	if !ok {
		return code
	}
	if err := user.Self(); err != nil {
		return inv.Fail(fmt.Errorf("speak for programs of this user: %w", err), "")
	}
	inv.Endless = true
	devices, ok := open(inv, names)
	defer func() {
		for _, d := range devices {
			inv.ExplainUnlessReported(d.Close(), cli.ExitOK)
		}
		inv.ExplainUnlessReported(rdmacm.CloseDevices(), cli.ExitOK)
	}()
	if !ok {
		return cli.ExitError
	}
	// A listener is at all addresses of its devices or, without any, at those that the host has and will have.
	l, err := (&rdmacm.ListenConfig{Devices: devices}).Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), 0))
	if err == nil {
		for _, d := range devices {
			inv.Printf("stands by on %s\n", d.Name())
		}
		if len(devices) == 0 {
			inv.Printf("stands by on all addresses of this host\n")
		}
		err = refuse(inv.Ctx, l)
		err = errors.Join(err, l.Close())
	}
	return inv.Finish(err, func(err error) int { return inv.Fail(err, "") })
}

// open opens the devices with the names.
func open(inv *cli.Invocation, names []string) (devices []*verbs.Device, ok bool) {
	for _, name := range names {
		d := device.Open(inv, name)
		if d == nil {
			return devices, false
		}
		if _, err := d.GSI(); err != nil {
			inv.Explain(fmt.Errorf("%s: its connections are the kernel's, which speaks for programs that are killed: %w", name, err))
			inv.Explain(d.Close())
			return devices, false
		}
		devices = append(devices, d)
	}
	return devices, true
}

// refuse refuses who comes, until ctx ends.
func refuse(ctx context.Context, l *rdmacm.Listener) error {
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		_ = r.Reject(nil) // whoever has given up meanwhile needs no answer
	}
}

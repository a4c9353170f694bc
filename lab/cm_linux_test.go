package lab

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/lab/agent"
	"github.com/adverb-rdma/adverb/rdmacm"
)

// This file starts programs that use the connection manager. Those of rdma-core and ours take the
// same options.

// cmArgv returns the command line of one of the programs, as that side needs it.
func cmArgv(side Side, program string, args ...string) []string {
	if _, ours := side.(ourSide); ours {
		return append([]string{"adverb", program}, args...)
	}
	if program == "cmatose" {
		program = "ucmatose"
	}
	// Without stdbuf, lines would come when the program ends. Tests wait for lines.
	return append([]string{"stdbuf", "-oL", program}, args...)
}

// cmPort is where a program listens.
type cmPort struct {
	space rdmacm.PortSpace
	port  string
}

// startCM starts a program, and returns when the program listens on an address of the scenario's IP
// version.
func (s *scenario) startCM(ctx context.Context, t *testing.T, side Side, at cmPort, argv ...string) *Process {
	t.Helper()
	p, err := beginCM(ctx, side, at, s.v6, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// beginCM is startCM, but returns an error.
func beginCM(ctx context.Context, side Side, at cmPort, v6 bool, argv ...string) (*Process, error) {
	p, err := side.Start(ctx, argv...)
	if err != nil {
		return nil, err
	}
	if err := awaitCM(ctx, side, at, v6, p); err != nil {
		return nil, fmt.Errorf("wait for a listener on port %s of %v: %w\n%s", at.port, at.space, err, p.Report())
	}
	return p, nil
}

// startCM starts a program in a guest, and returns when the program listens. In guests, one
// listener serves both IP versions.
func startCM(ctx context.Context, t *testing.T, g *Guest, at cmPort, argv ...string) *Process {
	t.Helper()
	return new(scenario).startCM(ctx, t, g, at, argv...)
}

// awaitCM returns when a program listens. The programs do not print that, so awaitCM looks for the
// listener. If the program ends instead, awaitCM returns an error.
func awaitCM(ctx context.Context, side Side, at cmPort, v6 bool, p *Process) error {
	ctx, cancel := untilEnd(ctx, p)
	defer cancel()
	var err error
	switch side := side.(type) {
	case *Guest:
		err = side.awaitCM(ctx, at)
	case *Host:
		err = side.awaitCM(ctx, at, v6)
	case nativeGuest:
		err = side.Guest.awaitCM(ctx, at)
	case softGuest:
		err = side.awaitCM(ctx, at, v6)
	case siwHost:
		err = side.awaitCM(ctx, at)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// awaitListen waits until the kernel lists an ID that listens on a port. The list does not name all
// port spaces, so the pattern does not look at them. The kernel lists the ID shortly before it
// answers requests for it, and the program is running or blocked in the kernel in that time. So
// awaitListen then waits until all threads of the program sleep.
const awaitListen = `
	until [ "$pid" ]; do
		pid=$(rdma resource show cm_id | sed -nE "s/.*LISTEN.* pid ([0-9]+) .*:$1( .*)?\$/\1/p" | head -n 1)
		[ "$pid" ] || usleep 10000
	done
	while grep -qsE "\) [RD] " /proc/$pid/task/*/stat; do usleep 5000; done`

// awaitCM waits until a program in the guest listens.
func (g *Guest) awaitCM(ctx context.Context, at cmPort) error {
	_, err := g.Run(ctx, "sh", "-c", awaitListen, "await", at.port)
	return err
}

// claim returns the name of the unix socket that a process of ours binds when it listens on a
// side's address. A process that listens on all addresses binds one socket for each of them, one
// after the other.
func (at cmPort) claim(side Side, v6 bool) (string, error) {
	port, err := strconv.ParseUint(at.port, 10, 16)
	return fmt.Sprintf("@adverb/svc/%v/%016x", side.Addr(v6), uint64(at.space)<<16|port), err
}

// awaitCM waits until the claim is in the table of unix sockets.
func (h *Host) awaitCM(ctx context.Context, at cmPort, v6 bool) error {
	claim, err := at.claim(h, v6)
	if err != nil {
		return err
	}
	return agent.Poll(ctx, func() bool {
		table, err := os.ReadFile("/proc/net/unix")
		return err == nil && strings.Contains(string(table), claim+"\n")
	})
}

// wantOutput checks the whole text that a program has printed on one of its outputs. The text must be
// one of the given texts.
func wantOutput(t *testing.T, what, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got == w {
			return
		}
	}
	t.Errorf("%s: got %q, want %q", what, got, want)
}

// cmRows calls f for each combination of server, IP version and MTU.
func cmRows(program string, f func(s scenario)) {
	for _, mtu := range mtus {
		for _, server := range []string{"kernel", "adverb"} {
			for _, v6 := range []bool{false, true} {
				f(scenario{family: "Connection manager", program: program, server: server, v6: v6, mtu: mtu})
			}
		}
	}
}

// anyAddr returns the address that a server binds to in order to listen on all addresses.
func anyAddr(v6 bool) string {
	if v6 {
		return "::0"
	}
	return "0.0.0.0"
}

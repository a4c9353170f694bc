package lab

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// The connection manager's programs take the same options on both sides.

// cmArgv is the command line of one of them.
func cmArgv(side Side, program string, args ...string) []string {
	if _, ours := side.(ourSide); ours {
		return append([]string{"adverb", program}, args...)
	}
	if program == "cmatose" {
		program = "ucmatose"
	}
	// Lines are to come as they are printed: some say what has been done.
	return append([]string{"stdbuf", "-oL", program}, args...)
}

// cmPort is where a program listens.
type cmPort struct {
	space rdmacm.PortSpace
	port  string
}

// startCM starts a program that listens, and returns when it does, on addresses of the scenario's IP version.
func (s *scenario) startCM(ctx context.Context, t *testing.T, side Side, at cmPort, argv ...string) *Process {
	t.Helper()
	p := start(ctx, t, side, argv...)
	if err := awaitCM(ctx, side, at, s.v6, p); err != nil {
		t.Fatalf("wait for a listener on port %s of %v: %v\n%s", at.port, at.space, err, p.Report())
	}
	return p
}

// startCM is for programs in guests, where one listener is for both IP versions.
func startCM(ctx context.Context, t *testing.T, g *Guest, at cmPort, argv ...string) *Process {
	t.Helper()
	return new(scenario).startCM(ctx, t, g, at, argv...)
}

// awaitCM returns when a program listens, which the programs do not say, and an error if it ends instead.
func awaitCM(ctx context.Context, side Side, at cmPort, v6 bool, p *Process) error {
	ctx, cancel := untilEnd(ctx, p)
	defer cancel()
	var err error
	switch side := side.(type) {
	case *Guest:
		err = side.awaitCM(ctx, at)
	case *Host:
		err = side.awaitCM(ctx, at, v6)
	case softGuest:
		err = side.awaitCM(ctx, at, v6)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// awaitCM asks the kernel which of its IDs listen.
func (g *Guest) awaitCM(ctx context.Context, at cmPort) error {
	// It names port spaces, but not all.
	_, err := g.Run(ctx, "sh", "-c", `until rdma resource show cm_id | grep -Eq "LISTEN.*:$1( |\$)"; do usleep 10000; done`, "await", at.port)
	return err
}

// claim is the name of the unix socket that a process of ours binds when it listens. Whoever listens on all
// addresses binds one for each, the last perhaps later than another has been seen.
func (at cmPort) claim(side Side, v6 bool) (string, error) {
	port, err := strconv.ParseUint(at.port, 10, 16)
	return fmt.Sprintf("@adverb/svc/%v/%016x", side.Addr(v6), uint64(at.space)<<16|port), err
}

// awaitCM looks for the claim in the table of unix sockets, which offers no event.
func (h *Host) awaitCM(ctx context.Context, at cmPort, v6 bool) error {
	const pollInterval = 3 * time.Millisecond
	claim, err := at.claim(h, v6)
	if err != nil {
		return err
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		table, err := os.ReadFile("/proc/net/unix")
		if err != nil || strings.Contains(string(table), claim+"\n") {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// wantOutput compares all that a program has printed on one of its outputs.
func wantOutput(t *testing.T, what, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if got == w {
			return
		}
	}
	t.Errorf("%s: %q, want %q", what, got, want)
}

// cmRows calls f for each combination of who serves, addresses and MTU.
func cmRows(program string, f func(s scenario)) {
	for _, mtu := range mtus {
		for _, server := range []string{"kernel", "adverb"} {
			for _, v6 := range []bool{false, true} {
				f(scenario{family: "Connection manager", program: program, server: server, v6: v6, mtu: mtu})
			}
		}
	}
}

// anyAddr is what a server binds to for all addresses.
func anyAddr(v6 bool) string {
	if v6 {
		return "::0"
	}
	return "0.0.0.0"
}

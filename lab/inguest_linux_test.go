package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/lab/agent"
)

// The tests in this file run our own programs in a guest, on another kernel than this host's.

const (
	guestBinary = "/run/adverb"
	// guestServes is the server of scenarios in which our software is at both ends, and the server
	// runs in the guest.
	guestServes = "adverb in the guest"
)

// ourSide is a side where our programs run.
type ourSide interface {
	Side
	// Device returns the name of a device whose only GID is that address. Its GID index is 0.
	Device(v6 bool) string
}

// softGuest is a guest whose kernel does not use UDP port 4791, so that our device can.
type softGuest struct{ *Guest }

func (g softGuest) Device(v6 bool) string { return fmt.Sprintf("soft_eth0@%v", g.Addr(v6)) }

// Start runs a program. "adverb" is the tool of this module.
func (g softGuest) Start(ctx context.Context, argv ...string) (*Process, error) {
	if argv[0] == "adverb" {
		argv = append([]string{guestBinary}, argv[1:]...)
	}
	return g.Guest.Start(ctx, argv...)
}

// awaitCM waits until a program of ours listens. Its claim shows before that, and a guest is slow.
func (g softGuest) awaitCM(ctx context.Context, at cmPort, v6 bool) error {
	addr := net.JoinHostPort(g.Addr(v6).String(), at.port)
	_, err := g.Run(ctx, "sh", "-c", `until "$2" res cm_id | grep LISTEN | grep -qF " $1 "; do usleep 10000; done`, "await", addr, guestBinary)
	return err
}

// sides returns the server's side and the client's side.
func (s *scenario) sides(l *Lab) (srv, client Side) {
	switch {
	case s.family == nativeFamily && s.server == "adverb":
		return s.ours(l), nativeGuest{l.Guest(0)}
	case s.family == nativeFamily:
		return nativeGuest{l.Guest(0)}, s.ours(l)
	case s.family != ownGuestFamily && s.server == "kernel":
		return l.Guest(0), s.ours(l)
	case s.family != ownGuestFamily:
		return s.ours(l), l.Guest(0)
	case s.server == guestServes:
		return softGuest{l.Guest(0)}, l.Host()
	}
	return l.Host(), softGuest{l.Guest(0)}
}

// put copies a program from the host into the guest.
func put(ctx context.Context, t *testing.T, g *Guest, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	p, err := g.StartRequest(ctx, agent.Request{Argv: []string{"sh", "-c", "cat >" + to + " && chmod +x " + to}, Stdin: b})
	if err != nil {
		t.Fatal(err)
	}
	finish(t, p)
}

// testProgram builds the tests of a package without cgo, as a program that runs away from the
// sources.
func testProgram(ctx context.Context, t *testing.T, h *Host, pkg string) string {
	t.Helper()
	out := t.TempDir() + "/test"
	finish(t, start(ctx, t, h, "env", "CGO_ENABLED=0", "go", "test", "-c", "-o", out, modulePath+pkg))
	return out
}

// The module rdma_rxe takes UDP port 4791 in the network namespace that it was loaded in. A user
// who opens a device there is told so, and learns what to do. One of the ways out is tried here.
func TestKernelOwnsPort(t *testing.T) {
	l := network(t, mtus[0])
	recordTest(t, ownGuestFamily, resultRow{program: "rping, demo", server: guestServes},
		"rdma_rxe has UDP port 4791: the error names the ways out, and a network namespace is one")
	g := l.Guest(0)
	ctx := within(t, patience)
	put(ctx, t, g, l.Host().bin, guestBinary)
	p := start(ctx, t, g, guestBinary, "rping", "-s", "-a", g.Addr(false).String())
	res, err := p.Wait()
	if err != nil || res.Status.Code == 0 {
		t.Fatalf("want an exit status other than 0; got %v\n%s", err, p.Report())
	}
	for _, word := range []string{"4791", "rdma_rxe", "network namespace"} {
		if !strings.Contains(res.Stderr, word) {
			t.Errorf("stderr: got %q, want %q in it", res.Stderr, word)
		}
	}
	out, err := g.Run(ctx, "unshare", "-n", "sh", "-c", "ip link set lo up && exec "+guestBinary+" demo")
	if err != nil {
		t.Errorf("demo in a network namespace of its own: got %v, want success", err)
	}
	t.Logf("adverb demo in the guest: %s", tail(out, 3))
}

// TestInGuest removes rdma_rxe from a guest's kernel. It then runs the conformance suite in the
// guest, and our tools between the guest and this host.
func TestInGuest(t *testing.T) {
	needLab(t)
	ctx := t.Context() // the steps have their own time limits
	l := ownLab(ctx, t, Config{MTU: 1500})
	g := l.Guest(0)
	if _, err := g.Run(ctx, "sh", "-c", "rdma link del "+g.Device+" && rmmod rdma_rxe"); err != nil {
		t.Fatal(err)
	}
	put(ctx, t, g, l.Host().bin, guestBinary)

	t.Run("conformance", func(t *testing.T) {
		recordTest(t, ownGuestFamily, resultRow{program: "verbstest", server: guestServes}, "all of the suite, and the examples")
		put(ctx, t, g, testProgram(ctx, t, l.Host(), "provider/soft"), "/run/soft.test")
		suite := start(ctx, t, g, "sh", "-c", "cd /run && ./soft.test -test.v -test.run '^TestConformance(Across)?$|Example'")
		out, err := waitWhilePrinting(ctx, suite)
		passed := strings.Count(out, "--- PASS")
		if err != nil || passed < leastPassed {
			t.Errorf("the conformance suite in the guest: %d tests passed, want at least %d; error %v, want none\n%s", passed, leastPassed, err, tail(out, 40))
		}
		kernel, _ := g.Run(ctx, "uname", "-r")
		t.Logf("Linux %s: %d tests passed, %d were skipped", strings.TrimSpace(kernel), passed, strings.Count(out, "--- SKIP"))
	})
	for _, program := range softOnBoth(l.MTU()) {
		for _, server := range []string{guestServes, "adverb"} {
			for _, v6 := range []bool{false, true} {
				s := scenario{family: ownGuestFamily, program: program.name, server: server, v6: v6, mtu: l.MTU(), variant: program.variant, on: l}
				s.check.oneWay = program.oneWay
				s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { program.run(ctx, t, l, s) })
			}
		}
	}
}

// leastPassed is how many tests of the conformance suite must at least pass in the guest. Some skip
// themselves there.
const leastPassed = 200

// waitWhilePrinting waits until a program has ended. The program may take as long as it likes while
// it keeps printing: the time of the whole program depends on the machine. A program that
// prints nothing for a while is killed.
func waitWhilePrinting(ctx context.Context, p *Process) (stdout string, err error) {
	for silent := false; !silent; {
		_, more := p.stdout.contains("")
		quiet, cancel := context.WithTimeout(ctx, patience)
		select {
		case <-p.Done():
			cancel()
			left, err := ends(p)
			return left[0].Stdout, err
		case <-more:
		case <-quiet.Done():
			silent = true
		}
		cancel()
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return p.stdout.String(), err
	}
	res, _ := p.Wait()
	return res.Stdout, fmt.Errorf("printed nothing for %v", patience)
}

// softProgram is a program that runs at both ends. One of the ends is in the guest.
type softProgram struct {
	name, variant string
	oneWay        bool
	iwarp         bool // over iWARP too
	run           func(ctx context.Context, t *testing.T, l *Lab, s scenario)
}

func softOnBoth(mtu int) (programs []softProgram) {
	for _, p := range pingpongs {
		// The guest's socket buffer (rmem_max, 208 KiB) loses what it cannot hold. UC never repeats
		// a lost packet. Many QPs send all at once, and then may lose the last acknowledgement,
		// after which no program is there to repeat it.
		size := 4095
		switch {
		case p.datagram:
			size = pathMTU(mtu)
		case p.name == "rc_pingpong":
			size = 65536
		}
		programs = append(programs, softProgram{name: p.name, variant: strconv.Itoa(size), run: func(ctx context.Context, t *testing.T, l *Lab, s scenario) {
			p.run(ctx, t, l, s, size)
		}})
	}
	const rpingSize = 65535
	return append(programs,
		softProgram{name: "rping", variant: strconv.Itoa(rpingSize), iwarp: true, run: func(ctx context.Context, t *testing.T, l *Lab, s scenario) {
			runRping(ctx, t, l, s, rpingSize)
		}},
		softProgram{name: "cmatose", variant: "-c 5 -C 10 -S 4095", iwarp: true, run: runCmatose},
		softProgram{name: "udaddy", variant: "-c 3 -C 5 -S 1024", run: runUdaddy},
		softProgram{name: "mckey", variant: "-c 2 -C 5 -S 1024 --settle 0s", oneWay: true, run: runMckey},
		softProgram{name: "cmtime", variant: "-c 50", iwarp: true, run: runCmtime},
	)
}

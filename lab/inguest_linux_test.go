package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/lab/agent"
)

// Our own programs in a guest, on another kernel than this host's.

// inGuestTime is how long everything in a guest may take, with emulation.
const inGuestTime = 4 * time.Minute

// put copies a program of the host's into the guest.
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
	if res, err := p.Wait(); err != nil || res.Status != (agent.Status{}) {
		t.Fatalf("%v\n%s", err, p.Report())
	}
}

// testProgram builds the tests of a package, to be run without cgo and away from the sources.
func testProgram(ctx context.Context, t *testing.T, pkg string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(pkg)+".test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", out, modulePath+pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

// TestKernelOwnsPort: where rdma_rxe is loaded the kernel has UDP port 4791, in the network namespace that it was
// loaded in. Who opens a device there is told so, and what to do; one of the ways out is tried.
func TestKernelOwnsPort(t *testing.T) {
	l := network(t, mtus[0])
	g := l.Guest(0)
	ctx, cancel := context.WithTimeout(t.Context(), inGuestTime)
	defer cancel()
	put(ctx, t, g, l.Host().bin, "/run/adverb")
	soon, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	p := start(soon, t, g, "/run/adverb", "rping", "-s", "-a", g.Addr(false).String())
	res, err := p.Wait()
	if err != nil || res.Status.Code == 0 {
		t.Fatalf("%v\n%s", err, p.Report())
	}
	for _, word := range []string{"4791", "rdma_rxe", "network namespace"} {
		if !strings.Contains(res.Stderr, word) {
			t.Errorf("the error does not speak of %q: %s", word, res.Stderr)
		}
	}
	out, err := g.Run(ctx, "unshare", "-n", "sh", "-c", "ip link set lo up && exec /run/adverb demo")
	if err != nil {
		t.Errorf("in a network namespace of its own: %v", err)
	}
	t.Logf("adverb demo in the guest: %s", tail(out, 3))
}

// TestInGuest runs the conformance suite, and the tools against those on this host, in a guest whose
// kernel has no rdma_rxe any more.
func TestInGuest(t *testing.T) {
	needLab(t)
	ctx, cancel := context.WithTimeout(t.Context(), inGuestTime)
	defer cancel()
	l, err := Start(ctx, Config{MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	g := l.Guest(0)
	if _, err := g.Run(ctx, "sh", "-c", "rdma link del "+g.Device+" && rmmod rdma_rxe"); err != nil {
		t.Fatal(err)
	}
	put(ctx, t, g, l.Host().bin, "/run/adverb")
	put(ctx, t, g, testProgram(ctx, t, "provider/soft"), "/run/soft.test")

	out, err := g.Run(ctx, "sh", "-c", "cd /run && ./soft.test -test.v -test.run 'Conformance|Example'")
	passed := strings.Count(out, "--- PASS")
	if err != nil || passed < 200 {
		t.Errorf("the conformance suite in the guest: %d passed, %v\n%s", passed, err, tail(out, 40))
	}
	kernel, _ := g.Run(ctx, "uname", "-r")
	t.Logf("Linux %s: %d tests passed, %d were skipped", strings.TrimSpace(kernel), passed, strings.Count(out, "--- SKIP"))

	for _, server := range []string{"guest", "host"} {
		for _, v6 := range []bool{false, true} {
			softOnBoth(ctx, t, l, server, v6)
		}
	}
}

// softOnBoth has the software devices of two kernels talk to each other, over a network between the two.
func softOnBoth(ctx context.Context, t *testing.T, l *Lab, server string, v6 bool) {
	t.Helper()
	g, h := l.Guest(0), l.Host()
	port := nextPort()
	options := []string{"-p", port, "-s", "65536", "-n", "20", "-c", "-g", "0"}
	argv := map[Side][]string{
		g: append([]string{"/run/adverb", "rc_pingpong", "-d", fmt.Sprintf("soft_eth0@%v", g.Addr(v6))}, options...),
		h: append([]string{"adverb", "rc_pingpong", "-d", h.Device(v6)}, options...),
	}
	serve, dial := Side(g), Side(h)
	if server == "host" {
		serve, dial = dial, serve
	}
	srv := start(ctx, t, serve, argv[serve]...)
	number, _ := strconv.Atoi(port)
	if err := serve.AwaitTCP(ctx, number); err != nil {
		t.Fatalf("%v\n%s", err, srv.Report())
	}
	left := finish(t, srv, start(ctx, t, dial, append(argv[dial], serve.Addr(v6).String())...))
	comparePingpong(t, left[0].Stdout, left[1].Stdout, 1, 65536*20*2)
}

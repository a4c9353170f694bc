package main

import (
	"context"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/examples/internal/killtest"
	"github.com/adverb-rdma/adverb/examples/internal/node"
)

func TestMain(m *testing.M) { killtest.Main(m, main) }

func TestCalls(t *testing.T) {
	addr, local := killtest.Addr(100)+":7473", killtest.Addr(101)
	server := killtest.Start(t, "serve", "-addr", addr)
	server.MustLine(0, killtest.Listening)
	call := func(method, arg string) (string, error) {
		return killtest.Start(t, "call", "-addr", addr, "-local", local, method, arg).Wait()
	}
	if out, err := call("upper", "text"); err != nil || out != "TEXT" {
		t.Errorf("upper: %v: %q, want TEXT", err, out)
	}
	long := strings.Repeat("x", 100_000)
	if out, err := call("echo", long[:50_000]); err != nil || out != long[:50_000] {
		t.Errorf("a long echo: %v: %d bytes, want the 50000 that were sent", err, len(out))
	}
	if out, err := call("nosuch", ""); err == nil || !strings.Contains(out, `no method "nosuch"`) {
		t.Errorf("a method that there is not: %v: %q, want an error that says so", err, out)
	}
}

// TestThousandConnections has a thousand connections at once, with calls on all of them.
func TestThousandConnections(t *testing.T) {
	conns := "1000"
	if testing.Short() {
		conns = "100"
	}
	addr := killtest.Addr(100) + ":7474"
	server := killtest.Start(t, "serve", "-addr", addr)
	server.MustLine(0, killtest.Listening)
	out, err := killtest.Start(t, "load", "-addr", addr, "-local", killtest.Addr(101), "-conns", conns, "-calls", "10").Wait()
	if err != nil || !strings.Contains(out, conns+"0 calls answered") {
		t.Fatalf("load: %v: %s, want all calls answered", err, out)
	}
	t.Log(out)
}

// TestKills kills either end during calls. The load checks every answer.
func TestKills(t *testing.T) {
	killtest.Kills(t, 3,
		func(addr string) []string { return []string{"serve", "-addr", addr} },
		func(addr, local string) []string {
			return []string{"load", "-forever", "-addr", addr, "-local", local}
		})
}

// An answer that is longer than a message fails its call, and no other.
func TestLongAnswer(t *testing.T) {
	l, err := node.Listen(killtest.Addr(100) + ":7475")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), callTime)
	defer cancel()
	go serve(ctx, l)
	c, err := dial(ctx, l.Addr().String(), killtest.Addr(101))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	// Capitals of three bytes for letters of two.
	if _, err := c.call(ctx, "upper", []byte(strings.Repeat("ɐ", 400_000))); err == nil || !strings.Contains(err.Error(), "the answer is too long") {
		t.Errorf("a call whose answer is too long: %v, want an error that says so", err)
	}
	if err := c.check(ctx, 1, 2); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

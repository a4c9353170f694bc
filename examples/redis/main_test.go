package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/adverb-rdma/adverb/examples/internal/killtest"
	"github.com/adverb-rdma/adverb/examples/internal/streamtest"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rsocket"
)

func TestMain(m *testing.M) { killtest.Main(m, main) }

// start serves in the process on a network of rdmatest, and returns a client there.
func start(t *testing.T, faults rdmatest.Config) *redis.Client {
	t.Helper()
	l, dialer := streamtest.Listen(t, faults, 7483)
	served := make(chan error, 1)
	go func() { served <- serve(l) }()
	c := newClient(l.Addr().String(), dialer.DialContext)
	t.Cleanup(func() {
		c.Close()
		l.Close()
		<-served
	})
	return c
}

func exercise(t *testing.T, c *redis.Client) {
	ctx := t.Context()
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(ctx, "nothing").Err(); err != redis.Nil {
		t.Errorf("a key that is not there: %v, want %v", err, redis.Nil)
	}
	large := strings.Repeat("large ", 100_000)
	if err := c.Set(ctx, "large", large, 0).Err(); err != nil {
		t.Error(err)
	}
	if v, err := c.Get(ctx, "large").Result(); err != nil || v != large {
		t.Errorf("%d bytes of %d, %v, want those that were set", len(v), len(large), err)
	}
	if n, err := c.Del(ctx, "large", "nothing").Result(); err != nil || n != 1 {
		t.Errorf("%d deleted, %v, want 1", n, err)
	}
	if err := c.Do(ctx, "no-such-command").Err(); err == nil || !strings.Contains(err.Error(), "unknown command") {
		t.Errorf("a command that is not there: %v, want it unknown", err)
	}
	const clients, each = 8, 100
	var work sync.WaitGroup
	for range clients {
		work.Go(func() {
			for range each {
				if err := c.IncrBy(ctx, "count", 2).Err(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	if n, err := c.Get(ctx, "count").Int(); err != nil || n != 2*clients*each {
		t.Errorf("the count is %d, %v, want %d", n, err, 2*clients*each)
	}
	if err := load(ctx, c, 500); err != nil {
		t.Error(err)
	}
}

func TestCommands(t *testing.T) { exercise(t, start(t, rdmatest.Config{})) }

// A network that loses a packet in a hundred changes nothing but the time.
func TestLoss(t *testing.T) { exercise(t, start(t, rdmatest.Config{Loss: 0.01, Seed: 6})) }

func TestPublish(t *testing.T) {
	c := start(t, rdmatest.Config{})
	s := c.Subscribe(t.Context(), "news")
	defer s.Close()
	if _, err := s.Receive(t.Context()); err != nil { // the subscription's answer
		t.Fatal(err)
	}
	for i := range 100 {
		text := fmt.Sprint("message ", i)
		if n, err := c.Publish(t.Context(), "news", text).Result(); err != nil || n != 1 {
			t.Fatalf("%d got it, %v, want 1", n, err)
		}
		if m, err := s.ReceiveMessage(t.Context()); err != nil || m.Payload != text {
			t.Fatalf("%v came for %q, %v, want that text", m, text, err)
		}
	}
	// A deadline ends a wait, and the connection goes on.
	if _, err := s.ReceiveTimeout(t.Context(), time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing published: %v, want %v", err, os.ErrDeadlineExceeded)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Get(ctx, "x").Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v, want %v", err, context.Canceled)
	}
}

// The commands of README, as processes. A server that is killed is known at once, and its successor is found.
func TestProcesses(t *testing.T) {
	server := killtest.Start(t, "serve", "-addr", "127.0.0.1:0")
	addr := server.MustLine(0, killtest.Listening)
	run := func(want string, args ...string) {
		t.Helper()
		if out, err := killtest.Start(t, args...).Wait(); err != nil || !strings.Contains(out, want) {
			t.Errorf("%q: %v, %s, want %q", args, err, out, want)
		}
	}
	run("OK", "do", "-addr", addr, "set", "color", "green")
	run("green", "do", "-addr", addr, "get", "color")
	run("2000 commands in pipelines", "load", "-addr", addr, "-n", "1000")

	c := newClient(addr, rsocket.DialContext)
	defer c.Close()
	if v, err := c.Get(t.Context(), "color").Result(); err != nil || v != "green" {
		t.Errorf("the color is %q, %v, want green", v, err)
	}
	server.Kill()
	killtest.Start(t, "serve", "-addr", addr).MustLine(0, killtest.Listening)
	if err := c.Get(t.Context(), "color").Err(); err != redis.Nil {
		t.Errorf("a server that has begun again: %v, want %v", err, redis.Nil)
	}
}

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/examples/internal/killtest"
	"github.com/adverb-rdma/adverb/examples/internal/node"
)

func TestMain(m *testing.M) { killtest.Main(m, main) }

// TestTable checks the table by itself, and that a mixture of two states of a bucket is noticed.
func TestTable(t *testing.T) {
	table := make([]byte, 64*bucketSize)
	if err := put(table, "k", strings.Repeat("a", 200)); err != nil {
		t.Fatal(err)
	}
	at := table[place("k", 0, 64)*bucketSize:][:bucketSize]
	old := append([]byte(nil), at...)
	if err := put(table, "k", strings.Repeat("b", 200)); err != nil {
		t.Fatal(err)
	}
	if e, err := decode(at); err != nil || e.key != "k" || e.value != strings.Repeat("b", 200) || e.version != 2 {
		t.Errorf("decoded %+v, %v, want version 2 of k", e, err)
	}
	for cut := 8; cut < bucketHead+200; cut += 8 {
		for _, mix := range [][]byte{append(append([]byte(nil), old[:cut]...), at[cut:]...), append(append([]byte(nil), at[:cut]...), old[cut:]...)} {
			if _, err := decode(mix); !errors.Is(err, errTorn) {
				t.Errorf("a mixture at byte %d was taken for whole: %v, want %v", cut, err, errTorn)
			}
		}
	}
	if err := put(table, "k", strings.Repeat("c", maxEntry)); !errors.Is(err, errTooLong) {
		t.Errorf("an entry that is too long: %v, want %v", err, errTooLong)
	}
	binary.LittleEndian.PutUint16(at[4:], 60000)
	if _, err := decode(at); !errors.Is(err, errTorn) {
		t.Errorf("a length beyond the bucket: %v, want %v", err, errTorn)
	}
}

// TestCommands runs the commands as a user does.
func TestCommands(t *testing.T) {
	addr := killtest.Addr(100) + ":7471"
	server := killtest.Start(t, "serve", "-addr", addr)
	server.MustLine(0, killtest.Listening)
	client := func(command string, args ...string) (string, error) {
		return killtest.Start(t, append([]string{command, "-addr", addr, "-local", killtest.Addr(101)}, args...)...).Wait()
	}
	if out, err := client("put", "color", "green"); err != nil {
		t.Fatalf("put: %v: %s", err, out)
	}
	if out, err := client("get", "color"); err != nil || out != "green (version 1)" {
		t.Errorf("get: %v: %q, want green", err, out)
	}
	if out, err := client("get", "shape"); err == nil || !strings.Contains(out, "no such key") {
		t.Errorf("get of a key that was not put: %v: %q, want no such key", err, out)
	}
}

// TestKills has clients load a server while one or the other is killed. The load checks every value.
func TestKills(t *testing.T) {
	killtest.Kills(t, 3,
		func(addr string) []string { return []string{"serve", "-addr", addr} },
		func(addr, local string) []string { return []string{"load", "-addr", addr, "-local", local} })
}

// The answer to a put that was given up is not taken for the answer to the next put.
func TestPutGivenUp(t *testing.T) {
	l, err := node.Listen(killtest.Addr(100) + ":7476")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := newServer()
	go s.serve(ctx, l)
	c, err := dial(ctx, l.Addr().String(), killtest.Addr(101))
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	tooLong := strings.Repeat("x", maxEntry)
	s.mu.Lock() // the server answers no put
	short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
	err = c.put(short, "a", tooLong)
	stop()
	s.mu.Unlock()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a put that is not answered: %v, want %v", err, context.DeadlineExceeded)
	}
	if err := c.put(ctx, "b", "1"); err != nil {
		t.Errorf("a put behind one that was given up and fails: %v", err)
	}
	if err := c.put(ctx, "c", tooLong); err == nil || err.Error() != errTooLong.Error() {
		t.Errorf("a put of an entry that is too long: %v, want %v", err, errTooLong)
	}
	if v, _, err := c.get(ctx, "b"); v != "1" || err != nil {
		t.Errorf("got %q, %v, want \"1\"", v, err)
	}
}

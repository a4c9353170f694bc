package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/examples/internal/killtest"
)

func TestMain(m *testing.M) { killtest.Main(m, main) }

// file writes a file of n random bytes.
func file(t *testing.T, name string, n int) (string, []byte) {
	t.Helper()
	var seed [32]byte
	data := make([]byte, n)
	rand.NewChaCha8(seed).Read(data)
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, data
}

func TestCopy(t *testing.T) {
	addr, dir := killtest.Addr(100)+":7472", t.TempDir()
	server := killtest.Start(t, "serve", "-addr", addr, "-dir", dir)
	server.MustLine(0, killtest.Listening)
	args := []string{"put", "-addr", addr, "-local", killtest.Addr(101)}
	want := make(map[string][]byte)
	for name, n := range map[string]int{"empty": 0, "byte": 1, "piece": pieceSize, "many": 20*pieceSize + 3} {
		path, data := file(t, name, n)
		args, want[name] = append(args, path), data
	}
	if out, err := killtest.Start(t, args...).Wait(); err != nil {
		t.Fatalf("put: %v: %s", err, out)
	}
	for name, data := range want {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %v, %d bytes arrived, want %d", name, err, len(got), len(data))
		}
	}
}

// TestRefused has a server that cannot write: the client must be told, and must not hang.
func TestRefused(t *testing.T) {
	addr := killtest.Addr(100) + ":7473"
	server := killtest.Start(t, "serve", "-addr", addr, "-dir", filepath.Join(t.TempDir(), "nosuch"))
	server.MustLine(0, killtest.Listening)
	path, _ := file(t, "f", 8*pieceSize)
	out, err := killtest.Start(t, "put", "-addr", addr, "-local", killtest.Addr(101), path).Wait()
	if err == nil || !strings.Contains(out, "the server says: ") {
		t.Errorf("put to a server that cannot write: %v: %s, want what the server says", err, out)
	}
}

// TestKills kills either end during copies. Whatever has its final name afterwards must be whole.
func TestKills(t *testing.T) {
	dir := t.TempDir()
	path, data := file(t, "f", 5*pieceSize+7)
	killtest.Kills(t, 2,
		func(addr string) []string { return []string{"serve", "-addr", addr, "-dir", dir} },
		func(addr, local string) []string {
			return []string{"put", "-forever", "-addr", addr, "-local", local, path}
		})
	if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%v, %d bytes are there, want %d", err, len(got), len(data))
	}
}

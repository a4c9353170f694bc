package streams

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// A file with a hole takes no more room where it arrives.
func TestRcopyHoles(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	source, into := filepath.Join(t.TempDir(), "file"), t.TempDir()
	f, err := os.Create(source)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 64 << 20
	if _, err := f.WriteAt([]byte("x"), size/2); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	room := func(name string) (size, room int64) {
		var st syscall.Stat_t
		if err := syscall.Stat(name, &st); err != nil {
			t.Fatal(err)
		}
		return st.Size, st.Blocks * 512
	}
	if _, n := room(source); n > size/8 {
		t.Skipf("the file system has no holes: a file of a byte takes %d", n)
	}
	port := startRcopy(ctx, t, into)
	if r := tool.Result(ctx, "adverb", "rcopy", "-p", port, "--verify", source, "127.0.0.1:to"); r.Code != 0 {
		t.Fatalf("got status %d, stderr %q, want status 0", r.Code, r.Stderr)
	}
	if n, took := room(filepath.Join(into, "to")); n != size || took > size/8 {
		t.Errorf("got a file of %d bytes that takes %d, want %d bytes, and most of them a hole", n, took, size)
	}
}

//go:build unix

package streams

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// A special file has no size that the server could be told first. The user gets its name, and those of special files
// in a directory. The server does not write to a pipe, which nobody may read.
func TestRcopyNoFile(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	from, into := t.TempDir(), t.TempDir()
	file := filepath.Join(from, "file")
	for _, name := range []string{filepath.Join(from, "pipe"), filepath.Join(into, "pipe")} {
		if err := unix.Mkfifo(name, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("contents"), 0o600); err != nil {
		t.Fatal(err)
	}
	port := startRcopy(ctx, t, into)
	for _, c := range []struct {
		source, to string
		code       int
		says       string
	}{
		{os.DevNull, "from-device", 1, "it is a device"},
		{from, "all", 1, "pipe: left out, as it is a pipe"},
		{file, "pipe", 1, "the server answers: pipe is a pipe"},
	} {
		r := tool.Result(ctx, "adverb", "rcopy", "-p", port, c.source, "127.0.0.1:"+c.to)
		if r.Code != c.code || !strings.Contains(r.Stderr, c.says) {
			t.Errorf("%s: got status %d, stderr %q, want %d and %q", c.to, r.Code, r.Stderr, c.code, c.says)
		}
	}
	if got, err := os.ReadFile(filepath.Join(into, "all", "file")); err != nil || string(got) != "contents" {
		t.Errorf("beside the pipe: got %q, %v, want the contents of the file", got, err)
	}
}

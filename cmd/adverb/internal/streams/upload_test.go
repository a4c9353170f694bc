package streams

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// Modification times and empty directories arrive.
func TestRcopyTimes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	from, into := t.TempDir(), t.TempDir()
	at := time.Date(2001, 2, 3, 4, 5, 6, 789000000, time.UTC)
	file := filepath.Join(from, "file")
	if err := os.WriteFile(file, []byte("contents"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, at, at); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(from, "a", "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	port := startRcopy(ctx, t, into)
	for range 2 { // a directory that is there is no failure
		if r := tool.Result(ctx, "adverb", "rcopy", "-p", port, from, "127.0.0.1:to"); r.Code != 0 || r.Stderr != "" {
			t.Fatalf("got status %d, stderr %q, want status 0 and nothing left out", r.Code, r.Stderr)
		}
	}
	if info, err := os.Stat(filepath.Join(into, "to", "file")); err != nil || !info.ModTime().Equal(at) {
		t.Errorf("got %v, %v, want a file of %v", info, err, at)
	}
	if info, err := os.Stat(filepath.Join(into, "to", "a", "empty")); err != nil || !info.IsDir() {
		t.Errorf("got %v, %v, want an empty directory", info, err)
	}
	// So it is if nothing but an empty directory is copied, by which the ends learn of each other.
	if r := tool.Result(ctx, "adverb", "rcopy", "-p", port, filepath.Join(from, "a"), "127.0.0.1:alone"); r.Code != 0 {
		t.Errorf("got status %d, stderr %q, want status 0", r.Code, r.Stderr)
	}
	if info, err := os.Stat(filepath.Join(into, "alone", "empty")); err != nil || !info.IsDir() {
		t.Errorf("got %v, %v, want an empty directory", info, err)
	}
}

// newRoot opens a new directory.
func newRoot(t *testing.T) (*os.Root, string) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, dir
}

// A file replaces another one when it is whole. Until then, and if it is dropped, the other one stays, and nothing else.
func TestUpload(t *testing.T) {
	root, dir := newRoot(t)
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	has := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(b) != want {
			t.Errorf("got %q, %v, want %q", b, err, want)
		}
	}
	for _, keep := range []bool{false, true} {
		u, err := newUpload(root, "file", 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := u.fill(strings.NewReader("after"), 5); err != nil {
			t.Fatal(err)
		}
		has("before")
		if keep {
			if err := u.keep(); err != nil {
				t.Fatal(err)
			}
		}
		u.drop()
		has(map[bool]string{false: "before", true: "after"}[keep])
		if names, err := fs.Glob(os.DirFS(dir), "*"); err != nil || len(names) != 1 {
			t.Errorf("got the files %q, %v, want one", names, err)
		}
	}
}

// Whatever the zeros of a file, it arrives as it is.
func TestUploadContents(t *testing.T) {
	root, dir := newRoot(t)
	zeros, data := make([]byte, 3*hole), bytes.Repeat([]byte{7}, 3*hole)
	for i, parts := range [][][]byte{
		{}, {zeros[:1]}, {zeros}, {data}, {zeros, data}, {data, zeros}, {data[:1], zeros, data[:hole], zeros[:hole]}, {zeros[:hole+1], data[:hole-1]},
		{bytes.Repeat(zeros, 30), data[:5]}, {data[:5], bytes.Repeat(zeros, 30)},
	} {
		want := bytes.Join(parts, nil)
		u, err := newUpload(root, "file", 0o600)
		if err != nil {
			t.Fatal(err)
		}
		half := int64(len(want) / 2) // by two commands
		r := bytes.NewReader(want)
		if err := u.fill(r, half); err != nil {
			t.Fatal(err)
		}
		if err := u.fill(r, int64(len(want))-half); err != nil {
			t.Fatal(err)
		}
		if err := u.keep(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d: got %d bytes, %v, want the %d that were written", i, len(got), err, len(want))
		}
	}
	u, err := newUpload(root, "cut", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer u.drop()
	if err := u.fill(strings.NewReader("abc"), 4); err != io.ErrUnexpectedEOF {
		t.Errorf("a file that is cut short: got %v, want %v", err, io.ErrUnexpectedEOF)
	}
}

package lab

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// An archive gives the files below a directory, and none that would lie elsewhere.
func TestUntarBelow(t *testing.T) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range []string{"core-1/README", "core-1/tests/a.py", "core-1/tests/sub/b.py", "core-1/tests/../../escaped", "core-1/testsuite/c.py"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 1, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	text := archive.Bytes()
	dir := t.TempDir()
	if err := untarBelow(bytes.NewReader(text), "tests", filepath.Join(dir, "to")); err != nil {
		t.Fatal(err)
	}
	got, err := filepath.Glob(filepath.Join(dir, "*", "*", "*"))
	if err != nil || len(got) != 2 {
		t.Errorf("got %q, %v; want tests/a.py and tests/sub", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "escaped")); err == nil {
		t.Error("a file was written beside the directory")
	}
	wantError(t, untarBelow(bytes.NewReader(text), "docs", dir), "no such files")
}

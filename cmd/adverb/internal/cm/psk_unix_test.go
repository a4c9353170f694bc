//go:build unix

package cm

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A key is read from a regular file alone. A pipe without a writer held a program up for ever.
func TestReadPSKOfPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skipf("no pipe can be made: %v", err)
	}
	for name, want := range map[string]string{pipe: "is a pipe", os.DevNull: "is a device", filepath.Dir(pipe): "is a directory"} {
		done := make(chan error, 1)
		go func() {
			_, err := ReadPSK(name)
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got error %v, want that it %s", name, err, want)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: reading the key waits", name)
		}
	}
}

// A key that others may write, or replace by a file of theirs, is refused, and the error names the remedy.
func TestReadPSKOthersWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	file := filepath.Join(dir, "key")
	link := filepath.Join(t.TempDir(), "link")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(dir, 0o700))
	must(os.WriteFile(file, []byte(strings.Repeat("key ", 8)), 0o600))
	must(os.Symlink(file, link))
	for _, c := range []struct {
		file, dir os.FileMode
		want      string
	}{
		{0o600, 0o700, ""},
		{0o444, 0o755, ""},
		{0o620, 0o700, `"chmod 600" it`},
		{0o602, 0o700, `"chmod 600" it`},
		{0o600, 0o775, ""},
		{0o600, 0o777, `"chmod o-w" it`},
		{0o600, os.ModeSticky | 0o777, ""},
	} {
		must(os.Chmod(file, c.file))
		must(os.Chmod(dir, c.dir))
		for _, name := range []string{file, link} {
			if _, err := ReadPSK(name); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s with permissions %v in a directory with %v: got error %v, want %q", name, c.file, c.dir, err, c.want)
			}
		}
	}
	must(os.Chmod(dir, 0o700)) // so that it can be removed
}

func TestTrusted(t *testing.T) {
	for _, c := range []struct {
		owner uint32
		user  int
		want  bool
	}{{1000, 1000, true}, {0, 1000, true}, {1001, 1000, false}, {1001, 0, true}, {1<<32 - 1, 1000, false}} {
		if got := trusted(c.owner, c.user); got != c.want {
			t.Errorf("user %d trusts a file of %d: %v, want %v", c.user, c.owner, got, c.want)
		}
	}
}

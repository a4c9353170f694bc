//go:build unix

package showpackets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A capture is its owner's alone, replaces an earlier one, and nothing else.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "packets.pcapng")
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	wantEmpty := func(f *os.File, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if s, err := f.Stat(); err != nil || s.Size() != 0 || s.Mode().Perm() != 0o600 {
			t.Errorf("file %v, %v; want an empty one of mode 0600", s, err)
		}
	}
	wantEmpty(open(name))
	write(name, magic+"more", 0o644)
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	wantEmpty(open(name)) // an earlier capture

	const precious = "my only thesis"
	thesis := filepath.Join(dir, "thesis")
	write(thesis, precious, 0o644)
	links := map[string]func(name string) error{
		"is no capture":      func(name string) error { return os.WriteFile(name, []byte(precious), 0o644) },
		"symbolic link":      func(name string) error { return os.Symlink(thesis, name) },
		"has 2 names":        func(name string) error { return os.Link(thesis, name) },
		"neither a file nor": func(name string) error { return unix.Mknod(name, unix.S_IFSOCK|0o600, 0) },
	}
	for cause, make := range links {
		name := filepath.Join(dir, strings.ReplaceAll(cause, " ", "-"))
		if err := make(name); err != nil {
			t.Logf("%s: %v", cause, err)
			continue
		}
		if f, err := open(name); err == nil {
			f.Close()
			t.Errorf("%s: it was opened, want an error", cause)
		} else if !strings.Contains(err.Error(), cause) && cause != "neither a file nor" {
			t.Errorf("%s: %v, want an error that says so", cause, err)
		}
	}
	if b, err := os.ReadFile(thesis); err != nil || string(b) != precious {
		t.Errorf("another file has become %q, %v, want %q", b, err, precious)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "nosuch"), dangling); err != nil {
		t.Fatal(err)
	}
	if _, err := open(dangling); err == nil {
		t.Error("a link to nothing was followed")
	}
}

// While one process has a capture, another one of the same name gets a file of its own.
func TestOpenTaken(t *testing.T) {
	name := filepath.Join(t.TempDir(), "packets.pcapng")
	first, err := open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := first.WriteString(magic); err != nil {
		t.Fatal(err)
	}
	second, err := open(name) // locks belong to open files, so this process stands for another
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if want := strings.TrimSuffix(name, ".pcapng") + fmt.Sprintf("-%d.pcapng", os.Getpid()); second.Name() != want {
		t.Errorf("the second is %s, want %s", second.Name(), want)
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != magic {
		t.Errorf("the first has %q, %v; want what was written", b, err)
	}
	pid, err := open(filepath.Join(t.TempDir(), "%p.pcapng"))
	if err != nil {
		t.Fatal(err)
	}
	defer pid.Close()
	if want := fmt.Sprintf("%d.pcapng", os.Getpid()); filepath.Base(pid.Name()) != want {
		t.Errorf("the name is %s, want %s", filepath.Base(pid.Name()), want)
	}
}

// A pipe takes a capture as it is: for Wireshark, while it lasts.
func TestOpenPipe(t *testing.T) {
	const wait = 20 * time.Millisecond
	name := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(name, 0o644); err != nil {
		t.Skip(err)
	}
	if f, err := openPipe(name, wait); err == nil || !strings.Contains(err.Error(), "nobody reads the pipe "+name+": start its reader first") {
		t.Errorf("a pipe that nobody reads: got %v, %v, want an error that says so", f, err)
	}
	reader, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := (patient{f, wait}).Write([]byte(magic)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(magic))
	if n, err := reader.Read(got); err != nil || string(got[:n]) != magic {
		t.Errorf("the reader got %q, %v, want what was written", got[:n], err)
	}
	if n, err := (patient{f, wait}).Write(make([]byte, 1<<20)); err == nil || !strings.Contains(err.Error(), "its reader has not read for 20ms") {
		t.Errorf("a reader that stands still: wrote %d bytes, %v, want an error that says so", n, err)
	}
	reader.Close()
	if _, err := (patient{f, wait}).Write([]byte(magic)); !errors.Is(err, unix.EPIPE) {
		t.Errorf("a reader that has gone: got %v, want %v", err, unix.EPIPE)
	}
}

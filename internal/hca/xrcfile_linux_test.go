//go:build !adverb_portable

package hca

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// A file that is made when a domain's file is gone has no domain, though file systems like to give it the number of the
// one that was removed.
func TestXRCDOfRemovedFile(t *testing.T) {
	d := simDevice(t, sim.New(sim.Config{}), 1)
	name := filepath.Join(t.TempDir(), "domain")
	create := func() *os.File {
		t.Helper()
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for range 8 { // any of these might get the number
		f := create()
		x, err := d.OpenXRCD(verbs.XRCDAttr{File: f, Create: true, Exclusive: true})
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		f = create()
		if y, err := d.OpenXRCD(verbs.XRCDAttr{File: f}); !errors.Is(err, verbs.ErrNotFound) {
			t.Fatalf("another file: domain %v, %v; want ErrNotFound", y, err)
		}
		f.Close()
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A domain leaves the locks of its file alone, and keeps its file no longer than it lives itself.
func TestXRCDFileLocks(t *testing.T) {
	d := simDevice(t, sim.New(sim.Config{}), 1)
	name := filepath.Join(t.TempDir(), "domain")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	x, err := d.OpenXRCD(verbs.XRCDAttr{File: f, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if f, err = os.Open(name); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Errorf("the lock of a file that was closed: %v, want it free", err)
	}
	if n := holders(t, name); n != 2 {
		t.Errorf("%d descriptors of the file, want the program's and the domain's", n)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	if n := holders(t, name); n != 1 {
		t.Errorf("%d descriptors of the file after the domain was closed, want the program's", n)
	}
}

// holders counts the descriptors of a file.
func holders(t *testing.T, name string) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); to == name {
			n++
		}
	}
	return n
}

//go:build !adverb_portable

package mem

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestPersistent: the right to flush to storage is for shared mappings of files, and Sync stores what they have.
func TestPersistent(t *testing.T) {
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessFlushPersistent
	page := os.Getpagesize()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(4 * page)); err != nil {
		t.Fatal(err)
	}
	pd := NewKeys(100, rand.Uint32).NewPD()
	mapped := func(flags int) []byte {
		b, err := unix.Mmap(int(f.Fd()), 0, 4*page, unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Munmap(b) })
		return b
	}
	for name, b := range map[string][]byte{"heap": make([]byte, page), "private": mapped(unix.MAP_PRIVATE)} {
		if _, err := pd.RegMR(verbs.MRAttr{Buf: b, Access: access}); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "MAP_SHARED") {
			t.Errorf("%s memory: %v, want an error that names MAP_SHARED", name, err)
		}
	}
	if _, err := pd.RegMR(verbs.MRAttr{Length: page, Access: access}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("memory of AllocMR: %v, want ErrInvalid", err)
	}
	if _, err := pd.RegForeignMR(verbs.MRAttr{Length: page, Access: access}, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("memory of another process: %v, want ErrInvalid", err)
	}

	b := mapped(unix.MAP_SHARED)
	byMapping, err := pd.RegMR(verbs.MRAttr{Buf: b[100 : 3*page], Access: access})
	if err != nil {
		t.Fatal(err)
	}
	byFile, err := pd.RegFileMR(verbs.MRAttr{Length: page, Access: access}, int(f.Fd()), 100)
	if err != nil {
		t.Fatal(err)
	}
	for i, mr := range []verbs.ProviderMR{byMapping, byFile} {
		s, err := pd.Open(mr.RKey(), 0, mr.Addr()+uint64(5*i), 5, verbs.AccessFlushPersistent|verbs.AccessRemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Place([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if err := s.Sync(); err != nil {
			t.Errorf("sync: %v, want no error", err)
		}
		s.Release()
	}
	got := make([]byte, 10)
	if _, err := f.ReadAt(got, 100); err != nil || string(got) != "hellohello" {
		t.Errorf("the file has %q, %v; want what was placed", got, err)
	}

	for _, mr := range []verbs.ProviderMR{byMapping, byFile} {
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := pd.OpenWhole(byFile.RKey(), verbs.AccessFlushPersistent); !errors.Is(err, verbs.ErrNotFound) {
		t.Errorf("a closed region: %v, want ErrNotFound", err)
	}
}

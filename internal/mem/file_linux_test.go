//go:build !adverb_portable

package mem

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// fileOf makes a file of so many pages, and a mapping of it, as another process has one.
func fileOf(t *testing.T, pages int, seals int) (fd int, theirs []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(pages*pageSize)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	if theirs, err = unix.Mmap(fd, 0, pages*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(theirs) })
	return fd, theirs
}

// TestRegFile: a region in a file has the file's bytes, from an offset inside a page on. It is lent and shared as memory of
// an allocation is, by its own bytes alone, and atomics are those of the processor.
func TestRegFile(t *testing.T) {
	p := NewKeys(100, rand.Uint32).NewPD()
	fd, theirs := fileOf(t, 4, fileSeals)
	at := pageSize + 40
	h, err := p.RegFileMR(verbs.MRAttr{Length: 5000, Access: allAccess, IOVA: 0x70028}, fd, int64(at))
	if err != nil {
		t.Fatal(err)
	}
	r := h.(*MR).Region
	if r.Addr() != 0x70028 || len(r.Bytes()) != 5000 || addrOf(r.Bytes())%uint64(pageSize) != 40 || r.guard {
		t.Errorf("the region is at %#x, has %d bytes from %#x on, guard %v; want 0x70028, 5000, the same place in a page, no guard",
			r.Addr(), len(r.Bytes()), addrOf(r.Bytes()), r.guard)
	}
	s, err := p.Open(r.RKey(), 0, 0x70028+8, 4992, allAccess)
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("placed "), 100)
	if err := s.Place(text); err != nil || !bytes.Equal(theirs[at+8:at+8+len(text)], text) {
		t.Errorf("placed: got %q, %v", theirs[at:at+20], err)
	}
	theirs[at+8] = 'P'
	got := make([]byte, 6)
	if err := s.Fetch(got); err != nil || string(got) != "Placed" {
		t.Errorf("fetched: got %q, %v", got, err)
	}
	clear(theirs[at+8 : at+16])
	if orig, err := s.FetchAdd(7); err != nil || orig != 0 || theirs[at+8] != 7 {
		t.Errorf("fetch and add: got %d, %v, and the file has %d", orig, err, theirs[at+8])
	}
	s.Release()

	share, ok := p.Share(r.RKey())
	if !ok || share.Base != 0x70028 || len(share.Bytes()) != 5000 || !share.File.Stays() {
		t.Errorf("shared: %v, from %#x on, %d bytes", ok, share.Base, len(share.Bytes()))
	}
	if f := share.File; f.FD != fd || f.Off != int64(at) || f.Size != 5000 {
		t.Errorf("the file is %d from %d on with %d bytes, want %d, %d, 5000", f.FD, f.Off, f.Size, fd, at)
	}
	share.File.Detach(0, 4096)
	if s, ok := p.Share(r.RKey()); ok {
		s.Release()
		t.Error("after Detach the region is shared")
	}
	share.Release()
	if theirs[at+8] != 7 {
		t.Error("Detach has changed the memory")
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// TestRegFileLent: SENDs lend such memory by the place in the region.
func TestRegFileLent(t *testing.T) {
	p := NewKeys(100, rand.Uint32).NewPD()
	fd, _ := fileOf(t, 4, fileSeals)
	h, err := p.RegFileMR(verbs.MRAttr{Length: 9000, Access: 0, IOVA: 100}, fd, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	l, ok := p.Lend([]verbs.SGE{{Addr: 300, Length: 8000, LKey: h.LKey()}}, 50, 4000)
	if !ok || l.Off != 250 || l.File.Off != 100 || l.File.Size != 9000 {
		t.Fatalf("lent: %v, %+v", ok, l)
	}
	l.Release()
}

// TestRegFileRefused: bytes that a file does not have are not registered, and neither is a file that cannot be mapped so.
func TestRegFileRefused(t *testing.T) {
	p := NewKeys(100, rand.Uint32).NewPD()
	fd, _ := fileOf(t, 2, fileSeals)
	for _, c := range []struct{ off, n int }{{0, 2*pageSize + 1}, {pageSize + 1, pageSize}, {3 * pageSize, 1}} {
		if _, err := p.RegFileMR(verbs.MRAttr{Length: c.n, Access: allAccess}, fd, int64(c.off)); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%d bytes at %d: got %v, want ErrInvalid", c.n, c.off, err)
		}
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	if _, err := p.RegFileMR(verbs.MRAttr{Length: 5, Access: allAccess}, null, 0); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a file that cannot be mapped: got %v, want ErrInvalid", err)
	}
}

// TestRegFileShrinks: memory of a file that can shrink may go. An access then fails, and the memory is not lent.
func TestRegFileShrinks(t *testing.T) {
	p := NewKeys(100, rand.Uint32).NewPD()
	fd, _ := fileOf(t, 2, unix.F_SEAL_GROW)
	h, err := p.RegFileMR(verbs.MRAttr{Length: 2 * pageSize, Access: allAccess}, fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if s, ok := p.Share(h.RKey()); ok {
		s.Release()
		t.Error("the region is shared")
	}
	s, err := p.Open(h.RKey(), 0, uint64(pageSize), 8, allAccess)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	if err := s.Place(make([]byte, 8)); err != nil {
		t.Error(err)
	}
	if err := unix.Ftruncate(fd, int64(pageSize)); err != nil {
		t.Fatal(err)
	}
	if err := s.Place(make([]byte, 8)); !errors.Is(err, ErrFault) {
		t.Errorf("behind the end of the file: got %v, want ErrFault", err)
	}
}

package mem

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// other is memory of another process, in this one.
type other struct {
	bytes []byte
	gone  error
}

func (o *other) ReadForeign(b []byte, off uint64) error {
	copy(b, o.bytes[off:][:len(b)])
	return o.gone
}

func (o *other) WriteForeign(b []byte, off uint64) error {
	copy(o.bytes[off:][:len(b)], b)
	return o.gone
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// TestForeign reaches memory of another process by a key, between two that are like it.
func TestForeign(t *testing.T) {
	p := NewKeys(100, rand.Uint32).NewPD()
	var memories [3]*other
	var regions [3]*MR
	for i := range memories {
		memories[i] = &other{bytes: make([]byte, 10000)}
		r, err := p.RegForeignMR(verbs.MRAttr{Length: 10000, Access: allAccess, IOVA: 0x10000*uint64(i+1) + 40}, memories[i])
		if err != nil {
			t.Fatal(err)
		}
		regions[i] = r.(*MR)
		defer regions[i].Close()
	}
	r, m := regions[1], memories[1]
	if r.Addr() != 0x20028 || addrOf(r.Bytes())%4096 != 40 {
		t.Errorf("the region is at %#x, with addresses from %#x on, want 0x20028 and the same place in a page", r.Addr(), addrOf(r.Bytes()))
	}
	open := func(va, n uint64) Span {
		t.Helper()
		s, err := p.Open(r.RKey(), 0, va, n, allAccess)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(0x20028+5000, 4000)
	text := bytes.Repeat([]byte("placed "), 500)
	if err := s.Place(text); err != nil || !bytes.Equal(m.bytes[5000:8500], text) {
		t.Errorf("placed: got %q, %v", m.bytes[5000:5010], err)
	}
	got := make([]byte, 3500)
	if err := s.Fetch(got); err != nil || !bytes.Equal(got, text) {
		t.Errorf("fetched: got %q, %v", got[:10], err)
	}
	s.Release()
	if len(bytes.Trim(memories[0].bytes, "\x00"))+len(bytes.Trim(memories[2].bytes, "\x00")) != 0 {
		t.Error("the regions before and after have bytes of this one")
	}

	// From one such region to another.
	sg := []verbs.SGE{{Addr: regions[0].Addr(), Length: 100, LKey: regions[0].LKey()}}
	copy(memories[0].bytes, "from the first")
	from, err := p.OpenSGE(&sg[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	to := open(0x20028, 100)
	if err := to.PlaceFrom(from); err != nil || string(m.bytes[:14]) != "from the first" {
		t.Errorf("placed from another: got %q, %v", m.bytes[:14], err)
	}
	from.Release()
	to.Release()

	// Atomics of several goroutines.
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 250 {
				w := open(0x20028+1024, 8)
				if _, err := w.FetchAdd(3); err != nil {
					t.Error(err)
				}
				w.Release()
			}
		})
	}
	all.Wait()
	w := open(0x20028+1024, 8)
	if orig, err := w.CompareSwap(3000, 7); err != nil || orig != 3000 {
		t.Errorf("compare and swap: got %d, %v, want 3000", orig, err)
	}
	if orig, err := w.CompareSwap(3000, 8); err != nil || orig != 7 {
		t.Errorf("compare and swap of another value: got %d, %v, want 7", orig, err)
	}
	if orig, err := w.FetchAdd(0); err != nil || orig != 7 {
		t.Errorf("fetch and add: got %d, %v, want 7", orig, err)
	}

	m.gone = errors.New("the process has ended")
	if err := w.Place(make([]byte, 8)); !errors.Is(err, ErrFault) || !errors.Is(err, m.gone) {
		t.Errorf("place in memory that is gone: got %v, want a fault with the cause", err)
	}
	if err := w.Fetch(make([]byte, 8)); !errors.Is(err, ErrFault) {
		t.Errorf("fetch of memory that is gone: got %v, want a fault", err)
	}
	if _, err := w.FetchAdd(1); !errors.Is(err, ErrFault) {
		t.Errorf("fetch and add of memory that is gone: got %v, want a fault", err)
	}
	w.Release()
}

// TestForeignLong copies more than one call does, both ways.
func TestForeignLong(t *testing.T) {
	const n = 3*foreignPiece + 77
	m := &other{bytes: make([]byte, n+5)}
	r, err := NewKeys(100, rand.Uint32).NewPD().RegForeignMR(verbs.MRAttr{Length: n + 5, Access: allAccess}, m)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, err := r.(*MR).pd.Open(r.RKey(), 0, 5, n, allAccess)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	src, got := make([]byte, n), make([]byte, n)
	for i := range src {
		src[i] = byte(i * 7 >> 3)
	}
	if err := s.Place(src); err != nil || !bytes.Equal(m.bytes[5:], src) {
		t.Errorf("place: %v, or other bytes", err)
	}
	if err := s.Fetch(got); err != nil || !bytes.Equal(got, src) {
		t.Errorf("fetch: %v, or other bytes", err)
	}
}

// TestForeignEnds: what has ended is behind no address.
func TestForeignEnds(t *testing.T) {
	p := NewKeys(100, rand.Uint32).NewPD()
	before := 0
	if l := foreigns.list.Load(); l != nil {
		before = len(*l)
	}
	r, err := p.RegForeignMR(verbs.MRAttr{Length: 5, Access: allAccess, IOVA: 4095}, &other{bytes: make([]byte, 5)})
	if err != nil {
		t.Fatal(err)
	}
	b := r.Bytes()
	if foreignAt(b) == nil || foreignAt(b[4:]) == nil || foreignAt(nil) != nil || foreignAt(make([]byte, 1)) != nil {
		t.Error("the addresses of the region, and no others, are those of foreign memory")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(*foreigns.list.Load()); n != before {
		t.Errorf("%d regions of foreign memory are left, want %d", n, before)
	}
}

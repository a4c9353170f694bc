package mem

import (
	"bytes"
	"errors"
	"math/bits"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/adverb-rdma/adverb/verbs"
)

const everything = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// newPD makes a protection domain of a table of its own.
func newPD(t testing.TB) *PD {
	t.Helper()
	k := NewKeys(1<<16, nil)
	t.Cleanup(k.Unpin)
	return k.NewPD()
}

// region registers memory.
func region(t testing.TB, p *PD, a verbs.MRAttr) *Region {
	t.Helper()
	m, err := p.RegMR(a)
	if err != nil {
		t.Fatal(err)
	}
	return m.(*MR).Region
}

// TestOpen: a key opens the bytes of its region and no others, for the access that the region has.
func TestOpen(t *testing.T) {
	p := newPD(t)
	other := p.keys.NewPD()
	buf := make([]byte, 64)
	const rw = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	m := region(t, p, verbs.MRAttr{Buf: buf, Access: rw})
	zero := region(t, p, verbs.MRAttr{Buf: buf, Access: rw | verbs.AccessZeroBased})
	const iova = 0x1000_0000_0000
	moved := region(t, p, verbs.MRAttr{Buf: buf, Access: rw, IOVA: iova, HasIOVA: true})
	wraps := region(t, p, verbs.MRAttr{Buf: buf, Access: rw, IOVA: 1<<64 - 16, HasIOVA: true})
	gone := region(t, p, verbs.MRAttr{Buf: buf, Access: rw})
	gone.Close()
	wrong := uint32(1)
	if uint32(m.lkey)^uint32(m.rkey) == wrong {
		wrong = 2
	}
	if m.base != uint64(uintptr(unsafe.Pointer(&buf[0]))) {
		t.Errorf("base %#x, want the buffer's address, %p", m.base, buf)
	}

	for _, tt := range []struct {
		name string
		m    *Region
		pd   *PD
		key  uint32 // XOR'd
		va   uint64 // beyond the base
		n    uint32
		need verbs.Access
		at   int    // offset in buf that is found
		err  string // or part of the error
		is   error
	}{
		{name: "whole", m: m, n: 64, need: rw},
		{name: "last byte", m: m, va: 63, n: 1, at: 63},
		{name: "nothing at the end", m: m, va: 64, n: 0, at: 64},
		{name: "nothing behind the end", m: m, va: 65, n: 0, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "one byte too long", m: m, n: 65, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "across the end", m: m, va: 60, n: 5, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "one byte before", m: m, va: 1<<64 - 1, n: 1, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "from before into it", m: m, va: 1<<64 - 8, n: 16, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "longest", m: m, n: 1<<32 - 1, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "far address", m: m, va: 1 << 63, n: 1<<32 - 1, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "zero-based", m: zero, va: 8, n: 56, at: 8},
		{name: "zero-based behind", m: zero, va: 8, n: 57, err: "outside the memory region, [0x0, 0x40)", is: verbs.ErrInvalid},
		{name: "iova", m: moved, va: 16, n: 48, at: 16},
		{name: "iova before", m: moved, va: 1<<64 - 1, n: 1, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "wrapping iova, before 2^64", m: wraps, va: 8, n: 8, at: 8},
		{name: "wrapping iova, across 2^64", m: wraps, va: 12, n: 8, at: 12},
		{name: "wrapping iova, behind 2^64", m: wraps, va: 16, n: 48, at: 16},
		{name: "wrapping iova, outside", m: wraps, va: 16, n: 49, err: "outside the memory region", is: verbs.ErrInvalid},
		{name: "lkey", m: m, key: uint32(m.lkey) ^ uint32(m.rkey), n: 1, err: "is the lkey of a memory region: a peer needs its rkey", is: verbs.ErrNotFound},
		{name: "key's low bits", m: m, key: wrong, n: 1, err: "no such memory region", is: verbs.ErrNotFound},
		{name: "key's high bits", m: m, key: 1 << 31, n: 1, err: "no such memory region", is: verbs.ErrNotFound},
		{name: "closed", m: gone, n: 1, err: "was it deregistered", is: verbs.ErrNotFound},
		{name: "another PD", m: m, pd: other, n: 1, err: "another PD", is: verbs.ErrInvalid},
		{name: "missing access", m: m, n: 1, need: verbs.AccessRemoteRead, err: "ACCESS_REMOTE_READ is needed", is: verbs.ErrInvalid},
		{name: "access in part", m: m, n: 1, need: rw | verbs.AccessRemoteAtomic, err: "is needed", is: verbs.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			domain := p
			if tt.pd != nil {
				domain = tt.pd
			}
			s, err := domain.Open(tt.m.rkey^verbs.RKey(tt.key), 1, tt.m.base+tt.va, uint64(tt.n), tt.need)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, tt.is) {
					t.Errorf("error %v, want one with %q that is %v", err, tt.err, tt.is)
				}
				if n := tt.m.gate.users.Load(); n != 0 && n != gateClosed {
					t.Errorf("%d users after a failure, want none", n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if b := s.Bytes(); s.region != tt.m || len(b) != int(tt.n) || len(b) > 0 && &b[0] != &buf[tt.at] {
				t.Errorf("opened %d bytes elsewhere, want %d at offset %d", len(b), tt.n, tt.at)
			}
			if n := tt.m.gate.users.Load(); n != 1 {
				t.Errorf("%d users while in use, want 1", n)
			}
			s.Release()
		})
	}
}

// TestKeys: keys are random in all their bits, and no two are the same. An MR's lkey is not its rkey.
func TestKeys(t *testing.T) {
	p := newPD(t)
	buf := make([]byte, 8)
	seen := make(map[uint32]bool)
	var or, and uint32 = 0, 1<<32 - 1
	for range 200 {
		m := region(t, p, verbs.MRAttr{Buf: buf})
		for _, key := range []uint32{uint32(m.LKey()), uint32(m.RKey())} {
			if seen[key] {
				t.Fatalf("lkey %v and rkey %v; want new keys", m.LKey(), m.RKey())
			}
			seen[key] = true
			or, and = or|key, and&key
		}
	}
	// The upper 12 bits are those of one block, chosen at random once.
	if low := uint32(1<<20 - 1); or&low != low || and&low != 0 {
		t.Errorf("bits %#x are never set, %#x always; want none", ^or&low, and&low)
	}
}

// TestAllocMR: allocated memory is zeroed and starts on a page.
func TestAllocMR(t *testing.T) {
	p := newPD(t)
	for _, n := range []int{1, 4095, 4096, 4097, 1 << 20} {
		m := region(t, p, verbs.MRAttr{Length: n, Access: everything})
		b := m.Bytes()
		if len(b) != n || m.Addr()%uint64(os.Getpagesize()) != 0 {
			t.Errorf("%d bytes: %d at %#x, want them to start on a page", n, len(b), m.Addr())
		}
		if !bytes.Equal(b, make([]byte, n)) {
			t.Errorf("%d new bytes are not zero, want zeros", n)
		}
		b[n-1]++
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if runtime.GOOS == "linux" && bits.UintSize == 64 { // a host may have as much as an int of 32 bits can count
		if m, err := p.RegMR(verbs.MRAttr{Length: 1 << (bits.UintSize - 4)}); !errors.Is(err, verbs.ErrLimit) {
			t.Errorf("2^60 bytes: %v, %v; want ErrLimit", m, err)
		}
	}
}

// TestMRCloseWaits: Close waits until the last span is released, and lets no new one open.
func TestMRCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := region(t, newPD(t), verbs.MRAttr{Length: 4096})
		m.hold()
		m.hold()
		var closed atomic.Bool
		go func() {
			m.Close()
			closed.Store(true)
		}()
		synctest.Wait()
		for range 2 {
			if closed.Load() {
				t.Fatal("Close returned while a span is open")
			}
			if m.hold() {
				t.Fatal("a closing region was held")
			}
			if _, err := m.pd.Open(m.RKey(), 1, m.base, 1, 0); err == nil {
				t.Fatal("a closing region was opened")
			}
			m.release()
			synctest.Wait()
		}
		if !closed.Load() {
			t.Fatal("Close did not return when the last span was released")
		}
		for range 2 {
			if m.hold() {
				t.Fatal("a closed region was held")
			}
		}
	})
}

// TestMRCloseConcurrent: a packet that comes while a region is being closed either uses the region
// before that or does not find it.
func TestMRCloseConcurrent(t *testing.T) {
	p := newPD(t)
	const users = 4
	for range 300 {
		m := region(t, p, verbs.MRAttr{Length: 64})
		var wg sync.WaitGroup
		for range users {
			wg.Go(func() {
				for m.hold() {
					m.buf[0:1][0]++ // faults when the memory is gone
					m.release()
					break
				}
				for range 20 {
					if m.hold() {
						m.release()
					}
				}
			})
		}
		m.Close()
		wg.Wait()
	}
}

// TestUnpin: after Unpin regions still work, and their Close succeeds.
func TestUnpin(t *testing.T) {
	p := newPD(t)
	m, n := region(t, p, verbs.MRAttr{Length: 8}), region(t, p, verbs.MRAttr{Buf: make([]byte, 8)})
	p.keys.Unpin()
	for _, r := range []*Region{m, n} {
		r.buf[0]++
		if err := r.Close(); err != nil {
			t.Errorf("Close after Unpin: %v, want no error", err)
		}
	}
	if n := p.keys.Len(); n != 0 {
		t.Errorf("%d regions are left, want none", n)
	}
}

// TestLimit: regions and windows share the limit of a device.
func TestLimit(t *testing.T) {
	k := NewKeys(1, nil)
	p := k.NewPD()
	region(t, p, verbs.MRAttr{Length: 1})
	for _, add := range []func() error{
		func() error { _, err := p.RegMR(verbs.MRAttr{Length: 1}); return err },
		func() error { _, err := p.AllocMW(verbs.MWType2); return err },
	} {
		if err := add(); !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), "max_mr") {
			t.Errorf("%v, want ErrLimit that names max_mr", err)
		}
	}
}

// TestSeed: keys that come from a source with a seed are the same again, those of windows included.
// Without a source, or with another seed, they differ.
func TestSeed(t *testing.T) {
	keys := func(random func() uint32) (keys [20]uint32) {
		p := NewKeys(len(keys), random).NewPD()
		for i := 0; i < len(keys); i += 2 {
			r := region(t, p, verbs.MRAttr{Length: 1})
			keys[i] = uint32(r.lkey) ^ uint32(r.rkey)<<16
			w, err := p.AllocMW(verbs.MWType2)
			if err != nil {
				t.Fatal(err)
			}
			keys[i+1] = uint32(w.RKey())
		}
		return keys
	}
	seed := func(n uint64) func() uint32 { return rand.New(rand.NewPCG(1, n)).Uint32 }
	want := keys(seed(2))
	if got := keys(seed(2)); got != want {
		t.Errorf("keys %#08x from the same seed, want %#08x", got, want)
	}
	if got := keys(seed(3)); got == want {
		t.Errorf("keys %#08x from another seed, want others", got)
	}
	if a, b := keys(nil), keys(nil); a == b {
		t.Errorf("keys %#08x twice without a source, want others", a)
	}
}

// TestGatherScatter: lists of any lengths, from any offset.
func TestGatherScatter(t *testing.T) {
	p := newPD(t)
	rnd := rand.New(rand.NewPCG(3, 4))
	buf := make([]byte, 64)
	m := region(t, p, verbs.MRAttr{Buf: buf, Access: verbs.AccessLocalWrite})
	for range 2000 {
		var sg []verbs.SGE
		var list []int // offsets in buf of the list's bytes
		for range rnd.IntN(5) {
			off := rnd.IntN(len(buf))
			n := rnd.IntN(min(9, len(buf)-off))
			sg = append(sg, verbs.SGE{Addr: m.base + uint64(off), Length: uint32(n), LKey: m.LKey()})
			for i := range n {
				list = append(list, off+i)
			}
		}
		off := rnd.IntN(len(list) + 1)
		part := list[off : off+rnd.IntN(len(list)-off+1)]
		for i := range buf {
			buf[i] = byte(i)
		}
		got := make([]byte, len(part))
		if err := p.Gather(got, sg, uint32(off)); err != nil {
			t.Fatal(err)
		}
		for i, at := range part {
			if got[i] != byte(at) {
				t.Fatalf("gather %d bytes at %d of %+v: byte %d is %d, want %d", len(part), off, sg, i, got[i], at)
			}
		}
		want := bytes.Clone(buf)
		for i, at := range part {
			got[i] = byte(100 + i)
			want[at] = got[i]
		}
		if err := p.Scatter(sg, uint32(off), got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buf, want) {
			t.Fatalf("scatter %d bytes at %d of %+v: %v, want %v", len(part), off, sg, buf, want)
		}
	}
	if n := m.gate.users.Load(); n != 0 {
		t.Errorf("%d spans are open, want none", n)
	}
}

// TestListFaults: errors name the SGE, and leave nothing open.
func TestListFaults(t *testing.T) {
	p := newPD(t)
	rw := region(t, p, verbs.MRAttr{Length: 8, Access: verbs.AccessLocalWrite})
	ro := region(t, p, verbs.MRAttr{Length: 8})
	w, _ := p.AllocMW(verbs.MWType2)
	good := verbs.SGE{Addr: rw.base, Length: 8, LKey: rw.LKey()}
	for name, bad := range map[string]verbs.SGE{
		"read only":    {Addr: ro.base, Length: 8, LKey: ro.LKey()},
		"too long":     {Addr: rw.base, Length: 9, LKey: rw.LKey()},
		"no key":       {Addr: rw.base, Length: 8, LKey: 0},
		"window's key": {Addr: rw.base, Length: 8, LKey: verbs.LKey(w.RKey())},
	} {
		err := p.Scatter([]verbs.SGE{good, bad}, 0, make([]byte, 17))
		if err == nil || !strings.Contains(err.Error(), "SGE 1: ") {
			t.Errorf("%s: error %v, want one that names SGE 1", name, err)
		}
		spans, err := p.OpenList(nil, []verbs.SGE{good, bad}, 0, 17, verbs.AccessLocalWrite)
		if len(spans) != 0 || err == nil || !strings.Contains(err.Error(), "SGE 1: ") {
			t.Errorf("%s: opened %d spans, error %v; want none, and an error that names SGE 1", name, len(spans), err)
		}
	}
	for _, r := range []*Region{rw, ro} {
		if n := r.gate.users.Load(); n != 0 {
			t.Errorf("%d spans are open, want none", n)
		}
	}
}

// TestSpanAllocs: opening memory and copying allocates nothing.
func TestSpanAllocs(t *testing.T) {
	p := newPD(t)
	m := region(t, p, verbs.MRAttr{Length: 64, Access: everything})
	b := make([]byte, 64)
	sg := []verbs.SGE{{Addr: m.base, Length: 32, LKey: m.LKey()}, {Addr: m.base + 32, Length: 32, LKey: m.LKey()}}
	if n := testing.AllocsPerRun(100, func() {
		s, err := p.Open(m.RKey(), 1, m.base, 64, verbs.AccessRemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		s.Place(b)
		s.Fetch(b)
		s.FetchAdd(1)
		s.Release()
		p.Gather(b, sg, 1)
		p.Scatter(sg, 1, b[:60])
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

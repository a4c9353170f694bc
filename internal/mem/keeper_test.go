package mem

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// closing closes a region beside the test, and returns where it says that it has.
func closing(t *testing.T, r *Region) (closed *bool) {
	t.Helper()
	closed = new(bool)
	go func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		*closed = true
	}()
	synctest.Wait()
	return closed
}

// wantClosed checks whether a region has closed.
func wantClosed(t *testing.T, what string, closed *bool, want bool) {
	t.Helper()
	if synctest.Wait(); *closed != want {
		t.Errorf("%s: the region has closed: %v, want %v", what, *closed, want)
	}
}

// TestKeeper: until Release the region that was opened last stays in place, and no other. Each access is
// checked as ever.
func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPD(t)
		other := p.keys.NewPD()
		k := new(Keeper)
		open := func(p *PD, r *Region, n uint64) error {
			s, err := k.Open(p, r.RKey(), 1, r.Addr(), n, verbs.AccessRemoteWrite)
			s.Release()
			return err
		}

		register := func() *Region { return region(t, p, verbs.MRAttr{Buf: make([]byte, 64), Access: everything}) }
		a, b, c := register(), register(), register()
		for range 2 { // held, and then kept
			if err := open(p, a, 64); err != nil {
				t.Error(err)
			}
			if err := open(p, a, 65); !errors.Is(err, ErrBounds) {
				t.Errorf("beyond the end: %v, want ErrBounds", err)
			}
			if err := open(other, a, 1); !errors.Is(err, ErrDomain) {
				t.Errorf("by another protection domain: %v, want ErrDomain", err)
			}
		}
		sg := []verbs.SGE{{Addr: a.Addr(), Length: 8, LKey: a.LKey()}, {Addr: b.Addr(), Length: 8, LKey: b.LKey()}}
		if err := k.Gather(p, make([]byte, 16), sg, 0); err != nil {
			t.Error(err)
		}
		first := closing(t, a)
		wantClosed(t, "after another was opened", first, true)
		second := closing(t, b)
		wantClosed(t, "while it is kept", second, false)
		if err := open(p, b, 1); err == nil {
			t.Error("a region that is closing, and kept: no error, want its keys to be gone")
		}
		k.Release()
		wantClosed(t, "after Release", second, true)

		if err := open(p, c, 1); err != nil {
			t.Error(err)
		}
		third := closing(t, c)
		wantClosed(t, "while it alone is kept", third, false)
		k.Release()
		wantClosed(t, "after Release again", third, true)
		k.Release() // once more does nothing

		k = nil
		d := register()
		if err := open(p, d, 1); err != nil {
			t.Error(err)
		}
		fourth := closing(t, d)
		wantClosed(t, "without a keeper", fourth, true)
	})
}

// A bubbleLock is a lock for which goroutines of a synctest bubble can be seen to wait.
type bubbleLock chan struct{}

func (l bubbleLock) Lock()   { l <- struct{}{} }
func (l bubbleLock) Unlock() { <-l }

// TestKeeperLock: a region that is opened often under a lock stays in place until the lock is given back, without being
// held. A region that is not opened often, or was before, does not wait for the lock.
func TestKeeperLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPD(t)
		lock := make(bubbleLock, 1)
		k := NewKeeper(lock)
		open := func(r *Region) error {
			s, err := k.Open(p, r.RKey(), 1, r.Addr(), 64, verbs.AccessRemoteWrite)
			s.Release()
			k.Release() // which is for the other kind
			return err
		}
		often := func(r *Region) {
			t.Helper()
			for range keepFrom {
				if err := open(r); err != nil {
					t.Fatal(err)
				}
			}
		}
		register := func() *Region { return region(t, p, verbs.MRAttr{Buf: make([]byte, 64), Access: everything}) }

		lock.Lock()
		seldom := register()
		for range keepFrom - 1 {
			if err := open(seldom); err != nil {
				t.Fatal(err)
			}
		}
		wantClosed(t, "one that was opened less often", closing(t, seldom), true)
		one, other := register(), register()
		for range keepFrom {
			if err := errors.Join(open(one), open(other)); err != nil {
				t.Fatal(err)
			}
		}
		wantClosed(t, "one of two that are used in turn", closing(t, other), true)

		first, second, third := register(), register(), register()
		often(first)
		s, err := k.OpenSGE(p, &verbs.SGE{Addr: first.Addr(), Length: 64, LKey: first.LKey()}, verbs.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		if n := first.gate.users.Load(); n != 0 {
			t.Errorf("a region that is kept has %d users, want none: nothing is counted", n)
		}
		s.Release() // does nothing
		if _, err := k.Open(p, first.RKey(), 1, first.Addr(), 65, 0); !errors.Is(err, ErrBounds) {
			t.Errorf("beyond the end of what is kept: %v, want ErrBounds", err)
		}
		closed := closing(t, first)
		wantClosed(t, "while the lock is held", closed, false)
		if err := open(first); err == nil {
			t.Error("a region that closes: no error, want its keys to be gone")
		}
		if err := k.Gather(p, make([]byte, 64), []verbs.SGE{{Addr: first.Addr(), Length: 64, LKey: first.LKey()}}, 0); err == nil {
			t.Error("memory of a region that closes is read, want its key to be gone")
		}
		if _, err := p.openRegion(k, first, uint32(first.LKey()), first.Addr(), 1, 0); err == nil {
			t.Error("a region that closes, found before its keys went: no error, want one")
		}
		lock.Unlock()
		wantClosed(t, "after the lock was given back", closed, true)

		lock.Lock()
		often(second)
		often(third)
		wantClosed(t, "one that another has followed", closing(t, second), true)
		k.Forget()
		if err := open(third); err != nil {
			t.Error(err)
		}
		wantClosed(t, "after Forget", closing(t, third), true)
		lock.Unlock()
	})
}

// TestKeeperPiece: lists of one SGE in a region that is kept are copied as any are, and refused as any are.
func TestKeeperPiece(t *testing.T) {
	p := newPD(t)
	other := p.keys.NewPD()
	var lock sync.Mutex
	k := NewKeeper(&lock)
	lock.Lock()
	defer lock.Unlock()
	rw := region(t, p, verbs.MRAttr{Buf: make([]byte, 64), Access: everything})
	ro := region(t, p, verbs.MRAttr{Buf: make([]byte, 64)})
	keep := func(r *Region) verbs.SGE {
		e := verbs.SGE{Addr: r.Addr(), Length: 64, LKey: r.LKey()}
		for range keepFrom {
			if err := k.Gather(p, make([]byte, 64), []verbs.SGE{e}, 0); err != nil {
				t.Fatal(err)
			}
		}
		if k.region != r {
			t.Fatal("the region is not kept after it was used often")
		}
		return e
	}

	e := keep(rw)
	for i := range rw.buf {
		rw.buf[i] = byte(i)
	}
	part := []verbs.SGE{{Addr: e.Addr + 8, Length: 24, LKey: e.LKey}}
	got := make([]byte, 16)
	if err := k.Gather(p, got, part, 4); err != nil || !bytes.Equal(got, rw.buf[12:28]) {
		t.Errorf("got %v, %v, want bytes 12 to 27", got, err)
	}
	if err := k.Scatter(p, part, 8, bytes.Repeat([]byte{0xff}, 16)); err != nil {
		t.Error(err)
	}
	for i, b := range rw.buf {
		if want := i >= 16 && i < 32; (b == 0xff) != want {
			t.Errorf("byte %d is %#x, want it written: %v", i, b, want)
		}
	}
	got = make([]byte, 40)
	if err := k.Gather(p, got, []verbs.SGE{part[0], e}, 0); err != nil || !bytes.Equal(got[24:], rw.buf[:16]) {
		t.Errorf("got %v, %v, want what the second SGE names behind the first", got, err)
	}
	got = bytes.Repeat([]byte{0xee}, 40)
	if err := k.Gather(p, got, part, 0); err != nil || !bytes.Equal(got[:24], rw.buf[8:32]) || got[24] != 0xee {
		t.Errorf("got %v, %v, want the bytes of the list and no more", got, err)
	}
	for name, tt := range map[string]struct {
		pd   *PD
		e    verbs.SGE
		want error
	}{
		"of another protection domain": {other, e, ErrDomain},
		"beyond the end":               {p, verbs.SGE{Addr: e.Addr + 1, Length: 64, LKey: e.LKey}, ErrBounds},
		"another key":                  {p, verbs.SGE{Addr: e.Addr, Length: 64, LKey: e.LKey ^ 1}, verbs.ErrNotFound},
	} {
		if err := k.Gather(tt.pd, make([]byte, 64), []verbs.SGE{tt.e}, 0); !errors.Is(err, tt.want) {
			t.Errorf("Gather %s: %v, want %v", name, err, tt.want)
		}
		if err := k.Scatter(tt.pd, []verbs.SGE{tt.e}, 0, make([]byte, 64)); !errors.Is(err, tt.want) {
			t.Errorf("Scatter %s: %v, want %v", name, err, tt.want)
		}
		if _, err := k.OpenSGE(tt.pd, &tt.e, 0); !errors.Is(err, tt.want) {
			t.Errorf("OpenSGE %s: %v, want %v", name, err, tt.want)
		}
	}
	e = keep(ro)
	if err := k.Scatter(p, []verbs.SGE{e}, 0, make([]byte, 64)); !errors.Is(err, ErrAccess) {
		t.Errorf("Scatter to what may only be read: %v, want ErrAccess", err)
	}
	if _, err := k.OpenSGE(p, &e, verbs.AccessLocalWrite); !errors.Is(err, ErrAccess) || !strings.Contains(err.Error(), "has no access flags, and ACCESS_LOCAL_WRITE is needed") {
		t.Errorf("OpenSGE for writing of what may only be read: %v, want ErrAccess, and which flag is missing", err)
	}
}

// TestKeeperFold: a Keeper folds all bytes that it has copied, from memory that begins with a cache line.
func TestKeeperFold(t *testing.T) {
	const n = 2048
	p := newPD(t)
	r := region(t, p, verbs.MRAttr{Buf: make([]byte, 4*n), Access: everything})
	const seed = 1
	rnd := rand.NewPCG(seed, 0)
	for i := range r.buf {
		r.buf[i] = byte(rnd.Uint64())
	}
	base := -r.Addr() % lineSize // of the first line
	sge := func(off uint64, length int) verbs.SGE {
		return verbs.SGE{Addr: r.Addr() + off, Length: uint32(length), LKey: r.LKey()}
	}
	flow := wire.NewFlow(netip.MustParseAddrPort("192.0.2.1:49152"), netip.MustParseAddrPort("192.0.2.2:4791"))
	for _, sg := range [][]verbs.SGE{
		{sge(base, n)},
		{sge(base+8, n)},
		{sge(base, n/2), sge(base+n, n/2)},
		{sge(base, n/2-1), sge(base+n, n/2+1)},
		{sge(base, 3), sge(base+n, n/2)}, // a pad follows
		{sge(base, 3), sge(base+n, n)},
	} {
		length := 0
		for _, e := range sg {
			length += int(e.Length)
		}
		var fold wire.Fold
		k := &Keeper{Fold: &fold}
		datagram := make([]byte, wire.BTHSize+length+int(wire.PadCount(length))+wire.ICRCSize)
		payload := datagram[wire.BTHSize:][:length]
		if err := k.Gather(p, payload, sg, 0); err != nil {
			t.Fatal(err)
		}
		k.Release()
		want := make([]byte, length)
		if err := p.Gather(want, sg, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(payload, want) {
			t.Errorf("%v: the copy is not what the memory has", sg)
		}
		if flow.SealFolded(0, datagram, &fold); !flow.Verify(0, datagram) {
			t.Errorf("%v: the ICRC is wrong", sg)
		}

		s, err := p.OpenSGE(&sg[len(sg)-1], 0)
		if err != nil {
			t.Fatal(err)
		}
		fold.Reset()
		last := datagram[wire.BTHSize:][:sg[len(sg)-1].Length]
		k.Fetch(s, last)
		if !bytes.Equal(last, s.Bytes()) {
			t.Errorf("%v: Fetch copies something else than the memory has", sg)
		}
		s.Release()
	}
}

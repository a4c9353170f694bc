//go:build !adverb_portable

package mem

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestLend: lent bytes are in the region's file where the loan says, and others can read the file and do nothing
// else with it.
func TestLend(t *testing.T) {
	d := newDomain(t)
	p := d.PD
	const size = ownLeast + 100
	r := region(t, p, verbs.MRAttr{Length: size, Access: everything})
	moved := region(t, p, verbs.MRAttr{Length: size, IOVA: 1 << 40, HasIOVA: true})
	withFewSmall(t)
	first := region(t, p, verbs.MRAttr{Length: 4096, Access: everything})
	t.Cleanup(func() { first.Close() })
	for range ownSmall {
		r := region(t, p, verbs.MRAttr{Length: 4096})
		t.Cleanup(func() { r.Close() })
	}
	small := region(t, p, verbs.MRAttr{Length: 4096, Access: everything})
	own := region(t, p, verbs.MRAttr{Buf: make([]byte, size), Access: everything})
	local := region(t, p, verbs.MRAttr{Length: size})
	sge := func(r *Region, off, n uint64) verbs.SGE {
		return verbs.SGE{Addr: r.base + off, Length: uint32(n), LKey: r.lkey}
	}
	gone := sge(closedRegion(t, p, size), 0, 10)
	granted, window := d.readWindow(t, size)
	if s, err := p.Open(window, qpn, granted.Addr(), 50, verbs.AccessRemoteRead); err != nil {
		t.Error(err)
	} else {
		s.Release()
	}
	for _, tt := range []struct {
		name string
		sg   []verbs.SGE
		rkey verbs.RKey // in place of sg
		off  uint64
		n    uint32
		of   *Region // that lends; nil where nothing is lent
		at   uint64
	}{
		{name: "all", sg: []verbs.SGE{sge(r, 0, size)}, n: size, of: r},
		{name: "a part", sg: []verbs.SGE{sge(r, 10, 90)}, off: 5, n: 85, of: r, at: 15},
		{name: "of the second SGE", sg: []verbs.SGE{sge(small, 0, 10), sge(r, 100, 90)}, off: 15, n: 85, of: r, at: 105},
		{name: "with addresses of its own", sg: []verbs.SGE{sge(moved, 10, 90)}, off: 5, n: 85, of: moved, at: 15},
		{name: "across SGEs", sg: []verbs.SGE{sge(r, 0, 10), sge(r, 10, 10)}, n: 20},
		{name: "behind the list", sg: []verbs.SGE{sge(r, 0, 10)}, off: 10, n: 1},
		{name: "no list", n: 1},
		{name: "one of few small ones", sg: []verbs.SGE{sge(first, 0, 90)}, off: 5, n: 85, of: first, at: 5},
		{name: "out of a slab", sg: []verbs.SGE{sge(small, 0, 10)}, n: 10},
		{name: "the program's memory", sg: []verbs.SGE{sge(own, 0, 10)}, n: 10},
		{name: "out of bounds", sg: []verbs.SGE{sge(r, size-5, 10)}, n: 10},
		{name: "a closed region", sg: []verbs.SGE{gone}, n: 10},
		{name: "to a READ", rkey: r.rkey, off: r.base + 30, n: 50, of: r, at: 30},
		{name: "to a READ of a window", rkey: window, off: granted.Addr(), n: 50},
		{name: "to a READ that is not allowed", rkey: local.rkey, off: local.base, n: 50},
		{name: "to a READ out of a slab", rkey: small.rkey, off: small.base, n: 50},
		{name: "to a READ of nothing", rkey: r.rkey + 1<<keyBits, off: r.base, n: 50},
	} {
		var l Loan
		var ok bool
		if tt.rkey != 0 {
			l, ok = p.LendRemote(tt.rkey, qpn, tt.off, uint64(tt.n))
		} else {
			l, ok = p.Lend(tt.sg, uint32(tt.off), tt.n)
		}
		switch {
		case tt.of == nil && ok:
			t.Errorf("%s: lent, want a refusal", tt.name)
		case tt.of != nil && (!ok || l.File != tt.of.lent || l.Off != tt.at):
			t.Errorf("%s: got %v, file %p at %d; want file %p at %d", tt.name, ok, l.File, l.Off, tt.of.lent, tt.at)
		}
		l.Release()
	}
	for _, r := range []*Region{granted.Provider().(*MR).Region, r, small, own, local} {
		if n := r.gate.users.Load(); n != 0 { // Close would wait for them
			t.Errorf("%d spans of a region are open after all that was lent is back, and what was refused; want none", n)
		}
	}

	f := r.lent
	if f.ID == moved.lent.ID {
		t.Error("two regions have files of one name")
	}
	theirs, err := unix.Mmap(f.FD, 0, int(f.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(theirs)
	if r.Bytes()[1234] = 56; theirs[1234] != 56 {
		t.Error("another mapping of the file does not show the region's memory")
	}
	// Those can write to the memory who may by the region's rights.
	readable := region(t, p, verbs.MRAttr{Length: size, Access: verbs.AccessLocalWrite | verbs.AccessRemoteRead})
	for _, tt := range []struct {
		of    *Region
		write bool
	}{{r, true}, {readable, false}, {local, false}} {
		f := tt.of.lent
		b, err := unix.Mmap(f.FD, 0, int(f.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil != tt.write {
			t.Errorf("%v: others map the file to write there: %v, want that to succeed: %v", tt.of.access, err, tt.write)
		}
		if err == nil {
			unix.Munmap(b)
		}
		if _, err := unix.Pwrite(f.FD, []byte{1}, 0); err == nil != tt.write {
			t.Errorf("%v: others write to the file: %v, want that to succeed: %v", tt.of.access, err, tt.write)
		}
		if err := unix.Ftruncate(f.FD, 0); err == nil {
			t.Errorf("%v: others can shrink the file, want an error", tt.of.access)
		}
	}
}

// withFewSmall has a test find no small region but its own. Other tests leave theirs open, and so does this one's first run
// of two.
func withFewSmall(t *testing.T) {
	add := func(n int) (was int) {
		memory.mu.Lock()
		defer memory.mu.Unlock()
		was = memory.small
		memory.small += n
		return was
	}
	was := add(0)
	add(-was)
	t.Cleanup(func() { add(was) })
}

// closedRegion returns a region that was closed.
func closedRegion(t *testing.T, p *PD, size int) *Region {
	t.Helper()
	r := region(t, p, verbs.MRAttr{Length: size})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return r
}

// readWindow returns a region, and the key of a window by which all of it can be read.
func (d *domain) readWindow(t *testing.T, size int) (*verbs.MR, verbs.RKey) {
	t.Helper()
	mr, err := d.user.AllocMR(size, bindable)
	if err != nil {
		t.Fatal(err)
	}
	return mr, d.bind(verbs.MWBind{MW: d.mw(verbs.MWType1), MR: mr, Addr: mr.Addr(), Length: uint64(size), Access: verbs.AccessRemoteRead})
}

// TestShare: a region that has a file of its own is shared by its rkey, with its addresses and rights, within its
// protection domain.
func TestShare(t *testing.T) {
	d := newDomain(t)
	p := d.PD
	const size = ownLeast + 100
	r := region(t, p, verbs.MRAttr{Length: size, Access: everything, IOVA: 1 << 40, HasIOVA: true})
	own := region(t, p, verbs.MRAttr{Buf: make([]byte, size), Access: everything})
	closed := closedRegion(t, p, size)
	granted, window := d.readWindow(t, size)
	s, ok := p.Share(r.rkey)
	if !ok || s.File != r.lent || s.Base != 1<<40 || s.Access != everything || len(s.Bytes()) != size {
		t.Fatalf("got %v, %+v; want all of the region", ok, s)
	}
	closing := make(chan error)
	go func() { closing <- r.Close() }()
	for deadline := time.Now().Add(patience); r.gate.users.Load() >= 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d users after %v, want Close to have shut the gate", r.gate.users.Load(), patience)
		}
	}
	select {
	case <-closing:
		t.Error("the region is closed while it is being shared")
	default:
	}
	s.Release()
	if err := <-closing; err != nil {
		t.Error(err)
	}
	for name, key := range map[string]verbs.RKey{
		"the program's memory": own.rkey, "a closed region": closed.rkey, "the one that has just closed": r.rkey, "a window": window, "an lkey": verbs.RKey(granted.LKey()), "a key that is mangled": granted.RKey() ^ 1<<7, "nothing": 1,
	} {
		if _, ok := p.Share(key); ok {
			t.Errorf("%s is shared, want it refused", name)
		}
	}
	if _, ok := p.keys.NewPD().Share(verbs.RKey(granted.RKey())); ok {
		t.Error("a region of another protection domain is shared")
	}
}

// mapAsPeer maps a file as a process does that may write to it, until the test ends.
func mapAsPeer(t *testing.T, f *File) []byte {
	t.Helper()
	b, err := unix.Mmap(f.FD, 0, int(f.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// TestDetach: memory that was taken away from others keeps its contents, and bytes that they write there from then
// on do not appear. They hear of it before, and the region is not lent or shared any more. It works, and closes, as
// ever.
func TestDetach(t *testing.T) {
	d := newDomain(t)
	const size = 64 << 10
	r := region(t, d.PD, verbs.MRAttr{Length: size, Access: everything})
	f := r.lent
	theirs := mapAsPeer(t, f)
	for i := range theirs {
		theirs[i] = byte(i / 100)
	}
	const from, n = 4 * 4096, 3 * 4096
	told := 0
	f.Watch(t, func() (off, n uint64) {
		told++
		was := theirs[from]
		if theirs[from] = 0xdd; r.Bytes()[from] != 0xdd {
			t.Error("what others write before they hear of it is lost")
		}
		theirs[from] = was
		return 0, 0
	})
	f.Detach(from, n)
	f.Detach(from, n)
	for i := from; i < from+n; i++ {
		theirs[i] = 0xee
	}
	for i, b := range r.Bytes() {
		if b != byte(i/100) {
			t.Fatalf("byte %d is %#x, want %#x as before", i, b, byte(i/100))
		}
	}
	if r.Bytes()[5] = 0xcc; theirs[5] == 0xcc {
		t.Error("others see what is written")
	}
	if told != 1 {
		t.Errorf("who watches was told %d times, want once", told)
	}
	if s, ok := d.Share(r.rkey); ok {
		t.Error("the region is shared")
		s.Release()
	}
	if l, ok := d.Lend([]verbs.SGE{{Addr: r.base, Length: 100, LKey: r.lkey}}, 0, 100); ok {
		t.Error("the region is lent")
		l.Release()
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestDetachTwice: of two that do not stop writing neither changes the memory any more, wherever each of them is. A
// container that is paused stops all of its processes, and so peers in the middle of operations.
func TestDetachTwice(t *testing.T) {
	d := newDomain(t)
	const size, n = 64 << 10, 4096
	r := region(t, d.PD, verbs.MRAttr{Length: size, Access: everything})
	f := r.lent
	theirs := mapAsPeer(t, f)
	told := 0
	for i := range 8 {
		f.Watch(i, func() (off, bytes uint64) {
			if i == 0 { // of another one that does not stop
				return 2 * n, n
			}
			if theirs[2*n] = 1; r.Bytes()[2*n] == 1 {
				told++
			}
			theirs[2*n] = 0
			return 0, 0
		})
	}
	f.Detach(0, n)
	if told != 7 {
		t.Errorf("of 7 others %d have written what the region has, want all", told)
	}
	f.Detach(4*n, n)
	for _, off := range []int{0, 2 * n, 4 * n} {
		if theirs[off] = 0xee; r.Bytes()[off] != 0 {
			t.Errorf("what is written at byte %d appears, want the memory to be as it was", off)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestDetachBesideClose: a QP may end a grant while the program closes the region.
func TestDetachBesideClose(t *testing.T) {
	d := newDomain(t)
	r := region(t, d.PD, verbs.MRAttr{Length: 64 << 10, Access: everything})
	detached := make(chan struct{})
	go func() {
		r.lent.Detach(0, 64<<10)
		close(detached)
	}()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	<-detached
	r.lent.Detach(0, 64<<10) // and one that ends late
}

// TestLendEnds: whoever watches a file is told when its region is closed or registered anew, unless the watch has
// ended.
func TestLendEnds(t *testing.T) {
	d := newDomain(t)
	for name, end := range map[string]func(registered){
		"close": func(m registered) {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		},
		"rereg": func(m registered) { m.rereg(verbs.ReregAccess, d, verbs.MRAttr{Buf: m.Bytes(), Access: everything}) },
	} {
		m := d.reg(verbs.MRAttr{Length: ownLeast + 1, Access: everything})
		var told []string
		f := m.lent
		f.Watch("a", func() (off, n uint64) { told = append(told, "a"); return 0, 0 })
		f.Watch("b", func() (off, n uint64) { told = append(told, "b"); return 0, 0 })()
		if end(m); len(told) != 1 || told[0] != "a" {
			t.Errorf("%s: %v were told, want a", name, told)
		}
	}
}

package mem

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// memoryDevice is as much of a device as package verbs needs for regions and windows.
type memoryDevice struct {
	verbs.ProviderDevice
	keys *Keys
	last *PD // that AllocPD has made
}

type memoryPD struct {
	verbs.ProviderPD
	*PD
}

func (*memoryDevice) Info() verbs.DeviceInfo           { return verbs.DeviceInfo{Name: "memory"} }
func (*memoryDevice) Query() (verbs.DeviceAttr, error) { return verbs.DeviceAttr{}, nil }

func (d *memoryDevice) AllocPD() (verbs.ProviderPD, error) {
	d.last = d.keys.NewPD()
	return memoryPD{PD: d.last}, nil
}

func (p memoryPD) RegMR(a verbs.MRAttr) (verbs.ProviderMR, error)   { return p.PD.RegMR(a) }
func (p memoryPD) AllocMW(t verbs.MWType) (verbs.ProviderMW, error) { return p.PD.AllocMW(t) }
func (p memoryPD) Close() error                                     { return nil }

// domain is a protection domain whose regions and windows are those of package verbs, as binds name
// them.
type domain struct {
	*PD
	t    testing.TB
	dev  *verbs.Device
	user *verbs.PD
}

func newDomain(t testing.TB) *domain {
	k := NewKeys(1<<16, nil)
	t.Cleanup(k.Unpin)
	d := &domain{t: t, dev: verbs.NewDevice(&memoryDevice{keys: k})}
	return d.another()
}

// another makes another protection domain of the same device.
func (d *domain) another() *domain {
	d.t.Helper()
	user, err := d.dev.AllocPD()
	if err != nil {
		d.t.Fatal(err)
	}
	return &domain{PD: d.dev.Provider().(*memoryDevice).last, t: d.t, dev: d.dev, user: user}
}

// patience is how long a test that works in real time waits before it fails.
const patience = 30 * time.Second

const (
	regionSize = 256
	regionBase = 0x5000
	bindable   = everything | verbs.AccessMWBind

	qpn = 7 // the QP that binds and asks, where nothing else is said
)

// mr registers regionSize bytes that peers address from regionBase on. Byte i of them is i.
func (d *domain) mr(access verbs.Access) *verbs.MR {
	d.t.Helper()
	b := make([]byte, regionSize)
	for i := range b {
		b[i] = byte(i)
	}
	mr, err := d.user.RegMRIOVA(b, regionBase, access)
	if err != nil {
		d.t.Fatal(err)
	}
	return mr
}

func (d *domain) mw(typ verbs.MWType) *verbs.MW {
	d.t.Helper()
	mw, err := d.user.AllocMW(typ)
	if err != nil {
		d.t.Fatal(err)
	}
	return mw
}

// bindOf binds w to the n bytes at off of mr, under its next key.
func bindOf(w *verbs.MW, mr *verbs.MR, off, n uint64) verbs.MWBind {
	return verbs.MWBind{MW: w, RKey: verbs.IncRKey(w.RKey()), MR: mr, Addr: regionBase + off, Length: n, Access: everything &^ verbs.AccessLocalWrite}
}

func (d *domain) bind(b verbs.MWBind) verbs.RKey {
	d.t.Helper()
	Promise(&b)
	if err := Bind(&b, qpn); err != nil {
		d.t.Fatalf("bind: %v, want no error", err)
	}
	return b.MW.RKey()
}

// refused wants an error of the kind with a text.
func (d *domain) refused(what string, err, kind error, text string) {
	d.t.Helper()
	if err == nil || !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
		d.t.Errorf("%s: %v, want %v that says %q", what, err, kind, text)
	}
}

// opens wants the n bytes at va to be those at off of the region. They are left open.
func (d *domain) opens(key verbs.RKey, va, n uint64, off int) Span {
	d.t.Helper()
	s, err := d.Open(key, qpn, va, n, verbs.AccessRemoteRead)
	if err != nil {
		d.t.Fatalf("open %d bytes at %#x: %v, want no error", n, va, err)
	}
	if len(s.Bytes()) != int(n) || n > 0 && s.Bytes()[0] != byte(off) {
		d.t.Errorf("opened %d bytes at %#x, which begin with %v; want %d that begin with %d", len(s.Bytes()), va, s.Bytes(), n, off)
	}
	return s
}

// shut wants the key to open nothing.
func (d *domain) shut(what string, key verbs.RKey, va uint64) {
	d.t.Helper()
	s, err := d.Open(key, qpn, va, 1, 0)
	s.Release()
	d.refused(what, err, verbs.ErrNotFound, "the memory window is not bound under this key")
}

// idle wants no span of the region to be open, and so many windows to be bound to it.
func (d *domain) idle(mr *verbs.MR, windows int32) {
	d.t.Helper()
	r := mr.Provider().(*MR).Region
	if spans, n := r.gate.users.Load(), r.windows.Load(); spans != 0 || n != windows {
		d.t.Errorf("%d spans are open and %d windows are bound, want 0 and %d", spans, n, windows)
	}
}

var bothTypes = []verbs.MWType{verbs.MWType1, verbs.MWType2}

// TestWindow: a bound window opens its part of the region, and nothing around it.
func TestWindow(t *testing.T) {
	for _, typ := range bothTypes {
		d := newDomain(t)
		mr, w := d.mr(bindable), d.mw(typ)
		fresh := w.RKey()
		d.shut("window that was never bound", fresh, regionBase)
		key := d.bind(bindOf(w, mr, 16, 32))
		if key == fresh || key>>keyBits != fresh>>keyBits {
			t.Errorf("%v: key %v after binding %v, want another that differs in the lowest %d bits only", typ, key, fresh, keyBits)
		}
		d.opens(key, regionBase+16, 32, 16).Release()
		d.opens(key, regionBase+47, 1, 47).Release()
		d.opens(key, regionBase+48, 0, 0).Release() // nothing, at the end
		for _, at := range []struct{ va, n uint64 }{
			{regionBase + 15, 1}, {regionBase + 15, 2}, {regionBase + 16, 33}, {regionBase + 47, 2}, {regionBase + 48, 1},
			{regionBase + 49, 0}, {regionBase, regionSize}, {0, 1}, {regionBase + 16, 1<<64 - 1}, {1<<64 - 1, 1},
		} {
			_, err := d.Open(key, qpn, at.va, at.n, 0)
			d.refused("bytes outside", err, verbs.ErrInvalid, "outside the memory window, [0x5010, 0x5030)")
		}
		d.shut("key of before", fresh, regionBase+16)
		d.shut("key to come", verbs.IncRKey(key), regionBase+16)
		d.idle(mr, 1)
	}
}

// TestWindowPlace: a window shows and changes the region's own memory.
func TestWindowPlace(t *testing.T) {
	d := newDomain(t)
	mr, w := d.mr(bindable), d.mw(verbs.MWType2)
	s := d.opens(d.bind(bindOf(w, mr, 16, 32)), regionBase+20, 3, 20)
	s.Place([]byte{201, 202, 203})
	s.Release()
	if got := string(mr.Bytes()[19:24]); got != string([]byte{19, 201, 202, 203, 23}) {
		t.Errorf("bytes 19 to 23 of the region are %v, want 19, 201, 202, 203, 23", []byte(got))
	}
}

// TestWindowType1: a type 1 window is bound anew whenever the program likes, and unbound by length 0.
// Each bind gives it another key, and only the latest opens anything.
func TestWindowType1(t *testing.T) {
	d := newDomain(t)
	first, second := d.mr(bindable), d.mr(bindable)
	w := d.mw(verbs.MWType1)
	keys := map[verbs.RKey]bool{w.RKey(): true}
	bind := func(b verbs.MWBind) verbs.RKey {
		t.Helper()
		before := b.MW.RKey()
		b.RKey = 0x12345678 // counts for type 2 only
		key := d.bind(b)
		if keys[key] || key>>keyBits != before>>keyBits {
			t.Errorf("key %v after %v, want a new one that differs in the lowest %d bits only", key, before, keyBits)
		}
		keys[key] = true
		return key
	}
	old := bind(bindOf(w, first, 0, 8))
	key := bind(bindOf(w, second, 64, 8))
	d.shut("the binding before", old, regionBase)
	d.opens(key, regionBase+64, 8, 64).Release()
	d.idle(first, 0)
	d.idle(second, 1)

	failed := bindOf(w, first, regionSize-7, 8)
	d.refused("bind beyond the region", Bind(&failed, qpn), verbs.ErrInvalid, "outside the memory region, [0x5000, 0x5100)")
	if got := w.RKey(); got != key {
		t.Errorf("key %v after a bind that failed, want %v as before", got, key)
	}
	d.opens(key, regionBase+64, 8, 64).Release() // the binding before it stays
	d.idle(first, 0)
	d.idle(second, 1)

	unbound := bind(verbs.MWBind{MW: w})
	d.shut("unbound", key, regionBase+64)
	d.shut("unbound, new key", unbound, regionBase+64)
	d.idle(second, 0)
	bind(verbs.MWBind{MW: w}) // of a window that is not bound
	d.refused("invalidate", d.Invalidate(bind(bindOf(w, first, 0, 8)), qpn), verbs.ErrInvalid, "a type 1 window is not invalidated by its key")
	d.idle(first, 1)

	// A type 1 window serves all QPs of its PD.
	s, err := d.Open(w.RKey(), qpn+1, regionBase, 8, verbs.AccessRemoteRead)
	if err != nil {
		t.Errorf("open by another QP: %v, want no error", err)
	}
	s.Release()
	d.idle(first, 1)
}

// TestWindowType2: a type 2 window is bound under the key that the bind gives it, once, until it is
// invalidated. It serves the QP that bound it.
func TestWindowType2(t *testing.T) {
	d := newDomain(t)
	mr, w := d.mr(bindable), d.mw(verbs.MWType2)
	b := bindOf(w, mr, 0, 8)
	b.RKey = w.RKey() ^ 0x5a // any low bits will do
	want := b.RKey
	if key := d.bind(b); key != want {
		t.Errorf("key %v, want %v as the bind says", key, want)
	}
	_, err := d.Open(want, qpn+1, regionBase, 8, 0)
	d.refused("another QP", err, verbs.ErrInvalid, "the memory window was bound by another QP")
	again := bindOf(w, mr, 8, 8)
	d.refused("bind while bound", Bind(&again, qpn), verbs.ErrInvalid, "the window is bound: invalidate it first")
	d.opens(want, regionBase, 8, 0).Release()
	d.idle(mr, 1)

	for what, bad := range map[string]struct {
		key  verbs.RKey
		qpn  verbs.QPN
		text string
	}{
		"other low bits": {want ^ 1, qpn, "the window is not bound under this key"},
		"another QP":     {want, qpn + 1, "the window belongs to another QP"},
		"region's key":   {mr.RKey(), qpn, "is no memory window's"},
		"nobody's key":   {want ^ 1<<31, qpn, "is no memory window's"},
	} {
		d.refused("invalidate: "+what, d.Invalidate(bad.key, bad.qpn), verbs.ErrInvalid, bad.text)
	}
	d.opens(want, regionBase, 8, 0).Release()
	if err := d.Invalidate(want, qpn); err != nil {
		t.Fatalf("invalidate: %v, want no error", err)
	}
	d.shut("invalidated", want, regionBase)
	d.idle(mr, 0)
	d.refused("invalidate again", d.Invalidate(want, qpn), verbs.ErrInvalid, "the window is not bound under this key")
	if got := w.RKey(); got != want {
		t.Errorf("key %v after the invalidation, want %v as before", got, want)
	}

	for what, bad := range map[string]struct {
		change func(*verbs.MWBind)
		text   string
	}{
		"key of another": {func(b *verbs.MWBind) { b.RKey ^= 1 << keyBits }, "only the lowest 8 bits may differ"},
		"length 0":       {func(b *verbs.MWBind) { b.Length = 0 }, "a type 2 window is unbound by invalidating it"},
	} {
		b := bindOf(w, mr, 0, 8)
		bad.change(&b)
		d.refused(what, Bind(&b, qpn), verbs.ErrInvalid, bad.text)
	}
	d.idle(mr, 0)
	d.opens(d.bind(bindOf(w, mr, 8, 8)), regionBase+8, 8, 8).Release()
	d.shut("key of the first binding", want, regionBase+8)
}

// TestWindowChecks: the checks of a bind, with both types. A refused bind changes nothing.
func TestWindowChecks(t *testing.T) {
	for _, typ := range bothTypes {
		d := newDomain(t)
		other := d.another()
		const remote = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
		for _, tt := range []struct {
			name   string
			mr     *verbs.MR
			off, n uint64
			access verbs.Access
			err    string // or part of it
		}{
			{name: "whole region", mr: d.mr(bindable), n: regionSize, access: remote},
			{name: "last byte", mr: d.mr(bindable), off: regionSize - 1, n: 1, access: remote},
			{name: "no access", mr: d.mr(bindable), n: 1},
			{name: "read of a region without write", mr: d.mr(verbs.AccessMWBind), n: 1, access: verbs.AccessRemoteRead},
			{name: "write of such a region", mr: d.mr(verbs.AccessMWBind), n: 1, access: verbs.AccessRemoteWrite, err: "needs a region with ACCESS_LOCAL_WRITE"},
			{name: "atomics of such a region", mr: d.mr(verbs.AccessMWBind), n: 1, access: verbs.AccessRemoteAtomic, err: "needs a region with ACCESS_LOCAL_WRITE"},
			{name: "region not for windows", mr: d.mr(everything), n: 1, err: "register it with ACCESS_MW_BIND"},
			{name: "region of another PD", mr: other.mr(bindable), n: 1, err: "the memory region belongs to another PD than the window"},
			{name: "one byte more", mr: d.mr(bindable), n: regionSize + 1, err: "outside the memory region, [0x5000, 0x5100)"},
			{name: "one byte behind", mr: d.mr(bindable), off: regionSize, n: 1, err: "outside the memory region"},
			{name: "one byte before", mr: d.mr(bindable), off: 1<<64 - 1, n: 2, err: "outside the memory region"},
			{name: "longest", mr: d.mr(bindable), off: 1, n: 1<<64 - 1, err: "outside the memory region"},
		} {
			w := d.mw(typ)
			before := w.RKey()
			b := bindOf(w, tt.mr, tt.off, tt.n)
			b.Access = tt.access
			err := Bind(&b, qpn)
			if tt.err == "" {
				if err != nil {
					t.Errorf("%v, %s: %v, want no error", typ, tt.name, err)
				}
				d.idle(tt.mr, 1)
				continue
			}
			d.refused(tt.name, err, verbs.ErrInvalid, tt.err)
			d.idle(tt.mr, 0)
			if got := w.RKey(); got != before {
				t.Errorf("%v, %s: key %v after the refusal, want %v as before", typ, tt.name, got, before)
			}
			d.shut(tt.name, b.RKey, b.Addr)
		}
	}
}

// TestWindowAccess: a window gives the access of its bind, and to QPs of its PD only.
func TestWindowAccess(t *testing.T) {
	for _, typ := range bothTypes {
		d := newDomain(t)
		mr, w := d.mr(bindable), d.mw(typ)
		b := bindOf(w, mr, 0, 8)
		b.Access = verbs.AccessRemoteRead
		key := d.bind(b)
		d.opens(key, regionBase, 8, 0).Release()
		for _, need := range []verbs.Access{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic, verbs.AccessRemoteRead | verbs.AccessRemoteWrite} {
			_, err := d.Open(key, qpn, regionBase, 8, need)
			d.refused("access that the region has and the window has not", err, verbs.ErrInvalid, "the memory window has ACCESS_REMOTE_READ, and ")
		}
		_, err := d.another().Open(key, qpn, regionBase, 8, verbs.AccessRemoteRead)
		d.refused("QP of another PD", err, verbs.ErrInvalid, "the memory window belongs to another PD than the QP")
		_, err = d.openLocal(nil, verbs.LKey(key), regionBase, 8, 0)
		d.refused("window's key in an SGE", err, verbs.ErrNotFound, "is a memory window's: an SGE needs the lkey of a memory region")
		d.idle(mr, 1)
	}
}

// TestWindowZeroBased: a zero based window of type 2 counts from its own first byte. Type 1 has none.
func TestWindowZeroBased(t *testing.T) {
	d := newDomain(t)
	mr, w := d.mr(bindable), d.mw(verbs.MWType2)
	b := bindOf(w, mr, 100, 10)
	b.Access |= verbs.AccessZeroBased
	key := d.bind(b)
	d.opens(key, 0, 10, 100).Release()
	d.opens(key, 9, 1, 109).Release()
	for _, at := range []struct{ va, n uint64 }{{0, 11}, {9, 2}, {regionBase + 100, 1}, {1<<64 - 1, 2}} {
		_, err := d.Open(key, qpn, at.va, at.n, 0)
		d.refused("bytes outside", err, verbs.ErrInvalid, "outside the memory window, [0x0, 0xa)")
	}
	d.idle(mr, 1)

	b = bindOf(d.mw(verbs.MWType1), mr, 100, 10)
	b.Access |= verbs.AccessZeroBased
	d.refused("type 1", Bind(&b, qpn), verbs.ErrInvalid, "a type 1 window cannot be zero based")
	d.idle(mr, 1)
}

// TestWindowKeyWraps: the low bits of a type 1 window's key begin anew after 256 binds. The rest stays.
func TestWindowKeyWraps(t *testing.T) {
	d := newDomain(t)
	mr, w := d.mr(bindable), d.mw(verbs.MWType1)
	index := w.RKey() >> keyBits
	seen := map[verbs.RKey]bool{}
	for range 1 << keyBits {
		key := d.bind(bindOf(w, mr, 0, 8))
		if key>>keyBits != index || seen[key] {
			t.Fatalf("key %v after %d binds, want a new one with index %#x", key, len(seen), index)
		}
		seen[key] = true
	}
	if key := d.bind(bindOf(w, mr, 0, 8)); !seen[key] {
		t.Errorf("key %v after %d binds, want one of those before", key, len(seen)+1)
	}
	d.idle(mr, 1)
}

// TestWindowsKeepRegion: a region stays open while windows are bound to it. It does not take another
// once it is closed.
func TestWindowsKeepRegion(t *testing.T) {
	d := newDomain(t)
	mr := d.mr(bindable)
	one, two, three := d.mw(verbs.MWType1), d.mw(verbs.MWType2), d.mw(verbs.MWType2)
	d.bind(bindOf(one, mr, 0, 8))
	two1 := d.bind(bindOf(two, mr, 0, 8))
	d.bind(bindOf(three, mr, 0, 8))
	for n, end := range []func() error{
		func() error { return Bind(&verbs.MWBind{MW: one}, qpn) },
		func() error { return d.Invalidate(two1, qpn) },
		three.Close,
	} {
		d.refused("Close", mr.Close(), verbs.ErrBusy, []string{"3", "2", "1"}[n]+" memory windows are bound to it")
		d.opens(verbs.RKey(mr.RKey()), regionBase, 8, 0).Release() // it works as before
		if err := end(); err != nil {
			t.Fatalf("end of binding %d: %v, want no error", n, err)
		}
	}
	if err := mr.Close(); err != nil {
		t.Fatalf("Close without windows: %v, want no error", err)
	}
	for _, w := range []*verbs.MW{one, two} {
		b := bindOf(w, mr, 0, 8)
		d.refused("bind to a closed region", Bind(&b, qpn), verbs.ErrInvalid, "the memory region is being deregistered")
		d.shut("bind to a closed region", b.RKey, regionBase)
	}
}

// TestWindowClose: a freed window opens nothing, and its key is nobody's.
func TestWindowClose(t *testing.T) {
	for _, typ := range bothTypes {
		d := newDomain(t)
		mr, w := d.mr(bindable), d.mw(typ)
		key := d.bind(bindOf(w, mr, 0, 8))
		b := bindOf(w, mr, 0, 8)
		if err := w.Close(); err != nil {
			t.Fatalf("%v: Close: %v, want no error", typ, err)
		}
		d.idle(mr, 0)
		_, err := d.Open(key, qpn, regionBase, 8, 0)
		d.refused("open by the key of a freed window", err, verbs.ErrNotFound, "no such memory region")
		d.refused("bind of a freed window", Bind(&b, qpn), verbs.ErrInvalid, "the window was freed")
		d.refused("invalidation of a freed window", d.Invalidate(key, qpn), verbs.ErrInvalid, "is no memory window's")
		d.idle(mr, 0)
		if n := d.keys.Len(); n != 1 {
			t.Errorf("%v: %d keys are in use, want the region's", typ, n)
		}
	}
}

// TestWindowSpan: a span that was opened through a window keeps the region until it is released,
// whatever becomes of the window meanwhile.
func TestWindowSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, end := range []string{"invalidated", "freed"} {
			d := newDomain(t)
			mr, w := d.mr(bindable), d.mw(verbs.MWType2)
			key := d.bind(bindOf(w, mr, 16, 8))
			s := d.opens(key, regionBase+16, 8, 16)
			var err error
			if end == "freed" {
				err = w.Close()
			} else {
				err = d.Invalidate(key, qpn)
			}
			if err != nil {
				t.Fatalf("%s: %v, want no error", end, err)
			}
			if _, err := d.Open(key, qpn, regionBase+16, 8, 0); !errors.Is(err, verbs.ErrNotFound) {
				t.Errorf("%s: open: %v, want ErrNotFound", end, err)
			}
			var closed atomic.Bool
			go func() {
				if err := mr.Provider().Close(); err != nil {
					t.Errorf("%s: Close: %v, want no error", end, err)
				}
				closed.Store(true)
			}()
			synctest.Wait()
			if closed.Load() {
				t.Fatalf("%s: the region closed while a span is open, want it to wait", end)
			}
			s.Place([]byte{99})
			s.Release()
			synctest.Wait()
			if !closed.Load() {
				t.Errorf("%s: the region is not closed though its last span is released, want it closed", end)
			}
		}
	})
}

// TestWindowConcurrent: while a window is bound to one part of a region after the other, who opens it
// gets the bytes that belong to the key, or nothing. Nothing stays open or bound.
func TestWindowConcurrent(t *testing.T) {
	const users, rounds = 3, 3000
	for _, typ := range bothTypes {
		d := newDomain(t)
		mr, w := d.mr(bindable), d.mw(typ)
		var stop atomic.Bool
		var opened atomic.Int64
		var wg sync.WaitGroup
		end := func() {
			stop.Store(true)
			wg.Wait()
		}
		defer end() // also where the test fails
		for range users {
			wg.Go(func() {
				for !stop.Load() {
					key := w.RKey()
					off := uint64(key & 31) // each key has a part of its own
					s, err := d.Open(key, qpn, regionBase+off*8, 8, verbs.AccessRemoteRead)
					if err != nil {
						if !errors.Is(err, verbs.ErrNotFound) {
							t.Errorf("open: %v, want ErrNotFound or no error", err)
							return
						}
						continue
					}
					var b [8]byte
					s.Fetch(b[:])
					if b[0] != byte(off*8) || b[7] != byte(off*8+7) {
						t.Errorf("key %v opened %v, want 8 bytes from %d on", key, b, off*8)
					}
					s.Release()
					opened.Add(1)
				}
			})
		}
		deadline := time.Now().Add(patience)
		for i := 0; i < rounds || opened.Load() == 0; i++ {
			if time.Now().After(deadline) {
				t.Fatalf("%v: the window was opened %d times in %d binds and %v, want at least once", typ, opened.Load(), i, patience)
			}
			b := bindOf(w, mr, 0, 8)
			b.Addr += uint64(b.RKey&31) * 8
			key := d.bind(b)
			if typ == verbs.MWType2 {
				if err := d.Invalidate(key, qpn); err != nil {
					t.Fatalf("invalidate: %v, want no error", err)
				}
			}
		}
		end()
		if typ == verbs.MWType1 {
			d.bind(verbs.MWBind{MW: w})
		}
		d.idle(mr, 0)
	}
}

// TestWindowAllocs: opening a window allocates nothing.
func TestWindowAllocs(t *testing.T) {
	d := newDomain(t)
	mr, w := d.mr(bindable), d.mw(verbs.MWType2)
	key := d.bind(bindOf(w, mr, 16, 8))
	if n := testing.AllocsPerRun(100, func() { d.opens(key, regionBase+16, 8, 16).Release() }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

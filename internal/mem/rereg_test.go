package mem

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/verbs"
)

// registered is a region as package verbs holds it.
type registered struct {
	*MR
	t testing.TB
}

func (d *domain) reg(a verbs.MRAttr) registered {
	d.t.Helper()
	m, err := d.RegMR(a)
	if err != nil {
		d.t.Fatal(err)
	}
	return registered{m.(*MR), d.t}
}

func (m registered) rereg(flags verbs.ReregFlags, to *domain, a verbs.MRAttr) {
	m.t.Helper()
	if err := m.Rereg(flags, memoryPD{PD: to.PD}, a); err != nil {
		m.t.Fatalf("rereg: %v, want no error", err)
	}
}

// wantMemory wants the region to be b, at the address base.
func (m registered) wantMemory(b []byte, base uint64) {
	m.t.Helper()
	if got := m.Bytes(); len(got) != len(b) || &got[0] != &b[0] || m.Addr() != base {
		m.t.Errorf("%d bytes at %p, addressed from %#x; want %d at %p from %#x", len(got), &got[0], m.Addr(), len(b), &b[0], base)
	}
}

// wantOpen wants that the domain opens the whole region for the access, or refuses with a text.
func (m registered) wantOpen(d *domain, need verbs.Access, text string) {
	m.t.Helper()
	s, err := d.Open(m.RKey(), qpn, m.Addr(), uint64(len(m.Bytes())), need)
	s.Release()
	switch {
	case text != "":
		d.refused("open", err, verbs.ErrInvalid, text)
	case err != nil:
		m.t.Errorf("open: %v, want no error", err)
	case &s.Bytes()[0] != &m.Bytes()[0]:
		m.t.Errorf("opened memory at %p, want that at %p", &s.Bytes()[0], &m.Bytes()[0])
	}
}

// TestRereg: Rereg changes the properties that it is asked to and keeps the rest. The key before opens nothing.
func TestRereg(t *testing.T) {
	const iova = 0x7000_0000
	old, other := make([]byte, 64), make([]byte, 32)
	for name, base := range map[string]struct {
		verbs.MRAttr
		addr uint64
	}{
		"address":    {verbs.MRAttr{Buf: old, Access: everything}, addrOf(old)},
		"IOVA":       {verbs.MRAttr{Buf: old, Access: everything, IOVA: iova, HasIOVA: true}, iova},
		"zero based": {verbs.MRAttr{Buf: old, Access: everything | verbs.AccessZeroBased}, 0},
	} {
		zero := base.Access & verbs.AccessZeroBased
		moved := addrOf(other)
		if zero != 0 {
			moved = 0
		}
		for _, tt := range []struct {
			name  string
			flags verbs.ReregFlags
			attr  verbs.MRAttr
			pd    bool // another
			buf   []byte
			addr  uint64
		}{
			{"access", verbs.ReregAccess, verbs.MRAttr{Buf: old, Access: verbs.AccessRemoteRead | zero}, false, old, base.addr},
			{"PD", verbs.ReregPD, verbs.MRAttr{Buf: old, Access: base.Access}, true, old, base.addr},
			{"memory", verbs.ReregTranslation, verbs.MRAttr{Buf: other, Access: base.Access}, false, other, moved},
			{"all", verbs.ReregTranslation | verbs.ReregPD | verbs.ReregAccess, verbs.MRAttr{Buf: other, Access: verbs.AccessRemoteRead | zero}, true, other, moved},
		} {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				d := newDomain(t)
				to, second := d, d.another()
				if tt.pd {
					to, second = second, d
				}
				m := d.reg(base.MRAttr)
				key, before := m.RKey(), m.Region
				m.rereg(tt.flags, to, tt.attr)
				m.wantMemory(tt.buf, tt.addr)
				if m.RKey() == key || m.LKey() == before.LKey() || uint32(m.LKey()) == uint32(m.RKey()) {
					t.Errorf("keys %v and %v, want new ones that differ; the rkey was %v before", m.RKey(), m.LKey(), key)
				}
				_, err := d.Open(key, qpn, base.addr, 1, 0)
				d.refused("open by the key of before", err, verbs.ErrNotFound, "no such memory region")
				if n := before.gate.users.Load(); n != gateClosed {
					t.Errorf("%d users of the region of before, want it closed", n)
				}
				m.wantOpen(to, verbs.AccessRemoteRead, "")
				m.wantOpen(second, verbs.AccessRemoteRead, "another PD")
				if tt.flags&verbs.ReregAccess != 0 {
					m.wantOpen(to, verbs.AccessRemoteWrite, "ACCESS_REMOTE_WRITE is needed")
				} else {
					m.wantOpen(to, everything, "")
				}
				if err := m.Close(); err != nil {
					t.Errorf("Close: %v, want no error", err)
				}
				if n := d.keys.Len(); n != 0 {
					t.Errorf("%d keys are in use, want none", n)
				}
			})
		}
	}
}

// TestReregZeroBased: a region is addressed from 0 just as long as it is zero based.
func TestReregZeroBased(t *testing.T) {
	d, buf := newDomain(t), make([]byte, 64)
	for _, base := range []verbs.MRAttr{{Buf: buf, Access: everything}, {Buf: buf, Access: everything, IOVA: 0x7000_0000, HasIOVA: true}} {
		m := d.reg(base)
		for range 2 {
			m.rereg(verbs.ReregAccess, d, verbs.MRAttr{Buf: buf, Access: everything | verbs.AccessZeroBased})
			m.wantMemory(buf, 0)
			m.wantOpen(d, everything, "")
		}
		m.rereg(verbs.ReregAccess, d, verbs.MRAttr{Buf: buf, Access: everything})
		m.wantMemory(buf, addrOf(buf))
		m.wantOpen(d, everything, "")
		if err := m.Close(); err != nil {
			t.Errorf("Close: %v, want no error", err)
		}
	}
}

// TestReregAllocated: memory that was allocated stays mapped while Rereg keeps it, and is unmapped
// with the region that has it in the end.
func TestReregAllocated(t *testing.T) {
	d := newDomain(t)
	m := d.reg(verbs.MRAttr{Length: 4096, Access: everything})
	b := m.Bytes()
	fill(b, 1)
	want := bytes.Clone(b)
	alloc := m.backing.alloc
	for i := range 3 {
		m.rereg(verbs.ReregAccess, d, verbs.MRAttr{Buf: b, Access: everything})
		m.wantMemory(b, addrOf(b))
		if m.backing.alloc != alloc || m.backing.pin != nil {
			t.Fatalf("after %d times the memory is of %+v, want the allocation %p", i+1, m.backing, alloc)
		}
		if !bytes.Equal(m.Bytes(), want) { // faults where it is unmapped
			t.Fatalf("the memory has changed, want what it was")
		}
		m.wantOpen(d, everything, "")
	}
	own := make([]byte, 16)
	m.rereg(verbs.ReregTranslation, d, verbs.MRAttr{Buf: own, Access: everything})
	m.wantMemory(own, addrOf(own))
	if m.backing.alloc != nil || m.backing.pin == nil {
		t.Errorf("the memory is of %+v, want the program's, pinned", m.backing)
	}
	if err := m.Close(); err != nil {
		t.Errorf("Close: %v, want no error", err)
	}
}

// TestReregBusy: Rereg is refused while windows are bound, and changes nothing where it fails.
func TestReregBusy(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(d *domain, mr *verbs.MR) (undo func() error)
		kind    error
		text    string
	}{
		{"windows", func(d *domain, mr *verbs.MR) func() error {
			w := d.mw(verbs.MWType2)
			d.bind(bindOf(w, mr, 0, 8))
			return w.Close
		}, verbs.ErrBusy, "1 memory windows are bound to the region"},
		{"no key left", func(d *domain, _ *verbs.MR) func() error {
			limit := d.keys.table.Limit
			d.keys.table.Limit = d.keys.Len()
			return func() error { d.keys.table.Limit = limit; return nil }
		}, verbs.ErrLimit, "max_mr"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDomain(t)
			mr := d.mr(bindable)
			m := registered{mr.Provider().(*MR), t}
			undo := tt.prepare(d, mr)
			before, b := m.Region, m.Bytes()
			attr := verbs.MRAttr{Buf: make([]byte, 8), Access: verbs.AccessRemoteRead}
			d.refused("rereg", m.Rereg(verbs.ReregTranslation|verbs.ReregAccess, memoryPD{PD: d.another().PD}, attr), tt.kind, tt.text)
			if m.Region != before {
				t.Fatalf("another region after a failure, want the one before")
			}
			m.wantMemory(b, regionBase)
			m.wantOpen(d, everything, "")
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			m.rereg(verbs.ReregAccess, d, verbs.MRAttr{Buf: b, Access: bindable})
			m.wantMemory(b, regionBase)
		})
	}
}

// TestReregWaits: Rereg returns when no span of the region before is open any more. Until then the
// span's memory is in its place.
func TestReregWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDomain(t)
		m := d.reg(verbs.MRAttr{Length: 4096, Access: everything})
		s, err := d.Open(m.RKey(), qpn, m.Addr(), 8, 0)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 16)
		var done atomic.Bool
		go func() {
			if err := m.Rereg(verbs.ReregTranslation, memoryPD{PD: d.PD}, verbs.MRAttr{Buf: b, Access: everything}); err != nil {
				t.Errorf("rereg: %v, want no error", err)
			}
			done.Store(true)
		}()
		synctest.Wait()
		if done.Load() {
			t.Fatal("Rereg returned while a span is open, want it to wait")
		}
		s.Place([]byte{1, 2, 3}) // faults where the memory is gone
		s.Release()
		synctest.Wait()
		if !done.Load() {
			t.Fatal("Rereg waits though the last span is released")
		}
		m.wantMemory(b, addrOf(b))
	})
}

// TestReregConcurrent: packets that come while a region is registered anew see it before or after.
func TestReregConcurrent(t *testing.T) {
	d := newDomain(t)
	m := d.reg(verbs.MRAttr{Length: 64, Access: everything})
	var key atomic.Uint32
	key.Store(uint32(m.rkey))
	addr, b := m.Addr(), m.Bytes()
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				s, err := d.Open(verbs.RKey(key.Load()), qpn, addr, 64, verbs.AccessRemoteRead)
				if err != nil {
					continue // the key is one of before
				}
				if len(s.Bytes()) != 64 || &s.Bytes()[0] != &b[0] {
					t.Errorf("opened %d bytes at %p, want 64 at %p", len(s.Bytes()), &s.Bytes()[0], &b[0])
				}
				s.Release()
			}
		})
	}
	for range 1000 {
		m.rereg(verbs.ReregAccess, d, verbs.MRAttr{Buf: b, Access: everything})
		key.Store(uint32(m.rkey))
	}
	stop.Store(true)
	wg.Wait()
	if n := m.gate.users.Load(); n != 0 {
		t.Errorf("%d spans are open, want none", n)
	}
	if n := d.keys.Len(); n != 1 {
		t.Errorf("%d keys are in use, want one", n)
	}
}

// TestReregBind: a window that is bound while its region is registered anew is bound to the one or the
// other, and no region is left behind.
func TestReregBind(t *testing.T) {
	d := newDomain(t)
	mr, w := d.mr(bindable), d.mw(verbs.MWType1)
	h := mr.Provider().(*MR)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			b := bindOf(w, mr, 0, 8)
			if Bind(&b, qpn) == nil {
				b.Length = 0
				if err := Bind(&b, qpn); err != nil {
					t.Errorf("unbind: %v", err)
				}
			}
		}
	})
	for range 2000 {
		if err := h.Rereg(verbs.ReregAccess, memoryPD{PD: d.PD}, verbs.MRAttr{Buf: mr.Bytes(), Access: bindable}); err != nil && !errors.Is(err, verbs.ErrBusy) {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
	if n := d.keys.Len(); n != 2 {
		t.Errorf("%d keys are in use, want those of the region and the window", n)
	}
}

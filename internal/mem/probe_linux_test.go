//go:build !adverb_portable

package mem

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestProbe: RegMR refuses memory that does not allow the access of the flags, and says where and why. Memory that RegMR
// takes is unchanged. It makes no difference whether the kernel can get pages ready.
func TestProbe(t *testing.T) {
	const rw = unix.PROT_READ | unix.PROT_WRITE
	page := pageSize
	some := mapped(t, 4*page, rw)
	fill(some, 1)
	before := string(some)
	holed := mapped(t, 4*page, rw)
	protected(t, holed[2*page:3*page], unix.PROT_READ)
	long := mapped(t, 8*probeWhole, rw)
	protected(t, long[3*probeWhole:3*probeWhole+page], unix.PROT_READ)
	gap := mapped(t, 8*probeWhole, rw)
	if err := unix.MunmapPtr(at(gap[probeWhole:]), uintptr(page)); err != nil {
		t.Fatal(err)
	}
	short, cut := mappedFile(t, 4*page)
	cut(2 * page)
	longFile, cut := mappedFile(t, 2*probeWhole)
	cut(2*probeWhole - page)
	none, readOnly := mapped(t, page, unix.PROT_NONE), mapped(t, page, unix.PROT_READ)
	tests := []struct {
		name   string
		b      []byte
		access verbs.Access
		text   string // of the error, or none
	}{
		{"heap", make([]byte, 3*page), everything, ""},
		{"writable", some, everything, ""},
		{"two bytes of two pages", some[page-1 : page+1], everything, ""},
		{"string, to be read", literalBytes(), verbs.AccessRemoteRead, ""},
		{"string", literalBytes(), verbs.AccessLocalWrite, "cannot be written (a mapping r--p /"},
		{"read-only, to be read", readOnly, 0, ""},
		{"read-only", readOnly, everything, "cannot be written (a mapping r--p)"},
		{"no access", none, 0, "cannot be read (a mapping ---p)"},
		{"read-only page inside", holed, verbs.AccessLocalWrite, "cannot be written (a mapping r--p)"},
		{"read-only page inside, to be read", holed, 0, ""},
		{"read-only page in a long one", long, verbs.AccessLocalWrite, "cannot be written (a mapping r--p)"},
		{"gap in a long one", gap, 0, "nothing is mapped there"},
		{"short file", short, 0, "cannot be read (a mapping rw-s /"},
		{"begin of a short file", short[:2*page], everything, ""},
		{"long file that is short of a page", longFile, 0, "cannot be read (a mapping rw-s /"},
		{"begin of it", longFile[:2*probeWhole-page], everything, ""},
	}
	run := func(t *testing.T) {
		p := newPD(t)
		for _, tt := range tests {
			m, err := p.RegMR(verbs.MRAttr{Buf: tt.b, Access: tt.access})
			switch {
			case tt.text == "" && err != nil:
				t.Errorf("%s: %v", tt.name, err)
			case tt.text != "" && (!errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), tt.text)):
				t.Errorf("%s: %v; want %q", tt.name, err, tt.text)
			}
			if err == nil {
				m.Close()
			}
		}
		if n := p.keys.Len(); n != 0 {
			t.Errorf("%d regions are left", n)
		}
		if string(some) != before {
			t.Error("the memory has changed")
		}
	}
	t.Run("this kernel", run)
	t.Run("kernel that populates nothing", func(t *testing.T) {
		real := populate
		populate = func(uintptr, uintptr, verbs.Access) error { return unix.EINVAL }
		defer func() { populate = real }()
		run(t)
	})
}

// TestProbeReservation: a region of memory that is reserved, and not used yet, takes none of it.
func TestProbeReservation(t *testing.T) {
	const size = 1 << 30
	b := mapped(t, size, unix.PROT_READ|unix.PROT_WRITE)
	protected(t, b[:pageSize], unix.PROT_READ) // an area of its own
	region(t, newPD(t), verbs.MRAttr{Buf: b[pageSize:], Access: everything})
	resident := make([]byte, 4096)
	for _, part := range [][]byte{b[pageSize:], b[size/2:]} {
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(at(part)), uintptr(len(resident)*pageSize), uintptr(at(resident))); errno != 0 {
			t.Skip("mincore:", errno)
		}
		for i, r := range resident {
			if r&1 != 0 {
				t.Fatalf("page %d is there", i)
			}
		}
	}
}

// TestReregProbes: new rights are probed too, and where the memory has not got them the region stays as it was.
func TestReregProbes(t *testing.T) {
	p := newPD(t)
	m, err := p.RegMR(verbs.MRAttr{Buf: literalBytes(), Access: verbs.AccessRemoteRead})
	if err != nil {
		t.Fatal(err)
	}
	before := m.(*MR).Region
	if err := m.Rereg(verbs.ReregAccess, memoryPD{PD: p}, verbs.MRAttr{Buf: m.Bytes(), Access: everything}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("rights to write to a string: %v, want ErrInvalid", err)
	}
	if s, err := p.Open(before.rkey, 0, before.base, 8, verbs.AccessRemoteRead); err != nil {
		t.Errorf("after it: %v", err)
	} else {
		s.Release()
	}
	if err := m.Rereg(verbs.ReregTranslation, memoryPD{PD: p}, verbs.MRAttr{Buf: aligned(64), Access: everything}); err != nil || !m.(*MR).guard {
		t.Errorf("other memory: %v; guarded: %v", err, m.(*MR).guard)
	}
	a := region(t, p, verbs.MRAttr{Length: 64, Access: everything})
	h := &MR{Region: a}
	if err := h.Rereg(verbs.ReregAccess, memoryPD{PD: p}, verbs.MRAttr{Buf: a.buf, Access: verbs.AccessLocalWrite}); err != nil || a.guard || h.guard {
		t.Errorf("memory of ours: %v; guarded: %v, %v", err, a.guard, h.guard)
	}
}

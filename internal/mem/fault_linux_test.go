package mem

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// mapped maps n bytes of anonymous memory until the test ends.
func mapped(t testing.TB, n, prot int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, prot, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// mappedFile maps n bytes of a file, and returns the function that cuts the file to a length.
func mappedFile(t testing.TB, n int) (b []byte, cut func(n int)) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	cut = func(n int) {
		if err := f.Truncate(int64(n)); err != nil {
			t.Error(err)
		}
	}
	cut(n)
	if b, err = unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b, cut
}

func protected(t testing.TB, b []byte, prot int) {
	t.Helper()
	if err := unix.Mprotect(b, prot); err != nil {
		t.Error(err)
	}
}

// TestFaults: an access to memory that the program has taken away since it was registered is an error, in whatever way
// memory is accessed. Nothing stays held: the region closes. Memory that may be read still is.
func TestFaults(t *testing.T) {
	const size = 8192
	gone := map[string]struct {
		take  func(t *testing.T) (b []byte, away func())
		reads bool
	}{
		"protected": {take: func(t *testing.T) ([]byte, func()) {
			b := mapped(t, size, unix.PROT_READ|unix.PROT_WRITE)
			return b, func() { protected(t, b, unix.PROT_NONE) }
		}},
		"read-only": {take: func(t *testing.T) ([]byte, func()) {
			b := mapped(t, size, unix.PROT_READ|unix.PROT_WRITE)
			return b, func() { protected(t, b, unix.PROT_READ) }
		}, reads: true},
		"truncated": {take: func(t *testing.T) ([]byte, func()) {
			b, cut := mappedFile(t, size)
			return b, func() { cut(0) }
		}},
	}
	var fold wire.Fold
	buf := aligned(2048)
	accesses := map[string]struct {
		reads bool
		do    func(p *PD, k *Keeper, s Span, sg []verbs.SGE) error
	}{
		"Place":       {do: func(_ *PD, _ *Keeper, s Span, _ []verbs.SGE) error { return s.Place(buf) }},
		"short Place": {do: func(_ *PD, _ *Keeper, s Span, _ []verbs.SGE) error { return s.Place(buf[:3]) }},
		"PlaceShared": {do: func(_ *PD, _ *Keeper, s Span, _ []verbs.SGE) error { return s.PlaceShared(buf[1:]) }},
		"Fetch":       {true, func(_ *PD, _ *Keeper, s Span, _ []verbs.SGE) error { return s.Fetch(buf) }},
		"PlaceFrom":   {true, func(_ *PD, _ *Keeper, s Span, _ []verbs.SGE) error { return Foreign(aligned(size)).PlaceFrom(s) }},
		"CompareSwap": {do: func(_ *PD, _ *Keeper, s Span, _ []verbs.SGE) error { _, err := s.CompareSwap(0, 1); return err }},
		"FetchAdd":    {do: func(_ *PD, _ *Keeper, s Span, _ []verbs.SGE) error { _, err := s.FetchAdd(1); return err }},
		"Gather":      {true, func(p *PD, _ *Keeper, _ Span, sg []verbs.SGE) error { return p.Gather(buf, sg, 0) }},
		"Gather kept": {true, func(p *PD, k *Keeper, _ Span, sg []verbs.SGE) error { return k.Gather(p, buf, sg, 0) }},
		"Gather folded": {true, func(p *PD, k *Keeper, _ Span, sg []verbs.SGE) error {
			fold.Reset()
			k.Fold = &fold
			return k.Gather(p, buf, sg, 0)
		}},
		"Scatter":       {do: func(p *PD, _ *Keeper, _ Span, sg []verbs.SGE) error { return p.Scatter(sg, 0, buf) }},
		"Scatter kept":  {do: func(p *PD, k *Keeper, _ Span, sg []verbs.SGE) error { return k.Scatter(p, sg, 0, buf) }},
		"ScatterShared": {do: func(p *PD, _ *Keeper, _ Span, sg []verbs.SGE) error { return p.ScatterShared(sg, 0, buf) }},
		"ScatterLate":   {do: func(p *PD, _ *Keeper, _ Span, sg []verbs.SGE) error { return p.ScatterLate(sg, 0, buf, nil) }},
		"ScatterLate behind": {do: func(p *PD, _ *Keeper, s Span, sg []verbs.SGE) error {
			return p.ScatterLate(sg, 0, buf, []Span{Foreign(s.Bytes()[:8])})
		}},
		"Copy from": {true, func(_ *PD, _ *Keeper, s Span, _ []verbs.SGE) error { return Copy(buf, s.Bytes()[:len(buf)]) }},
		"Copy to":   {do: func(_ *PD, _ *Keeper, s Span, _ []verbs.SGE) error { return Copy(s.Bytes()[:len(buf)], buf) }},
		"window": {do: func(p *PD, _ *Keeper, s Span, _ []verbs.SGE) error {
			w := &Window{pd: p, typ: verbs.MWType1}
			w.bound.Store(&binding{region: s.region, base: s.region.base, length: size, access: everything})
			of, err := w.open(p, 0, 0, s.region.base, 8, verbs.AccessRemoteWrite)
			if err != nil {
				return err
			}
			defer of.Release()
			return of.Place(buf[:8])
		}},
	}
	for how, g := range gone {
		for name, a := range accesses {
			t.Run(how+"/"+name, func(t *testing.T) {
				p := newPD(t)
				b, away := g.take(t)
				r := region(t, p, verbs.MRAttr{Buf: b, Access: everything})
				k := &Keeper{}
				sg := []verbs.SGE{{Addr: r.base, Length: size, LKey: r.lkey}}
				if err := k.Gather(p, buf, sg, 0); err != nil { // which keeps the region
					t.Fatal(err)
				}
				s, err := p.Open(r.rkey, 0, r.base, size, everything)
				if err != nil {
					t.Fatal(err)
				}
				away()
				err = a.do(p, k, s, sg)
				if ok := a.reads && g.reads; ok != (err == nil) || !ok && !errors.Is(err, ErrFault) {
					t.Errorf("got %v, want an error of the kind ErrFault: %v", err, !ok)
				}
				if debug.SetPanicOnFault(false) {
					t.Error("faults of the program are panics now")
				}
				s.Release()
				k.Release()
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestProgramFaults: a fault at an address that is not the region's is the program's, and goes on as a panic. So does
// a panic that is no fault.
func TestProgramFaults(t *testing.T) {
	p := newPD(t)
	r := region(t, p, verbs.MRAttr{Buf: aligned(64), Access: everything})
	s, err := p.Open(r.rkey, 0, r.base, 64, everything)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	none := mapped(t, pageSize, unix.PROT_NONE)
	for name, access := range map[string]func() error{
		"Fetch to":   func() error { return s.Fetch(none[:64]) },
		"Place from": func() error { return s.Place(none[:64]) },
	} {
		var got any
		func() {
			defer func() { got = recover() }()
			t.Errorf("%s memory of the program that faults: returned %v", name, access())
		}()
		if f, ok := got.(interface{ Addr() uintptr }); !ok || !holds(none, uint64(f.Addr())) {
			t.Errorf("%s memory of the program that faults: the panic is %v, want one with its address", name, got)
		}
		if debug.SetPanicOnFault(false) {
			t.Errorf("%s: faults of the program are panics now", name)
		}
	}
	func() {
		defer func() {
			if e := recover(); e != "other" {
				t.Errorf("the panic became %v", e)
			}
		}()
		var err error
		defer catch(watchFaults(), s.Bytes(), s.Bytes(), &err)
		panic("other")
	}()
}

// TestGuardedAllocs: a guard allocates nothing.
func TestGuardedAllocs(t *testing.T) {
	p := newPD(t)
	r := region(t, p, verbs.MRAttr{Buf: aligned(4096), Access: everything})
	buf := make([]byte, 512)
	sg := []verbs.SGE{{Addr: r.base, Length: 4096, LKey: r.lkey}}
	if n := testing.AllocsPerRun(100, func() {
		if p.Gather(buf, sg, 0) != nil || p.Scatter(sg, 0, buf) != nil || p.ScatterShared(sg, 0, buf) != nil {
			t.Error("an access fails")
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// BenchmarkGuard copies from memory of which no fault is expected, and from memory that is guarded.
func BenchmarkGuard(b *testing.B) {
	for _, n := range []int{8, 1024, 4096} {
		for _, guard := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d bytes, guarded %v", n, guard), func(b *testing.B) {
				p := newPD(b)
				r := region(b, p, verbs.MRAttr{Length: 8192, Access: everything})
				r.guard = guard
				dst, sg, k := make([]byte, n), []verbs.SGE{{Addr: r.base, Length: 8192, LKey: r.lkey}}, &Keeper{}
				defer k.Release()
				for b.Loop() {
					if k.Gather(p, dst, sg, 0) != nil {
						b.Fatal("no copy")
					}
				}
			})
		}
	}
}

// literal is in memory that cannot be written.
const literal = "the bytes of a string, which stand beside the program's code"

func literalBytes() []byte { return unsafe.Slice(unsafe.StringData(literal), len(literal)) }

// TestSample: where the system tells nothing of memory, touching it finds whether it can be read, and written. It stays as
// it is.
func TestSample(t *testing.T) {
	rw := mapped(t, 4*pageSize, unix.PROT_READ|unix.PROT_WRITE)
	fill(rw, 1)
	before := string(rw)
	long := mapped(t, 2*sampledPages*pageSize, unix.PROT_READ|unix.PROT_WRITE)
	protected(t, long[len(long)-pageSize:], unix.PROT_NONE)
	holed := mapped(t, 4*pageSize, unix.PROT_READ|unix.PROT_WRITE)
	protected(t, holed[2*pageSize:3*pageSize], unix.PROT_NONE)
	readOnly := mapped(t, pageSize, unix.PROT_READ)
	for _, tt := range []struct {
		name   string
		b      []byte
		access verbs.Access
		ok     bool
	}{
		{"writable", rw, everything, true},
		{"writable, not aligned", rw[pageSize-1 : pageSize+1], everything, true},
		{"one byte", rw[7:8], everything, true},
		{"hole", holed, 0, false},
		{"before the hole", holed[:2*pageSize], everything, true},
		{"a byte in the hole", holed[2*pageSize-1 : 2*pageSize+1], 0, false},
		{"end of many pages", long, 0, false},
		{"read-only, to be read", readOnly, verbs.AccessRemoteRead, true},
		{"read-only", readOnly, verbs.AccessLocalWrite, raceEnabled},
		{"string, to be read", literalBytes(), 0, true},
		{"string", literalBytes(), verbs.AccessLocalWrite, raceEnabled},
	} {
		if err := sample(tt.b, tt.access); (err == nil) != tt.ok || err != nil && !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v; want success: %v", tt.name, err, tt.ok)
		}
	}
	if string(rw) != before {
		t.Error("the memory has changed")
	}
}

package verbs_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestWords: the methods for words have the effects of sync/atomic, in host order, and at no other byte.
func TestWords(t *testing.T) {
	pd := must(device(t).AllocPD())(t)
	mr := must(pd.AllocMR(32, 0))(t)
	words := verbs.View[uint64](mr.Bytes())
	mr.Store64(8, math.MaxUint64)
	if v := mr.Add64(8, 6); v != 5 || mr.Load64(8) != 5 || words[1] != 5 {
		t.Errorf("the sum is %d, and %d is there; want 5", v, words[1])
	}
	if mr.CompareAndSwap64(8, 4, 9) || words[1] != 5 || !mr.CompareAndSwap64(8, 5, 9) || words[1] != 9 {
		t.Errorf("after the swaps %d is there, want 9", words[1])
	}
	halves := verbs.View[uint32](mr.Bytes())
	mr.Store32(20, math.MaxUint32)
	if v := mr.Add32(20, 6); v != 5 || mr.Load32(20) != 5 || halves[5] != 5 {
		t.Errorf("the sum is %d, and %d is there; want 5", v, halves[5])
	}
	if mr.CompareAndSwap32(20, 4, 9) || halves[5] != 5 || !mr.CompareAndSwap32(20, 5, 9) || halves[5] != 9 {
		t.Errorf("after the swaps %d is there, want 9", halves[5])
	}
	if want := []uint32{0, 0, 9, 0, 0, 9, 0, 0}; !slices.Equal(halves, want) && !slices.Equal(halves, []uint32{0, 0, 0, 9, 0, 9, 0, 0}) {
		t.Errorf("words %v, want %v", halves, want)
	}
}

// wordMethods are the methods that access a word, by name.
func wordMethods(mr *verbs.MR) map[string]func(off int) {
	return map[string]func(off int){
		"Load64": func(off int) { mr.Load64(off) }, "Store64": func(off int) { mr.Store64(off, 1) },
		"Add64": func(off int) { mr.Add64(off, 1) }, "CompareAndSwap64": func(off int) { mr.CompareAndSwap64(off, 0, 1) },
		"Load32": func(off int) { mr.Load32(off) }, "Store32": func(off int) { mr.Store32(off, 1) },
		"Add32": func(off int) { mr.Add32(off, 1) }, "CompareAndSwap32": func(off int) { mr.CompareAndSwap32(off, 0, 1) },
	}
}

// TestWordPanics: a word outside the region, one that is not aligned and one of a closed region panic as
// slicing mistakes do, and say which it was.
func TestWordPanics(t *testing.T) {
	pd := must(device(t).AllocPD())(t)
	backing := make([]byte, 64) // more capacity than is registered
	mr := must(pd.RegMR(backing[:16], 0))(t)
	closed := must(pd.AllocMR(16, 0))(t)
	check(t, closed.Close())
	for name, f := range wordMethods(mr) {
		for _, off := range []int{-8, 16, 24, math.MaxInt - 7, math.MinInt} {
			wantPanic(t, name, func() { f(off) }, fmt.Sprintf("verbs: MR.%s(%d) of a region of 16 bytes", name, off))
		}
		wantPanic(t, name, func() { f(2) }, fmt.Sprintf("verbs: MR.%s(2): address 0x", name), "not aligned")
		f(8)
		wantPanic(t, name, func() { wordMethods(closed)[name](8) }, "verbs: MR."+name+" of mr lkey "+closed.LKey().String()+", which is closed")
	}
}

// TestUseClosedMR: the memory of AllocMR is gone after Close, and Bytes says so. Memory that the program
// gave is the program's.
func TestUseClosedMR(t *testing.T) {
	x, _ := pair(t)
	mr := must(x.PD.AllocMR(8, verbs.AccessLocalWrite))(t)
	w := must(x.PD.AllocMW(verbs.MWType1))(t)
	bound := must(x.PD.AllocMR(8, verbs.AccessMWBind))(t)
	check(t, x.QP.BindMW(verbs.SendWR{Flags: verbs.SendSignaled}, verbs.MWBind{MW: w, MR: bound, Addr: bound.Addr(), Length: 8}))
	x.Done()
	check(t, mr.Close())
	wantPanic(t, "Bytes", func() { mr.Bytes() }, "verbs: MR.Bytes of mr lkey "+mr.LKey().String()+", which is closed: its memory is gone")
	if mr.Len() != 8 {
		t.Errorf("length %d, want 8 as before", mr.Len())
	}
	wantErr(t, "close of a bound region", bound.Close(), verbs.ErrBusy)
	bound.Bytes()[0] = 1 // it is open still
	check(t, w.Close())
	check(t, bound.Close())
	wantPanic(t, "Bytes", func() { bound.Bytes() }, "is closed")

	own := []byte("program's")
	given := must(x.PD.RegMR(own, 0))(t)
	check(t, given.Close())
	moved := must(x.PD.AllocMR(8, verbs.AccessLocalWrite))(t)
	check(t, moved.Rereg(verbs.ReregTranslation, nil, own, 0))
	check(t, moved.Close())
	if string(given.Bytes()) != "program's" || string(moved.Bytes()) != "program's" {
		t.Errorf("after Close %q and %q, want the program's bytes", given.Bytes(), moved.Bytes())
	}
}

// TestAllocBeyondHost: a length that no host holds is refused at once.
func TestAllocBeyondHost(t *testing.T) {
	pd := must(device(t).AllocPD())(t)
	_, err := pd.AllocMR(math.MaxInt/2+1, 0)
	wantErr(t, "AllocMR", err, verbs.ErrLimit, fmt.Sprintf("alloc mr in pd 1: allocate %d bytes: ", math.MaxInt/2+1))
}

// TestView: views share the bytes, have their types' alignment and size, and refuse types with pointers.
func TestView(t *testing.T) {
	type record struct {
		Version uint64
		Name    [3]byte
		Value   float32
	}
	b := make([]byte, 64)
	words := verbs.View[uint64](b) // Go aligns allocations of this length
	words[1] = math.MaxUint64
	if v := verbs.View[record](b[:32]); len(v) != 2 || v[0].Version != 0 || v[0].Name != [3]byte{255, 255, 255} || !math.IsNaN(float64(v[0].Value)) {
		t.Errorf("view %+v, want two records, and all bits of the first one's end", v)
	}
	if back := verbs.BytesOf(words); len(back) != 64 || &back[0] != &b[0] {
		t.Errorf("%d bytes at %p, want 64 at %p", len(back), &back[0], &b[0])
	}
	if v, e := verbs.View[record](nil), verbs.BytesOf([]int16(nil)); len(v)+len(e) != 0 {
		t.Errorf("views of nothing have %d and %d elements, want none", len(v), len(e))
	}
	for what, f := range map[string]func(){
		"View[uint64] of 12 bytes: the size of uint64 is 8":                    func() { verbs.View[uint64](b[:12]) },
		"the address must be divisible by 8":                                   func() { verbs.View[uint64](b[4:12]) },
		"View[string]: string has a pointer":                                   func() { verbs.View[string](b) },
		"View[struct { A [2]struct { P *int } }]: *int has a pointer":          func() { verbs.View[struct{ A [2]struct{ P *int } }](b) },
		"View[interface { Error() string }]: interface { Error() string } has": func() { verbs.View[interface{ Error() string }](b) },
		"View[struct {}]: the type has no bytes":                               func() { verbs.View[struct{}](b) },
		"BytesOf[[]uint8]: []uint8 has a pointer":                              func() { verbs.BytesOf([][]byte{b}) },
	} {
		wantPanic(t, what, f, "verbs: ", what)
	}
}

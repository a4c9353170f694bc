package mem

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestScatterLate: late payload fills a list of pieces of memory, and leaves the bytes that are kept.
func TestScatterLate(t *testing.T) {
	const size, seed = 400, 20261124
	rng := rand.New(rand.NewPCG(seed, 0))
	pd := NewKeys(16, nil).NewPD()
	buf := make([]byte, size)
	// The same memory by two keys.
	var regions [2]*Region
	for i := range regions {
		mr, err := pd.RegMR(verbs.MRAttr{Buf: buf, Access: verbs.AccessLocalWrite})
		if err != nil {
			t.Fatal(err)
		}
		regions[i] = mr.(*MR).Region
	}
	part := func(from, n int) verbs.SGE {
		r := regions[rng.IntN(2)]
		return verbs.SGE{Addr: r.Addr() + uint64(from), Length: uint32(n), LKey: r.LKey()}
	}
	for round := range 2000 {
		for i := range buf {
			buf[i] = 0
		}
		want := make([]byte, size)
		var sg []verbs.SGE
		src := make([]byte, 0, size)
		var at []int // of each byte of src
		for from := 0; from < size; {
			n := min(1+rng.IntN(100), size-from)
			if rng.IntN(3) > 0 {
				sg = append(sg, part(from, n))
				for i := range n {
					src = append(src, byte(1+rng.IntN(255)))
					at = append(at, from+i)
				}
			}
			from += n
		}
		off := rng.IntN(len(src) + 1)
		for i := off; i < len(src); i++ {
			want[at[i]] = src[i]
		}
		var kept []Span
		for range rng.IntN(4) {
			from := rng.IntN(size)
			n := rng.IntN(size-from) + 1
			var err error
			if kept, err = pd.OpenList(kept, []verbs.SGE{part(from, n)}, 0, uint32(n), verbs.AccessLocalWrite); err != nil {
				t.Fatal(err)
			}
			clear(want[from : from+n])
		}
		if err := pd.ScatterLate(sg, uint32(off), src[off:], kept); err != nil {
			t.Fatal(err)
		}
		for _, s := range kept {
			s.Release()
		}
		if !bytes.Equal(buf, want) {
			t.Fatalf("round %d, seed %d: the memory is %x, want %x", round, seed, buf, want)
		}
	}
	for _, r := range regions {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v, want no error: is a span still open?", err)
		}
	}
}

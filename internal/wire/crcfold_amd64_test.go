//go:build !adverb_portable

package wire

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestFoldCRC compares all lengths on a CPU whose longer payloads are left to hash/crc32.
func TestFoldCRC(t *testing.T) {
	if !hasFold {
		t.Skip("this CPU has no VPCLMULQDQ")
	}
	if !hasWide {
		t.Skip("TestUpdateCRC has compared them: this CPU has no AVX-512")
	}
	hasWide = false
	defer func() { hasWide = true }()
	TestUpdateCRC(t)
}

// TestFewBytes compares packets of all lengths that foldFew does with those that it does not, from all alignments.
func TestFewBytes(t *testing.T) {
	if !hasFew {
		t.Skip("this CPU has no PCLMULQDQ")
	}
	const seed = 2
	rnd := rand.New(rand.NewPCG(seed, 0))
	data := make([]byte, 2*fewMost+64)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	for n := range 2 * fewMost {
		from, c := rnd.IntN(64), rnd.Uint32()
		p := data[from:][:n:n]
		ok := isFew(n)
		if want := n >= 16 && n <= fewMost && n%4 == 0; ok != want {
			t.Fatalf("%d bytes: done: %v, want %v", n, ok, want)
		}
		if !ok {
			continue
		}
		masked := bytes.Clone(p)
		masked[bthCongestion] = 0xff
		if want, got := crc32.Update(c, crc32.IEEETable, masked), foldICRC(c, p); got != want {
			t.Fatalf("seed %d: of %d bytes from %d on with %#08x before: %#08x, want %#08x", seed, n, from, c, got, want)
		}
	}
}

func BenchmarkFewBytes(b *testing.B) {
	for _, n := range []int{16, 32, 88, 256, 384, 512} {
		p := make([]byte, n)
		b.Run(fmt.Sprint(n, "/few"), func(b *testing.B) {
			for i := range b.N {
				foldFew(uint32(i), 0xff<<32, &p[0], n, few)
			}
		})
		b.Run(fmt.Sprint(n, "/tables"), func(b *testing.B) {
			for i := range b.N {
				updateCRC(uint32(i), p)
			}
		})
	}
}

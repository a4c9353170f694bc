//go:build !adverb_portable

package wire

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestFoldCRC compares the ICRCs of packets of all lengths with those that a CPU without AVX-512 computes.
func TestFoldCRC(t *testing.T) {
	if !hasFold {
		t.Skip("this CPU has no VPCLMULQDQ")
	}
	if !hasWide {
		t.Skip("this CPU has no AVX-512")
	}
	defer func() { hasWide = true }()
	const seed = 3
	rnd := rand.New(rand.NewPCG(seed, 0))
	data := make([]byte, 4200)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	flow := NewFlow(netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.2:4791"))
	for n := MinDatagramLen; n < len(data); n++ {
		hasWide = true
		want := flow.ICRC(uint16(n), data[:n])
		hasWide = false
		if got := flow.ICRC(uint16(n), data[:n]); got != want {
			t.Fatalf("seed %d: of %d bytes: %#08x, want %#08x", seed, n, got, want)
		}
	}
	TestUpdateCRC(t)
}

// TestFoldICRC compares packets of all lengths, from all alignments, with hash/crc32.
func TestFoldICRC(t *testing.T) {
	if !hasFew {
		t.Skip("this CPU has no PCLMULQDQ")
	}
	const seed = 2
	rnd := rand.New(rand.NewPCG(seed, 0))
	data := make([]byte, 5000+64)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	for n := range 5000 {
		from, c := rnd.IntN(64), rnd.Uint32()
		p := data[from:][:n:n]
		masked := bytes.Clone(p)
		if n > bthCongestion {
			masked[bthCongestion] = 0xff
		}
		want := crc32.Update(c, crc32.IEEETable, masked)
		few, many := isFew(n), isMany(n)
		if even := n >= 16 && n%4 == 0; few != (even && n <= fewMost) || many != (hasWide && even && n > fewMost) {
			t.Fatalf("%d bytes are few: %v, many: %v", n, few, many)
		}
		if few {
			if got := foldICRC(c, p); got != want {
				t.Fatalf("seed %d: of %d bytes from %d on with %#08x before: %#08x, want %#08x", seed, n, from, c, got, want)
			}
		}
		if many {
			if got := foldLong(c, p); got != want {
				t.Fatalf("seed %d: of %d bytes from %d on with %#08x before: %#08x, want %#08x", seed, n, from, c, got, want)
			}
		}
	}
}

func BenchmarkFewBytes(b *testing.B) {
	for _, n := range []int{16, 32, 88, 256, 384, 512} {
		p := make([]byte, n)
		b.Run(fmt.Sprint(n, "/few"), func(b *testing.B) {
			for i := range b.N {
				foldFew(uint32(i), 0xff<<32, &p[0], n, forICRC)
			}
		})
		b.Run(fmt.Sprint(n, "/tables"), func(b *testing.B) {
			for i := range b.N {
				updateCRC(uint32(i), p)
			}
		})
	}
}

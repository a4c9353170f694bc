package mem

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/adverb-rdma/adverb/verbs"
)

// aligned returns n bytes that start on an address divisible by 16.
func aligned(n int) []byte { return alignedTo(16, n) }

func alignedTo(align, n int) []byte {
	b := make([]byte, n+align)
	off := -int(uintptr(unsafe.Pointer(&b[0]))) & (align - 1)
	return b[off : off+n]
}

// TestPlace: place copies any number of bytes to any offset, and touches no others.
func TestPlace(t *testing.T) {
	const margin, longest = 64, 300
	buf := alignedTo(64, margin+64+longest+margin)
	src := make([]byte, longest)
	fill(src, 1)
	for off := range 64 {
		for n := range longest + 1 {
			for i := range buf {
				buf[i] = 0xaa
			}
			place(buf[margin+off:margin+off+n], src[:n])
			for i, v := range buf {
				want := byte(0xaa)
				if k := i - margin - off; k >= 0 && k < n {
					want = src[k]
				}
				if v != want {
					t.Fatalf("%d bytes at offset %d: byte %d is %#x, want %#x", n, off, i-margin-off, v, want)
				}
			}
			got := make([]byte, n)
			copyFrom(got, buf[margin+off:margin+off+n])
			if !bytes.Equal(got, src[:n]) {
				t.Fatalf("fetch of %d bytes at offset %d: %x, want %x", n, off, got, src[:n])
			}
		}
	}
}

// TestPlaceOrder: a program that sees the last aligned word change sees all other bytes too, those
// behind the word included.
func TestPlaceOrder(t *testing.T) {
	const longest = 256
	rng := rand.New(rand.NewPCG(1, 2))
	buf := aligned(longest + 16)
	src := make([]byte, longest)
	for round := range uint64(500) {
		off := rng.IntN(8)
		n := 8 + (8-off)&7 + rng.IntN(longest-32)
		dst := buf[off : off+n]
		word := (off + n) &^ 7 // end of the last aligned word
		fill(src, round)
		binary.NativeEndian.PutUint64(src[word-8-off:], round+1)
		go place(dst, src[:n])
		p := (*uint64)(unsafe.Pointer(&buf[word-8]))
		for deadline := time.Now().Add(patience); atomic.LoadUint64(p) != round+1; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: the last word is %#x after %v, want %#x", round, atomic.LoadUint64(p), patience, round+1)
			}
		}
		if !bytes.Equal(dst, src[:n]) {
			t.Fatalf("round %d: %d bytes at offset %d are not whole though the last word is there, want them all", round, n, off)
		}
		clear(buf)
	}
}

// fill writes a pattern that differs from word to word and from seed to seed.
func fill(b []byte, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 5))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
}

// TestShared: lent memory is copied whole, from and to any place, and nothing beside it is touched.
func TestShared(t *testing.T) {
	const margin, longest, seed = 64, 3*sharedPiece + 100, 1
	rnd := rand.New(rand.NewPCG(seed, 0))
	pd := newPD(t)
	region := region(t, pd, verbs.MRAttr{Buf: make([]byte, 2*margin+longest), Access: verbs.AccessLocalWrite})
	src := alignedTo(64, longest+margin)
	for i := range src {
		src[i] = byte(1 + rnd.IntN(255))
	}
	for i := range 4000 {
		n := rnd.IntN(longest)
		if i%2 == 0 {
			n = rnd.IntN(300)
		}
		from, to := src[rnd.IntN(margin):][:n], margin+rnd.IntN(margin)
		clear(region.Bytes())
		sge := func(off, n int) verbs.SGE {
			return verbs.SGE{Addr: region.Addr() + uint64(off), Length: uint32(n), LKey: region.LKey()}
		}
		var how string
		var err error
		switch i % 3 {
		case 0:
			how = "PlaceShared"
			Foreign(region.Bytes()[to:]).PlaceShared(from)
		case 1:
			how = "one SGE"
			err = pd.ScatterShared([]verbs.SGE{sge(to-8, n+8)}, 8, from)
		case 2:
			how = "two SGEs"
			cut := rnd.IntN(n + 1)
			err = pd.ScatterShared([]verbs.SGE{sge(to, cut), sge(to+cut, n-cut)}, 0, from)
		}
		got := region.Bytes()
		if err != nil || !bytes.Equal(got[to:to+n], from) || bytes.Count(got, []byte{0}) != len(got)-n {
			t.Fatalf("seed %d: %s of %d bytes from %d to %d: error %v, or other bytes than these and no others; want these bytes alone", seed, how, n, addrOf(from)%64, to, err)
		}
	}
}

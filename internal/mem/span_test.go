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

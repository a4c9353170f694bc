package wire

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// TestRangesGolden: the payload on the wire, and its meaning.
func TestRangesGolden(t *testing.T) {
	r := Ranges{Latest: 0xabcdef, Again: true, Bits: []byte{0b1110_0110, 0b0000_0001, 0, 0b1000_0000}}
	want := []byte{0x80, 0xab, 0xcd, 0xef, 0xe6, 0x01, 0x00, 0x80}
	if got := r.AppendTo(nil); !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
	got, ok := DecodeRanges(want)
	if !ok || got.Latest != r.Latest || !got.Again || !bytes.Equal(got.Bits, r.Bits) {
		t.Errorf("decoded %+v, %v; want %+v", got, ok, r)
	}
	var runs [][2]int
	for from, to := got.Next(0); from < to; from, to = got.Next(to) {
		runs = append(runs, [2]int{from, to})
	}
	if want := [][2]int{{1, 3}, {5, 9}, {31, 32}}; !slices.Equal(runs, want) {
		t.Errorf("runs %v, want %v", runs, want)
	}
}

// TestRangesLengths: only whole words, and not too many, are taken.
func TestRangesLengths(t *testing.T) {
	for n := range MaxRangesSize + 9 {
		_, ok := DecodeRanges(make([]byte, n))
		if want := n >= 4 && n <= MaxRangesSize && n%4 == 0; ok != want {
			t.Errorf("%d bytes: %v, want %v", n, ok, want)
		}
	}
}

// TestHello: a hello is known by its mark.
func TestHello(t *testing.T) {
	b := Hello{Version: 3}.AppendTo(nil)
	if want := "adverb\x00\x03"; string(b) != want || len(b) != HelloSize {
		t.Errorf("%q of %d bytes, want %q", b, len(b), want)
	}
	if h, ok := DecodeHello(b); !ok || h.Version != 3 {
		t.Errorf("decoded %+v, %v; want version 3", h, ok)
	}
	for n := range MaxHelloPorts + 1 { // also odd numbers
		h := Hello{Version: 3}
		for i := range n {
			h.Ports[i] = uint16(0xc000 + i)
		}
		b := h.AppendTo(nil)
		if got, ok := DecodeHello(b); len(b)%4 != 0 || !ok || got != h {
			t.Errorf("%d ports in %d bytes are decoded as %+v, %v; want whole words of 4 bytes, and %+v", n, len(b), got, ok, h)
		}
	}
	for i := range b[:HelloSize-1] {
		other := bytes.Clone(b)
		other[i] ^= 0x20
		if _, ok := DecodeHello(other); ok {
			t.Errorf("%q is taken for ours, want it refused", other)
		}
		if _, ok := DecodeHello(b[:i]); ok {
			t.Errorf("%d bytes are taken for ours, want them refused", i)
		}
	}
}

// FuzzRanges: for any payload, runs are in order and inside of the ranges that have come.
func FuzzRanges(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0xff, 0, 0xf0, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := DecodeRanges(b)
		if !ok {
			return
		}
		if again := r.AppendTo(nil); fmt.Sprintf("%x", again[4:]) != fmt.Sprintf("%x", b[4:]) {
			t.Errorf("% x encodes as % x, want the same behind the first word", b, again)
		}
		last := -1
		for from, to := r.Next(0); from < to; from, to = r.Next(to) {
			if from <= last || to > 8*len(r.Bits) {
				t.Fatalf("run [%d, %d) behind %d, of %d bits, want it behind, and inside of them", from, to, last, 8*len(r.Bits))
			}
			last = to
		}
	})
}

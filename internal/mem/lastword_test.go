package mem

import (
	"bytes"
	"testing"
)

// TestPlaceLastWordLast: the last aligned word is read and stored after all other bytes, those behind it
// included. Source and destination overlap here, so that the order shows in the result, whatever the timing.
func TestPlaceLastWordLast(t *testing.T) {
	const n, at, half = 68, 56, 4 // bytes; where the last aligned word begins; half of it
	buf := aligned(n + 24)
	for i := range buf {
		buf[i] = byte(i + 1)
	}
	dst, src := buf[8:][:n], buf[8+half:][:n] // the word's second half comes from the bytes behind it
	want := bytes.Clone(src)
	copy(want[at+half:at+2*half], src[at+2*half:])
	place(dst, src)
	if !bytes.Equal(dst, want) {
		t.Errorf("got % x, want % x: the last aligned word was not stored last", dst, want)
	}
}

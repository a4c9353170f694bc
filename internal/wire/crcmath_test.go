package wire

import "testing"

// slowMul multiplies bit by bit.
func slowMul(a, b uint32) uint32 {
	const poly = 0xedb88320
	var r uint32
	for range 32 {
		if a>>31 != 0 {
			r ^= b
		}
		a <<= 1
		b = b>>1 ^ poly&-(b&1)
	}
	return r
}

func TestCRCMul(t *testing.T) {
	rnd, seed := newRand(t)
	cases := [][2]uint32{{0, 0}, {1 << 31, 1 << 31}, {1, 1}, {1<<32 - 1, 1<<32 - 1}, {1<<32 - 1, 1 << 31}, {1 << 30, 1}}
	for range 10000 {
		cases = append(cases, [2]uint32{rnd.Uint32(), rnd.Uint32()})
	}
	for _, c := range cases {
		if got, want := crcMul(c[0], c[1]), slowMul(c[0], c[1]); got != want {
			t.Fatalf("seed %d: crcMul(%#x, %#x) = %#x, want %#x", seed, c[0], c[1], got, want)
		}
	}
}

// TestUnshiftWords moves a register on by zero words, then back in one step.
func TestUnshiftWords(t *testing.T) {
	rnd, seed := newRand(t)
	start := rnd.Uint32()
	c := start
	for n := range maxDatagramLen/4 + 8 {
		if got := unshiftWords(c, n); got != start {
			t.Fatalf("seed %d: %d words on and back: got %#x, want %#x", seed, n, got, start)
		}
		c = shift1(shift1(shift1(shift1(c))))
	}
}

package wire

import (
	"math/rand/v2"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
)

func TestPSNAdd(t *testing.T) {
	for _, tt := range []struct {
		p    PSN
		n    int
		want PSN
	}{
		{0, 0, 0},
		{0, 1, 1},
		{0xffffff, 1, 0},
		{0xfffffe, 5, 3},
		{0, -1, 0xffffff},
		{3, -5, 0xfffffe},
		{0x123456, 1 << 24, 0x123456},
		{0x123456, -1 << 24, 0x123456},
		{0x800000, 1 << 23, 0},
		{0x05d592, 0x1000, 0x05e592},
	} {
		if got := tt.p.Add(tt.n); got != tt.want {
			t.Errorf("%v.Add(%d) = %v, want %v", tt.p, tt.n, got, tt.want)
		}
	}
}

func TestPSNDiff(t *testing.T) {
	for _, tt := range []struct {
		p, q PSN
		want int
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 1, -1},
		{0, 0xffffff, 1},
		{0xffffff, 0, -1},
		{2, 0xfffffe, 4},
		{0x7fffff, 0, 1<<23 - 1},
		{0x800000, 0, -1 << 23},
		{0, 0x800000, -1 << 23}, // half-way round, each comes before the other
		{0x800001, 0, -(1<<23 - 1)},
		{0, 0x800001, 1<<23 - 1},
	} {
		if got := tt.p.Diff(tt.q); got != tt.want {
			t.Errorf("%v.Diff(%v) = %d, want %d", tt.p, tt.q, got, tt.want)
		}
		if got, want := tt.p.Less(tt.q), tt.want < 0; got != want {
			t.Errorf("%v.Less(%v) = %v, want %v", tt.p, tt.q, got, want)
		}
		if got, want := tt.p.LessEq(tt.q), tt.want <= 0; got != want {
			t.Errorf("%v.LessEq(%v) = %v, want %v", tt.p, tt.q, got, want)
		}
	}
}

// TestPSNDiffUndoesAdd walks the window from everywhere.
func TestPSNDiffUndoesAdd(t *testing.T) {
	rnd, seed := newRand(t)
	for range 10000 {
		p := PSN(rnd.Uint32()) & PSNMask
		n := rnd.IntN(1<<24) - 1<<23
		q := p.Add(n)
		if q > PSNMask || q.Diff(p) != n || q.Add(-n) != p {
			t.Fatalf("seed %d: p = %v, n = %d: p.Add(n) = %v, Diff %d, back at %v, want n and p again, of 24 bits", seed, p, n, q, q.Diff(p), q.Add(-n))
		}
	}
}

func TestPSNString(t *testing.T) {
	for p, want := range map[PSN]string{0: "0x000000", 0x05d592: "0x05d592", 0xffffff: "0xffffff"} {
		if got := p.String(); got != want {
			t.Errorf("PSN(%d).String() = %q, want %q", uint32(p), got, want)
		}
	}
}

// newRand returns a source of random numbers and its seed.
func newRand(t *testing.T) (*rand.Rand, uint64) {
	t.Helper()
	seed := linktest.Seed(t)
	return rand.New(rand.NewPCG(seed, 0)), seed
}

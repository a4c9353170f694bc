package cm

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestMilliseconds(t *testing.T) {
	for code, want := range map[uint8]time.Duration{0: 1, 8: 1, 9: 2, 18: 1024, 19: 2048, 20: 4096, 24: 65536, 31: 1 << 23, 255: 1 << 23} {
		if got := milliseconds(code); got != want*time.Millisecond {
			t.Errorf("code %d is %v, want %d ms", code, got, want)
		}
	}
}

func TestACKTimeout(t *testing.T) {
	for _, test := range []struct{ delay, lifetime, want uint8 }{
		{15, 18, 19}, {15, 16, 17}, {0, 0, 2}, {0, 31, 31}, {17, 16, 18}, {16, 16, 18}, {31, 0, 31}, {31, 31, 31}, {18, 16, 19}, {19, 16, 19},
	} {
		if got := ackTimeout(test.delay, test.lifetime); got != test.want {
			t.Errorf("delay %d, lifetime %d: %d, want %d", test.delay, test.lifetime, got, test.want)
		}
	}
}

// The heap of timers against a plain list.
func TestTimers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var h timers
	all := make([]timer, 200)
	for range 20000 {
		x := &all[rnd.IntN(len(all))]
		if rnd.IntN(3) == 0 {
			h.stop(x)
		} else {
			h.set(x, time.Duration(rnd.IntN(1000)))
		}
		var set []time.Duration
		for i := range all {
			if p := all[i].place; p > 0 {
				set = append(set, all[i].at)
				if h[p-1] != &all[i] {
					t.Fatal("a timer is not where it says")
				}
			}
		}
		if len(set) != len(h) || len(h) > 0 && h[0].at != slices.Min(set) {
			t.Fatalf("%d timers of %d set, or the first is not the earliest", len(h), len(set))
		}
	}
	last := time.Duration(-1)
	for len(h) > 0 {
		x := h[0]
		if x.at < last {
			t.Fatal("out of order")
		}
		last = x.at
		h.stop(x)
	}
}

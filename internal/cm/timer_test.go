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
			t.Errorf("code %d: got %v, want %v", code, got, want*time.Millisecond)
		}
	}
}

func TestACKTimeout(t *testing.T) {
	for _, test := range []struct{ delay, lifetime, want uint8 }{
		{15, 18, 19}, {15, 16, 17}, {0, 0, 2}, {0, 31, 31}, {17, 16, 18}, {16, 16, 18}, {31, 0, 31}, {31, 31, 31}, {18, 16, 19}, {19, 16, 19},
	} {
		if got := ackTimeout(test.delay, test.lifetime); got != test.want {
			t.Errorf("delay %d, lifetime %d: got code %d, want %d", test.delay, test.lifetime, got, test.want)
		}
	}
}

// TestTimers compares the heap of timers with a plain list.
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
					t.Fatalf("timer %d: got another one at its place %d", i, p)
				}
			}
		}
		if len(h) != len(set) {
			t.Fatalf("got %d timers in the heap, want the %d that are set", len(h), len(set))
		}
		if len(h) > 0 && h[0].at != slices.Min(set) {
			t.Fatalf("got %v as the earliest timeout, want %v", h[0].at, slices.Min(set))
		}
	}
	last := time.Duration(-1)
	for len(h) > 0 {
		x := h[0]
		if x.at < last {
			t.Fatalf("got a timeout at %v after one at %v, want them in order", x.at, last)
		}
		last = x.at
		h.stop(x)
	}
}

// BenchmarkTimers sets, moves and stops a timer while 10,000 connections have theirs set.
func BenchmarkTimers(b *testing.B) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var h timers
	all := make([]timer, 10001)
	for i := range all[1:] {
		h.set(&all[1+i], time.Duration(rnd.Int64N(int64(time.Minute))))
	}
	x := &all[0]
	at := make([]time.Duration, 1024)
	for i := range at {
		at[i] = time.Duration(rnd.Int64N(int64(time.Minute)))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h.set(x, at[i%len(at)])
		h.set(x, at[(i+1)%len(at)])
		h.stop(x)
	}
}

package recovery

import (
	"testing"
	"time"
)

// TestBurstsChosen: both ways are tried. The one that takes less time for a packet stays, and the other is tried
// again much later. Hiccups decide nothing.
func TestBurstsChosen(t *testing.T) {
	const often = burstGap - 1
	run := func(b *bursts, n int, gap uint64, suits bool, inBursts, sliding time.Duration) (on int) {
		for range n {
			b.missed(gap)
			took := sliding
			if b.on {
				on++
				took = inBursts
			}
			b.choose(suits, took)
		}
		return on
	}
	for _, tt := range []struct {
		name              string
		gap               uint64
		suits             bool
		inBursts, sliding time.Duration
		least, most       int // of 100 losses, in bursts
	}{
		{"bursts are faster", 100, true, 40 * us, 60 * us, 90, 99},
		{"the window is faster", 100, true, 10 * us, 8 * us, 1, 10},
		{"losses are frequent", often, true, 40 * us, 60 * us, 0, 0},
		{"the path holds much", 100, false, 40 * us, 60 * us, 0, 0},
	} {
		if on := run(new(bursts), 100, tt.gap, tt.suits, tt.inBursts, tt.sliding); on < tt.least || on > tt.most {
			t.Errorf("%s: bursts for %d of 100 losses, want %d to %d", tt.name, on, tt.least, tt.most)
		}
	}
	var b bursts
	run(&b, 100, 100, true, 40*us, 60*us)
	b.choose(true, time.Second)
	if !b.on {
		t.Error("one hiccup ends bursts")
	}
	if on := run(&b, 3*burstForgets, 100, true, 40*us, 60*us); on == 3*burstForgets || on < 2*burstForgets {
		t.Errorf("bursts for %d of %d losses, want most, and that the window is tried again", on, 3*burstForgets)
	}
	if on := run(&b, 100, 100, true, 80*us, 60*us); on > 50 {
		t.Errorf("where bursts have become slow, they are used for %d of 100 losses, want 50 at most", on)
	}
	b = bursts{}
	run(&b, 100, 100, true, 40*us, 60*us)
	for range 20 {
		b.missed(often)
	}
	if b.choose(true, 40*us); b.on {
		t.Error("bursts stay where losses have become frequent")
	}
}

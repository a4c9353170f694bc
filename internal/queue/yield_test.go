package queue

import (
	"testing"
	"time"
)

// TestYielder: nobody yields for a while after a yield that took long, and for longer each time, until many
// in a row were short.
func TestYielder(t *testing.T) {
	var now, takes time.Duration
	yields := 0
	y := NewYielder(func() time.Duration { return now }, func() { yields++; now += takes })
	count := func(n int) int {
		before := yields
		for range n {
			y.Yield()
		}
		return yields - before
	}
	takes = yieldLong - 1
	if n := count(10); n != 10 {
		t.Errorf("%d of 10 short yields were made, want all", n)
	}
	for i, want := range []time.Duration{pauseFirst, 2 * pauseFirst, 4 * pauseFirst} {
		takes = yieldLong
		if n := count(3); n != 1 {
			t.Errorf("long yield %d: %d of 3 were made, want 1", i+1, n)
		}
		now += want - 1
		if n := count(1); n != 0 || !y.Crowded() {
			t.Errorf("long yield %d: another one before %v were over, or the cores do not count as crowded; want neither", i+1, want)
		}
		now++
		if y.Crowded() {
			t.Errorf("long yield %d: the cores count as crowded after %v, want no more", i+1, want)
		}
	}
	for range 20 {
		y.Yield()
		now += pauseMost
	}
	takes = 0
	if n := count(forgetting); n != forgetting {
		t.Errorf("%v after a long yield %d of %d were made, want all", pauseMost, n, forgetting)
	}
	takes = yieldLong
	y.Yield()
	now += pauseFirst
	if n := count(1); n != 1 {
		t.Errorf("none %v after the first long yield since %d short ones, want one", pauseFirst, forgetting)
	}
}

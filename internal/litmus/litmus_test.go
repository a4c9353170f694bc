package litmus

import (
	"sync/atomic"
	"testing"
)

// TestRace: each piece runs once a round, on either thread, between prepare and check.
func TestRace(t *testing.T) {
	var a, b atomic.Int64
	prepared, rounds := false, int64(0)
	Race(t, 10, func() {
		prepared = true
		a.Store(0)
		b.Store(0)
	}, func() { a.Add(1) }, func() { b.Add(1) }, func() string {
		rounds++
		if !prepared || a.Load() != 1 || b.Load() != 1 {
			return "a piece has not run once after prepare"
		}
		prepared = false
		return ""
	})
	if rounds == 0 {
		t.Error("no rounds, want some")
	}
}

// TestFenced: of two that each store one word and then load the other's, by package atomic, one sees the other.
func TestFenced(t *testing.T) {
	var x, y atomic.Uint64
	var seenY, seenX uint64
	both := 0
	Race(t, 1, func() {
		x.Store(0)
		y.Store(0)
	}, func() {
		x.Store(1)
		seenY = y.Load()
	}, func() {
		y.Store(1)
		seenX = x.Load()
	}, func() string {
		switch {
		case seenX == 0 && seenY == 0:
			return "neither saw the other's store"
		case seenX == 1 && seenY == 1:
			both++
		}
		return ""
	})
	t.Logf("in %d rounds each saw the other's store", both)
}

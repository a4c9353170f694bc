package transport

import "testing"

// checkFlight checks that the ranges cover [una, max) without gaps, and that nxt is the first lost.
func checkFlight(t testing.TB, f *flight) {
	t.Helper()
	at, nxt := f.una, f.max
	for i, r := range f.ranges {
		if r.end <= at {
			t.Fatalf("range %d ends at %d, and begins at %d: %+v", i, r.end, at, f.ranges)
		}
		if r.lost {
			nxt = min(nxt, at)
		}
		at = r.end
	}
	if at != f.max || f.nxt != nxt {
		t.Fatalf("ranges %+v from %d end at %d, and the first lost is %d; want %d and %d", f.ranges, f.una, at, nxt, f.max, f.nxt)
	}
}

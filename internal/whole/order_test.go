package whole

import "testing"

// TestWholeOutOfOrder makes runs on networks that lose, repeat and reorder much, between devices that hold or
// place what comes before others. All that is checked of other runs is checked of these: see oracle_test.go.
func TestWholeOutOfOrder(t *testing.T) {
	runs := uint64(40)
	if testing.Short() {
		runs = 10
	}
	var sum totals
	for seed := range runs {
		p := draw(1000 + seed)
		p.Loss, p.Reorder, p.Duplicate, p.Corrupt = 0.03, 0.1, 0.02, 0
		p.IPv6, p.Visible = false, false // else they do not know each other
		p.Ops, p.Lives, p.Queue = 60, 1, 0
		w, err := attempt(t, p, nil, nil)
		if err != nil {
			t.Fatalf("seed %d, plan %v: %v", p.Seed, p, err)
		}
		sum.add(&w.totals)
	}
	if sum.Held < 10*runs || sum.Needless == 0 {
		t.Errorf("%d packets were held or placed before others, and %d repeats proved needless, in %d runs; want some", sum.Held, sum.Needless, runs)
	}
}

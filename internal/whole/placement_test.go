package whole

import "testing"

// TestWholePlacement makes runs in which ends FLUSH and send ATOMIC WRITEs, over RC and XRC.
func TestWholePlacement(t *testing.T) {
	sum, runs := changed(t, 9000, func(p *plan) { p.Place, p.XRC = true, true })
	if sum.Flushes < runs || sum.AtomicWrites < runs {
		t.Errorf("%d FLUSHes and %d ATOMIC WRITEs in %d runs, want some in each", sum.Flushes, sum.AtomicWrites, runs)
	}
}

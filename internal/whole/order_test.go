package whole

import "testing"

// TestWholeOutOfOrder makes runs on networks that lose, repeat and reorder much, over IPv4 and IPv6, between devices
// that hold or place packets that come before others. These runs get all checks of other runs: see oracle_test.go.
func TestWholeOutOfOrder(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		sum, runs := changed(t, 1000, func(p *plan) {
			p.Loss, p.Reorder, p.Duplicate, p.Corrupt = 0.03, 0.1, 0.02, 0
			p.IPv6, p.Visible, p.Bare, p.Route = ipv6, ipv6 && p.Visible, false, false // so they know each other, and hold nothing else
			p.Ops, p.Lives, p.Queue = 60, 1, 0
		})
		if sum.Held < 10*runs || sum.Needless == 0 {
			t.Errorf("IPv6 %v: %d packets were held or placed before others, and %d repeats proved needless, in %d runs; want some",
				ipv6, sum.Held, sum.Needless, runs)
		}
	}
}

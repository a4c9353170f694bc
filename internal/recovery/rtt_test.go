package recovery

import (
	"testing"
	"time"
)

// TestPTO: a packet counts as lost after twice the RTT, or later where round trips vary, and not before
// busy hosts answer.
func TestPTO(t *testing.T) {
	for _, tt := range []struct{ rtt, rttvar, want time.Duration }{
		{100 * us, 10 * us, MinPTO},
		{10 * ms, ms, 20 * ms},
		{10 * ms, 5 * ms, 30 * ms},
	} {
		s := rttEstimator{srtt: tt.rtt, rttvar: tt.rttvar}
		if got := s.pto(MinPTO); got != tt.want {
			t.Errorf("round trips of %v, give or take %v: a PTO of %v, want %v", tt.rtt, tt.rttvar, got, tt.want)
		}
	}
}

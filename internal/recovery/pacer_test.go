package recovery

import (
	"testing"
	"time"
)

// TestPaceLate: the lateness of a timer is made up for, up to paceSlack. A QP that had nothing to send saves up
// nothing.
func TestPaceLate(t *testing.T) {
	var p pacer
	p.setRate(1e6)
	burst := func(now time.Duration) (n int) { // packets of 10 µs
		for ; p.notBefore <= now; n++ {
			p.sent(now, 10)
		}
		p.waits = true // there is more
		return n
	}
	if n := burst(0); n != 5 {
		t.Errorf("%d packets go at once, want 5", n)
	}
	if n := burst(50*us + 200*us); n != 25 {
		t.Errorf("after a timer that is 200 µs late %d packets go, want 25", n)
	}
	if n := burst(time.Second); n != 105 {
		t.Errorf("after one that is a second late %d packets go, want 105", n)
	}
	p.waits = false // and nothing was to be sent
	if n := burst(2 * time.Second); n != 5 {
		t.Errorf("after a pause %d packets go, want 5", n)
	}
	p.setRate(0)
	if p.Holds(2*time.Second) || p.notBefore != 0 {
		t.Errorf("without a rate the pace holds until %v, want no hold", p.notBefore)
	}
}

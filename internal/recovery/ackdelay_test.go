package recovery

import (
	"testing"
	"time"
)

// TestSlownessEnds: where packets are lost, a peer that was slow once is soon probed as others are.
func TestSlownessEnds(t *testing.T) {
	var s ackDelay
	s.learn(0, 80*ms)
	if got := s.bound(delayMemory - 1); got != 100*ms {
		t.Errorf("a silence may be the delay of the peer for %v, want the longest and a quarter, %v", got, 100*ms)
	}
	s.lost(delayMemory)
	s.lost(delayMemory)
	if got := s.bound(delayMemory + 1); got != 25*ms {
		t.Errorf("after two signs of loss and a part of the memory %v, want %v", got, 25*ms)
	}
	s.learn(delayMemory+2, 4*ms)
	if got := s.bound(2*delayMemory + 1); got != 5*ms {
		t.Errorf("after the next part of the memory %v, want %v", got, 5*ms)
	}
	if s.isLossFree(2*delayMemory) || !s.isLossFree(2*delayMemory+1) {
		t.Error("a sign of loss counts for another time than the memory")
	}
	s.learn(2*delayMemory+2, 8*ms)
	if got := s.bound(9 * delayMemory); got != 0 {
		t.Errorf("long after %v, want none", got)
	}
	s.learn(9*delayMemory, 5*time.Second)
	if got := s.bound(9 * delayMemory); got != delayMost+delayMost/4 {
		t.Errorf("after 5 s without an answer %v, want %v: that was an outage", got, delayMost+delayMost/4)
	}
}

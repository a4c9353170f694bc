package recovery

import (
	"testing"
	"time"
)

// TestProbeAnsweredTwice: a peer that answers a probe's packet once more was slow, and has lost nothing. The next
// silence lasts a quarter longer than the answer took. A second answer to the same probe says nothing.
func TestProbeAnsweredTwice(t *testing.T) {
	const took = 20 * time.Millisecond
	s := newState(t)
	s.remembers().answered = probe{from: 5, to: 6, n: 1, took: took}
	if s.NeedlessProbe(time.Second, 4) || s.NeedlessProbe(time.Second, 6) {
		t.Error("an answer to something else tells of the probe")
	}
	if !s.NeedlessProbe(time.Second, 5) || s.NeedlessProbe(time.Second, 5) {
		t.Error("the second answer to the probe is not told once")
	}
	if got := s.peerDelay(time.Second); got != took+took/4 || s.Counts().NeedlessProbes != 1 {
		t.Errorf("a delay of %v, and %d needless probes; want %v, and 1", got, s.Counts().NeedlessProbes, took+took/4)
	}
}

// TestProbeWaitsForNaps: a probe comes after two round trips, or after the usual lateness of hosts. A peer that has
// made us go back has less time, unless it is an adverb, where a program may hold acknowledgements back.
func TestProbeWaitsForNaps(t *testing.T) {
	for _, tt := range []struct {
		rtt  time.Duration
		back bool
		ours bool
		want time.Duration
	}{
		{100 * us, false, false, MinPTO}, {100 * us, true, false, goBackPTO}, {100 * us, true, true, MinPTO},
		{3 * ms, false, false, 6 * ms}, {3 * ms, true, false, 6 * ms},
	} {
		r := newState(t)
		r.update(tt.rtt)
		r.rttvar, r.wentBack, r.sackPermitted = 0, tt.back, tt.ours
		r.Sent(ms, 1, false)
		if got := r.probing.at - ms; got != tt.want {
			t.Errorf("round trips of %v, went back: %v, a peer like us: %v: a probe after %v, want %v", tt.rtt, tt.back, tt.ours, got, tt.want)
		}
	}
}

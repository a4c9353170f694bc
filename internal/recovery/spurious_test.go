package recovery

import (
	"testing"
	"time"
)

// selectiveState knows the RTT, and that the peer acknowledges selectively.
func selectiveState(t *testing.T) *State {
	t.Helper()
	r := newState(t)
	r.update(8 * ms)
	r.window, r.ssthresh, r.sacks = 200, 200, true
	return r
}

// TestSilenced: if two probes bring no answer, a peer that acknowledges selectively has none of the packets in flight. The
// window begins again, and is restored if an acknowledgement of the first copies comes after all.
func TestSilenced(t *testing.T) {
	r := selectiveState(t)
	r.Sent(0, 10, false)
	for k := range persistentPTOs {
		if r.window != 200 {
			t.Errorf("the window is %d after %d probes, want 200 still", r.window, k)
		}
		if !r.ProbeDue(r.probing.at) {
			t.Fatal("no probe is due at its time")
		}
	}
	if r.window != RestartWindow || r.ssthresh != 100 {
		t.Errorf("the window is %d and grows quickly to %d after %d probes, want %d and 100", r.window, r.ssthresh, persistentPTOs, RestartWindow)
	}
	r.loseAll()
	if !r.Acknowledged(10*ms, r.max) || r.window < 200 || r.ssthresh != 200 {
		t.Errorf("the window is %d and grows quickly to %d once all has arrived, want 200 for both", r.window, r.ssthresh)
	}
}

// TestLateAtMost: the reorder window has a bound of two round trips, however late a packet is.
func TestLateAtMost(t *testing.T) {
	r := selectiveState(t)
	if r.reorder.widen(0, 4*ms, r.srtt); r.reorder.size != 4*ms+ms/2 {
		t.Errorf("a reorder window of %v with packets late by 4 ms, want an eighth more", r.reorder.size)
	}
	if r.reorder.widen(0, time.Second, r.srtt); r.reorder.size != 16*ms {
		t.Errorf("a reorder window of %v with packets late by a second, want two round trips of 8 ms", r.reorder.size)
	}
}

// TestLossRestored: the window gets back the packets that a spurious loss has cost. Half packets come back one by
// one.
func TestLossRestored(t *testing.T) {
	for name, prove := range map[string]func(r *State, seq uint64){
		"came twice": func(r *State, seq uint64) { r.SpuriousRepeat(ms, seq) },
		"came once":  func(r *State, seq uint64) { r.spuriousLoss(ms, seq) },
	} {
		r := selectiveState(t)
		for seq := range uint64(4) {
			r.declare(seq, seq+1, 0, 0)
		}
		if r.NoteLost(0, 4, 4); r.window != 198 {
			t.Errorf("%s: the window is %d after 4 losses, want 198 of 200", name, r.window)
		}
		prove(r, 0)
		if prove(r, 1); r.window != 200 {
			t.Errorf("%s: the window is %d after 2 of them were none, want 200", name, r.window)
		}
	}
}

// TestQueueRestored: where packets wait in the path, losses narrow the window once by the queue. The window is
// restored when all of the losses prove spurious, and not when some do.
func TestQueueRestored(t *testing.T) {
	for name, needless := range map[string][]uint64{"none": {5, 6, 7}, "one is lost": {5, 7}, "one, often": {6, 6, 6}} {
		r := selectiveState(t)
		r.srtt = 2*r.minRTT + 2*queueTime
		r.declare(1, 2, 0, 0) // from before
		for seq := uint64(5); seq < 8; seq++ {
			r.declare(seq, seq+1, 0, 0)
		}
		r.NoteLost(0, 3, 3)
		narrow := r.window
		if narrow != 100 || r.ssthresh != 100 {
			t.Fatalf("the window is %d and grows quickly to %d, want half of 200 for both", narrow, r.ssthresh)
		}
		r.SpuriousRepeat(ms, 1)
		for _, seq := range needless {
			r.SpuriousRepeat(ms, seq)
		}
		if name == "none" {
			if r.window != 200 || r.ssthresh != 200 || r.lostAt != Never {
				t.Errorf("the window is %d and grows quickly to %d, narrowed at %v; want 200, 200 and never", r.window, r.ssthresh, r.lostAt)
			}
		} else if want := narrow + 1 + uint64(len(needless)); r.window != want || r.ssthresh != narrow || r.lostAt != 0 {
			t.Errorf("%s: the window is %d and grows quickly to %d, want %d and %d", name, r.window, r.ssthresh, want, narrow)
		}
	}
}

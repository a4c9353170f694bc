package transport

import (
	"testing"
	"time"
)

// selectiveRecovery knows the round trip, and that the peer repeats selectively.
func selectiveRecovery(t *testing.T) *recovery {
	t.Helper()
	r := &newPair(t, setup{selective: true}).a.rc().recovery
	r.measured(8 * ms)
	r.window, r.threshold, r.selective = 200, 200, true
	return r
}

// TestSilenced: a peer that tells what it has had nothing if two probes bring no word. The window begins again, and is
// what it was if an acknowledgement of the first copies comes after all.
func TestSilenced(t *testing.T) {
	r := selectiveRecovery(t)
	r.sent(0, 10, false)
	for k := range silentProbes {
		if r.window != 200 {
			t.Errorf("the window is %d after %d probes, want 200 still", r.window, k)
		}
		r.backOff(ms)
	}
	if r.window != restartWindow || r.threshold != 100 {
		t.Errorf("the window is %d and grows quickly to %d after %d probes, want %d and 100", r.window, r.threshold, silentProbes, restartWindow)
	}
	r.loseAll()
	if !r.acknowledged(10*ms, r.max) || r.window < 200 || r.threshold != 200 {
		t.Errorf("the window is %d and grows quickly to %d once all has arrived, want 200 for both", r.window, r.threshold)
	}
}

// TestLateAtMost: patience has a bound of two round trips, however late a packet is.
func TestLateAtMost(t *testing.T) {
	r := selectiveRecovery(t)
	if r.late(0, 4*ms); r.patience != 4*ms+ms/2 {
		t.Errorf("patience of %v with what was late by 4 ms, want an eighth more", r.patience)
	}
	if r.late(0, time.Second); r.patience != 16*ms {
		t.Errorf("patience of %v with what was late by a second, want two round trips of 8 ms", r.patience)
	}
}

// TestLossRestored: what a loss has cost the window comes back if there was none. Half packets come back one by one.
func TestLossRestored(t *testing.T) {
	for name, prove := range map[string]func(r *recovery, seq uint64){
		"came twice": func(r *recovery, seq uint64) { r.inVain(ms, seq) },
		"came once":  func(r *recovery, seq uint64) { r.notLost(ms, seq) },
	} {
		r := selectiveRecovery(t)
		ours := true
		r.ours = &ours
		for seq := range uint64(4) {
			r.suspect(seq, seq+1, 0, 0)
		}
		if r.missed(0, 4, 4); r.window != 198 {
			t.Errorf("%s: the window is %d after 4 losses, want 198 of 200", name, r.window)
		}
		prove(r, 0)
		if prove(r, 1); r.window != 200 {
			t.Errorf("%s: the window is %d after 2 of them were none, want 200", name, r.window)
		}
	}
}

// TestQueueRestored: where packets wait in the path, losses narrow the window once by what waits. It comes back when
// all of them prove to be none, and not when some do.
func TestQueueRestored(t *testing.T) {
	for name, vain := range map[string][]uint64{"none": {5, 6, 7}, "one is lost": {5, 7}, "one, often": {6, 6, 6}} {
		r := selectiveRecovery(t)
		r.roundTrip = 2*r.leastTrip + 2*queueTime
		r.suspect(1, 2, 0, 0) // from before
		for seq := uint64(5); seq < 8; seq++ {
			r.suspect(seq, seq+1, 0, 0)
		}
		r.missed(0, 3, 3)
		narrow := r.window
		if narrow != 100 || r.threshold != 100 {
			t.Fatalf("the window is %d and grows quickly to %d, want half of 200 for both", narrow, r.threshold)
		}
		r.inVain(ms, 1)
		for _, seq := range vain {
			r.inVain(ms, seq)
		}
		if name == "none" {
			if r.window != 200 || r.threshold != 200 || r.lostAt != Never {
				t.Errorf("the window is %d and grows quickly to %d, narrowed at %v; want 200, 200 and never", r.window, r.threshold, r.lostAt)
			}
		} else if want := narrow + 1 + uint64(len(vain)); r.window != want || r.threshold != narrow || r.lostAt != 0 {
			t.Errorf("%s: the window is %d and grows quickly to %d, want %d and %d", name, r.window, r.threshold, want, narrow)
		}
	}
}

package recovery

import (
	"testing"
	"time"
)

// TestReorderWindowAfterSpurious: a packet that was declared lost and comes twice widens the reorder window, once, though a
// READ's answer is many packets. A packet that was not declared lost does not.
func TestReorderWindowAfterSpurious(t *testing.T) {
	rec := newState(t)
	rec.minRTT, rec.srtt = 8*ms, 8*ms
	rec.declare(5, 8, 0, rec.reorder.size)
	if rec.SpuriousRepeat(ms, 8) || rec.reorder.size != 0 {
		t.Errorf("a packet that was not declared lost: a reorder window of %v, want none", rec.reorder.size)
	}
	if !rec.SpuriousRepeat(ms, 5) || rec.reorder.size < 2*ms {
		t.Errorf("a packet that was: a reorder window of %v, want a quarter of an RTT and more", rec.reorder.size)
	}
	before := rec.reorder.size
	if !rec.SpuriousRepeat(ms, 6) || rec.reorder.size != before {
		t.Errorf("another packet of the same: a reorder window of %v, want %v still", rec.reorder.size, before)
	}
}

// TestPostponed: a READ request that waits for one before it, which is sent again, is expected anew. So it is not lost at
// once if it was overtaken before.
func TestPostponed(t *testing.T) {
	rec := newState(t)
	second := rec.una + 8
	rec.Sent(0, 8, true)
	rec.Sent(us, 8, true)
	overtake := func(at time.Duration) {
		seq := rec.nxt
		rec.Sent(at, 1, false)
		rec.Arrived(at+ms, seq, seq+1)
	}
	overtake(2 * us)
	if at, ok := rec.expectedAt(&rec.ranges[1], second); !ok || at != ms+us {
		t.Errorf("overtaken: %v, expected at %v; want it overtaken, and expected at %v", ok, at, ms+us)
	}
	rec.postpone(10*ms, second)
	overtake(11 * ms)
	if at, ok := rec.expectedAt(&rec.ranges[1], second); !ok || at != 11*ms {
		t.Errorf("postponed: overtaken: %v, expected at %v; want it overtaken, and expected at %v", ok, at, 11*ms)
	}
}

// TestSpuriousOnce: the answer to one READ that was needlessly asked for twice is many packets, and one sign.
func TestSpuriousOnce(t *testing.T) {
	r := newState(t)
	r.update(8 * ms)
	r.declare(0, 64, 0, r.reorder.size)
	for k := range uint64(64) {
		if !r.SpuriousRepeat(ms, k) {
			t.Fatalf("packet %d was not declared lost, want it to be", k)
		}
	}
	if r.SpuriousRepeat(ms, 64) {
		t.Error("a packet that was never declared lost was repeated needlessly")
	}
	if want := 2*ms + ms/4; r.reorder.size != want {
		t.Errorf("a reorder window of %v, want %v", r.reorder.size, want)
	}
}

// TestSpuriousTogether: packets that were declared lost with the same reorder window, and all needlessly, show once that the
// window was too small.
func TestSpuriousTogether(t *testing.T) {
	r := newState(t)
	r.update(8 * ms)
	for k := range uint64(10) {
		r.declare(2*k, 2*k+1, 0, r.reorder.size)
	}
	for k := range uint64(10) {
		r.SpuriousRepeat(ms, 2*k)
	}
	want := 2*ms + ms/4
	if r.reorder.size != want {
		t.Errorf("a reorder window of %v after ten at once, want %v", r.reorder.size, want)
	}
	r.declare(30, 31, 0, r.reorder.size)
	if r.SpuriousRepeat(ms, 30); r.reorder.size < want+2*ms {
		t.Errorf("a reorder window of %v after one more with that window, want %v and a quarter of a RTT at least", r.reorder.size, want)
	}
}

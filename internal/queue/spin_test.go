package queue

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// withCPUs has the process run on one CPU, or on several, for the time of the test.
func withCPUs(t *testing.T, one bool) {
	before := oneCPU
	oneCPU = one
	t.Cleanup(func() { oneCPU = before })
}

// TestOneCPU: where there is one CPU, each look in vain gives it away, though to get it back takes long. A look that
// finds something does not, nor one that has worked for others.
func TestOneCPU(t *testing.T) {
	for _, one := range []bool{true, false} {
		withCPUs(t, one)
		var now time.Duration
		yields, works := 0, false
		c := NewCQ(4, CQHooks{Progress: func() bool { return works }, Notify: func() {}, Yielder: NewYielder(func() time.Duration { return now }, func() {
			yields++
			now += yieldLong
		})})
		var wcs [1]verbs.WC
		for range 3 {
			c.Poll(wcs[:])
		}
		works = true
		c.Poll(wcs[:])
		c.Push([]CQE{{WC: verbs.WC{ID: 1}}})
		if n, err := c.Poll(wcs[:]); n != 1 || err != nil {
			t.Errorf("Poll: %d completions, error %v, want one", n, err)
		}
		want := 0
		if one {
			want = 3
		}
		if yields != want {
			t.Errorf("one CPU %v: %d yields with 3 polls in vain, one that works and one that finds a completion, want %d", one, yields, want)
		}
	}
}

// TestSoonYields: a program that looks for completions gives its core away now and then, and not with each look. It
// looks on where there is no way to.
func TestSoonYields(t *testing.T) {
	for _, canYield := range []bool{true, false} {
		looks, yields := 0, 0
		hooks := CQHooks{Progress: func() bool { looks++; return false }, Notify: func() {}, Arming: func() {}, Spin: 1000, Now: func() time.Duration { return 0 }}
		if canYield {
			hooks.Yielder = NewYielder(func() time.Duration { return 0 }, func() { yields++ })
		}
		c := NewCQ(4, hooks)
		if c.Soon() || looks != 0 {
			t.Fatalf("before any sleep: %d looks, want none", looks)
		}
		if err := c.Arm(false); err != nil {
			t.Fatal(err)
		}
		c.Push([]CQE{{WC: verbs.WC{ID: 1}}}) // after a sleep of no time
		if n, err := c.Poll(make([]verbs.WC, 1)); n != 1 || err != nil {
			t.Fatalf("Poll: %d completions, error %v, want one", n, err)
		}
		if c.Soon() {
			t.Error("Soon: true with an empty queue, want false")
		}
		want := 0
		if canYield {
			want = SpinFirst / yieldEach
		}
		if looks != SpinFirst || yields != want {
			t.Errorf("%d looks and %d yields, want %d and %d", looks, yields, SpinFirst, want)
		}
	}
}

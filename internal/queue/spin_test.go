package queue

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestSoonYields: a program that looks for completions gives its core away now and then, and not with each look. It
// looks on where there is no way to.
func TestSoonYields(t *testing.T) {
	for _, canYield := range []bool{true, false} {
		looks, yields := 0, 0
		hooks := CQHooks{Progress: func() { looks++ }, Notify: func() {}, Arming: func() {}, Spin: 1000, Now: func() time.Duration { return 0 }}
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

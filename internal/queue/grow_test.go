package queue

import (
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestCQGrows: a CQ has the room that was asked for, and memory for the completions that have waited in it. Completions
// stay in their order when the ring grows, wherever in it they begin.
func TestCQGrows(t *testing.T) {
	const entries = 1000
	for first := range firstPlaces {
		c := newTestCQ(t, entries)
		if len(c.ring) != firstPlaces || c.Cap() != entries {
			t.Fatalf("a new queue has %d places of %d, want %d of %d", len(c.ring), c.Cap(), firstPlaces, entries)
		}
		c.add(first, false, verbs.WCSuccess)
		c.want(entries, 1, uint64(first))
		c.add(firstPlaces, false, verbs.WCSuccess)
		if len(c.ring) != firstPlaces {
			t.Errorf("%d completions waited, and the ring has %d places", firstPlaces, len(c.ring))
		}
		c.add(entries-firstPlaces, false, verbs.WCSuccess)
		if len(c.ring) != entries {
			t.Errorf("%d completions wait, and the ring has %d places", entries, len(c.ring))
		}
		c.want(entries, uint64(first)+1, uint64(first)+entries)
		c.add(entries+1, false, verbs.WCSuccess)
		if n := c.overrun.Load(); n != 1 {
			t.Errorf("one more than %d: the queue was overrun %d times, want once", entries, n)
		}
		if ids, err := c.poll(entries + 1); err != nil || len(ids) != entries {
			t.Errorf("polled %d, %v; want the %d for which there was room", len(ids), err, entries)
		}
		if _, err := c.poll(1); !errors.Is(err, verbs.ErrCQOverrun) {
			t.Errorf("%v, want %v", err, verbs.ErrCQOverrun)
		}
	}
}

// TestCQResizeGrown: a queue that gets another size keeps its completions, and grows up to the new size.
func TestCQResizeGrown(t *testing.T) {
	c := newTestCQ(t, 100)
	c.add(50, false, verbs.WCSuccess)
	for _, size := range []int{50, 200} {
		if err := c.Resize(size); err != nil || c.Cap() != size {
			t.Fatalf("resize to %d: %v, and %d places", size, err, c.Cap())
		}
	}
	c.add(150, false, verbs.WCSuccess)
	c.want(300, 1, 200)
}

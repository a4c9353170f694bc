package queue

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/verbs"
)

// testCQ is a CQ that the test itself puts completions into.
type testCQ struct {
	*CQ
	t     testing.TB
	slots atomic.Uint64
	last  uint64

	progress, notified, overrun, first atomic.Int32 // calls of the hooks
}

func newTestCQ(t testing.TB, entries int) *testCQ {
	c := &testCQ{t: t}
	count := func(n *atomic.Int32) func() { return func() { n.Add(1) } }
	c.CQ = NewCQ(entries, CQHooks{
		Progress: func() bool { c.progress.Add(1); return false }, Arming: func() {}, Notify: count(&c.notified),
		Overrun: func(first bool) {
			c.overrun.Add(1)
			if first {
				c.first.Add(1)
			}
		},
	})
	return c
}

// add pushes n completions, whose IDs count up from 1, at once.
func (c *testCQ) add(n int, solicited bool, status verbs.WCStatus) {
	var cqes []CQE
	for range n {
		c.last++
		cqes = append(cqes, CQE{WC: verbs.WC{ID: c.last, Status: status}, Slots: &c.slots, Freed: c.last, Solicited: solicited})
	}
	c.Push(cqes)
}

// poll takes up to n and returns their IDs.
func (c *testCQ) poll(n int) (ids []uint64, err error) {
	wcs := make([]verbs.WC, n)
	n, err = c.Poll(wcs)
	for _, wc := range wcs[:n] {
		ids = append(ids, wc.ID)
	}
	return ids, err
}

// want polls up to n completions. It expects those from first to last.
func (c *testCQ) want(n int, first, last uint64) {
	c.t.Helper()
	got, err := c.poll(n)
	if err != nil {
		c.t.Fatal(err)
	}
	ok := uint64(len(got)) == last+1-first
	for i, id := range got {
		ok = ok && id == first+uint64(i)
	}
	if !ok {
		c.t.Errorf("polled %v, want %d to %d", got, first, last)
	}
	if len(got) > 0 && c.slots.Load() != last {
		c.t.Errorf("%d places are free after completion %d, want as many", c.slots.Load(), last)
	}
}

// TestCQRing: completions are polled in their order, around the end of the ring too. Only a poll of the
// empty queue makes progress.
func TestCQRing(t *testing.T) {
	c := newTestCQ(t, 5)
	c.want(4, 1, 0)
	if n := c.progress.Load(); n != 1 {
		t.Errorf("a poll of the empty queue made progress %d times, want once", n)
	}
	for round := range uint64(7) {
		first := round*4 + 1
		c.add(4, false, 0)
		if n := c.Waiting(); n != 4 {
			t.Errorf("%d completions are waiting, want 4", n)
		}
		c.want(3, first, first+2)
		c.want(3, first+3, first+3)
	}
	if n := c.progress.Load(); n != 1 {
		t.Errorf("polls of a queue with completions made progress %d times, want never", n-1)
	}
	if got, err := c.poll(0); len(got) != 0 || err != nil {
		t.Errorf("a poll without room: %v, %v; want nothing", got, err)
	}
}

// TestCQResize: Resize keeps the completions that wait, and is refused where they do not fit.
func TestCQResize(t *testing.T) {
	c := newTestCQ(t, 4)
	c.add(4, false, 0)
	c.want(2, 1, 2)
	c.add(2, false, 0) // 3 to 6, around the end of the ring
	if err := c.Resize(3); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Resize to 3 with 4 waiting: %v, want ErrBusy", err)
	}
	if err := c.Resize(4); err != nil {
		t.Errorf("Resize to 4 with 4 waiting: %v, want no error", err)
	}
	if err := c.Resize(9); err != nil || c.Cap() != 9 {
		t.Errorf("Resize to 9: %v, capacity %d; want no error and 9", err, c.Cap())
	}
	c.add(5, false, 0)
	c.want(10, 3, 11)
	if err := c.Resize(1); err != nil {
		t.Errorf("Resize of an empty queue to 1: %v, want no error", err)
	}
	c.add(1, false, 0)
	c.want(2, 12, 12)
}

// TestCQOverrun: completions that fit stay, and all others are lost, so that none is missing among those that are
// polled. The device is told
// each time, so that it can fail QPs which came later.
func TestCQOverrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCQ(t, 2)
		c.Arm(true)
		c.add(3, false, 0)
		c.add(1, false, 0)
		synctest.Wait()
		if o, f, n := c.overrun.Load(), c.first.Load(), c.notified.Load(); o != 2 || f != 1 || n != 1 {
			t.Errorf("overrun was called %d times, %d times as the first, and notify %d times, want 2, 1 and 1", o, f, n)
		}
		c.want(1, 1, 1)
		c.want(5, 2, 2)
		if got, err := c.poll(1); !errors.Is(err, verbs.ErrCQOverrun) || !strings.Contains(err.Error(), "full with 2") {
			t.Errorf("poll after the loss: %v, %v; want ErrCQOverrun", got, err)
		}
		c.add(1, false, 0)
		if got, err := c.poll(1); len(got) != 0 || !errors.Is(err, verbs.ErrCQOverrun) {
			t.Errorf("poll of what came behind the loss: %v, %v; want nothing and ErrCQOverrun", got, err)
		}
		c.Arm(false) // nothing will come
		// At once, and on this goroutine: a driven device has no other, and its simulation replays.
		if n := c.notified.Load(); n != 2 {
			t.Errorf("notified %d times, want twice: who waits must hear of the loss", n)
		}
	})
}

// TestCQArm: one armed queue makes one event, for the completions that it was armed for.
func TestCQArm(t *testing.T) {
	c := newTestCQ(t, 100)
	notified := func(what string, want bool) {
		t.Helper()
		if got := c.notified.Swap(0) > 0; got != want {
			t.Errorf("%s: notified: %v, want %v", what, got, want)
		}
	}
	arm := func(solicited bool) {
		t.Helper()
		if err := c.Arm(solicited); err != nil {
			t.Fatal(err)
		}
	}
	c.add(1, true, 0)
	notified("not armed", false)
	arm(false)
	notified("completion from before", false)
	c.add(1, false, 0)
	notified("any", true)
	c.add(1, true, 0)
	notified("armed for one only", false)

	arm(true)
	c.add(1, false, 0)
	notified("solicited, and one that is not", false)
	c.add(1, true, 0)
	notified("solicited", true)
	arm(true)
	c.add(1, false, verbs.WCFlushErr)
	notified("solicited, and one that failed", true)

	arm(true)
	arm(false)
	c.add(1, false, 0)
	notified("any, on top of solicited", true)
	arm(false)
	arm(true)
	c.add(1, false, 0)
	notified("solicited does not take any back", true)
}

// TestCQClose: a closed queue takes no completions and tells its users so.
func TestCQClose(t *testing.T) {
	c := newTestCQ(t, 1)
	c.add(1, false, 0)
	c.Close()
	c.add(1, false, 0)
	if _, err := c.poll(1); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Poll: %v, want ErrClosed", err)
	}
	if err := c.Arm(false); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Arm: %v, want ErrClosed", err)
	}
}

// TestPolls: Polls counts each poll, whether it finds something or not, and Waiting the completions that it leaves.
func TestPolls(t *testing.T) {
	c := newTestCQ(t, 8)
	if _, err := c.poll(1); err != nil {
		t.Fatal(err)
	}
	c.add(3, false, verbs.WCSuccess)
	c.want(2, 1, 2)
	if n := c.Waiting(); n != 1 {
		t.Errorf("%d completions are waiting after two of three were polled, want 1", n)
	}
	c.want(2, 3, 3)
	for range 2 {
		if _, err := c.poll(1); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.Polls(); n != 5 {
		t.Errorf("%d polls were counted, want 5", n)
	}
}

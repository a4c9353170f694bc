package queue

import (
	"sync/atomic"
	"time"
)

const (
	// SpinShort is the longest sleep that a spin would have been better than.
	SpinShort = 200 * time.Microsecond
	// waitMost is the longest spin before a program blocks.
	waitMost = 200 * time.Microsecond
	// SpinFirst is the number of looks of the first spin. Each further one has twice as many.
	SpinFirst = 16
	// A program yields after each yieldEach looks. To yield costs as much as a few of them. The threads for
	// which the program waits may need this core: the peer's threads, and the device's, may be more than
	// there are cores.
	yieldEach = 8
)

// NextSpin returns the number of looks that the next spin may take. budget is that of the last spin. After a short
// sleep the next one may take more, and after a long one fewer.
func NextSpin(budget int, slept time.Duration) int {
	if slept > SpinShort {
		return budget / 4
	}
	return max(SpinFirst, min(2*budget, 1<<16))
}

// waitSpin is the spin of the goroutines that wait for a CQ. A completion that they find themselves
// needs no wake-up.
type waitSpin struct {
	budget atomic.Int64 // looks that the next spin may take
	since  atomic.Int64 // ns; when a spin found nothing; 0 if no goroutine sleeps after such a spin
}

// Spinning is set while a goroutine of the process spins for a CQ. One at a time does: the cores are there
// for work too.
var Spinning atomic.Bool

// others are the goroutines that the one which spins gives way to. It alone uses this.
var others = NewGiveWay()

// Soon implements verbs.ProviderCQSpin.
func (c *CQ) Soon() bool {
	s, now := &c.spin, c.hooks.Now
	budget := min(int(s.budget.Load()), c.hooks.Spin)
	if budget > 0 && Spinning.CompareAndSwap(false, true) {
		defer Spinning.Store(false)
		end := now() + waitMost
		others.Begin()
		for i := 0; i < budget && now() <= end; i++ {
			if c.Waiting() > 0 {
				return true
			}
			c.hooks.Progress()
			if i%yieldEach == yieldEach-1 {
				c.hooks.Yielder.Yield()
			}
			others.Look()
		}
	}
	s.since.Store(int64(now()) + 1)
	return c.Waiting() > 0
}

// notify tells the goroutines that wait of a completion.
func (c *CQ) notify() {
	if since := c.spin.since.Swap(0); since != 0 {
		c.spin.budget.Store(int64(NextSpin(int(c.spin.budget.Load()), c.hooks.Now()-time.Duration(since))))
	}
	c.hooks.Notify()
	if c.sink != nil {
		c.sink.Event()
	}
}

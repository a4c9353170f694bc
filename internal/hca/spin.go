package hca

import (
	"sync/atomic"
	"time"
)

// A goroutine that goes to sleep, and is woken by the very next datagram, costs more than one that looks at
// the link a few times more: the sleep and the wake-up are several system calls, and on a virtual machine
// the core halts. It may cost more still: the kernel likes to wake a thread on the core of the one that sends
// to it, and while both share that one, the other idles. So a goroutine spins before it sleeps, if its latest
// sleep was shorter than the longest spin. What comes in bulk lengthens the spin by each datagram, so that
// the target of a stream stays awake as long as its requester works. If a sleep was longer, the next spin is
// shorter, and soon there is none: an idle device costs nothing.
type spin struct {
	budget int           // looks that the next spin may take
	each   int           // looks more for each datagram
	left   int           // looks that this spin may still take
	end    time.Duration // of this spin, however many looks are left
}

const (
	// spinShort is the longest sleep that a spin would have been better than.
	spinShort = 200 * time.Microsecond

	// streamShort is the longest sleep within a stream, and each datagram of one lengthens the spin by
	// spinEach looks, up to spinStream times Config.Spin.
	streamShort = 2 * time.Millisecond
	spinEach    = 64
	spinStream  = 10

	// spinMost is the longest spin, where looks are slow, and waitMost that before a program blocks.
	spinMost = time.Millisecond
	waitMost = 200 * time.Microsecond

	// spinFirst is how many looks the first spin has. Each further one has twice as many, up to Config.Spin.
	spinFirst = 16
)

// found is called when a look has found n datagrams. most is Config.Spin.
func (s *spin) found(now time.Duration, n, most int) {
	s.end = now + spinMost
	s.left = max(min(s.budget, most), min(s.left+n*s.each, spinStream*most))
}

// again reports whether to look once more before sleeping.
func (s *spin) again(now time.Duration) bool {
	if s.left == 0 || now > s.end {
		return false
	}
	s.left--
	return true
}

// slept is called after a sleep.
func (s *spin) slept(d time.Duration) {
	s.budget, s.left = nextBudget(s.budget, d), 0
	if d > streamShort {
		s.each /= 4
	} else {
		s.each = max(1, min(2*s.each, spinEach))
	}
}

// nextBudget returns the budget after a sleep.
func nextBudget(budget int, slept time.Duration) int {
	if slept > spinShort {
		return budget / 4
	}
	return max(spinFirst, min(2*budget, 1<<16))
}

// waitSpin is the spin of the goroutines that wait for a CQ. What they find themselves they need not be
// woken for.
type waitSpin struct {
	budget atomic.Int64 // polls that the next spin may take
	since  atomic.Int64 // ns; when a spin found nothing, 0 if no goroutine sleeps for that
}

// waiting is set while a goroutine of the process spins for a CQ. One at a time does: the cores are there
// for work too.
var waiting atomic.Bool

// Soon implements verbs.ProviderCQSpin.
func (c *cq) Soon() bool {
	s := &c.spin
	budget := min(int(s.budget.Load()), c.dev.config.Spin)
	if budget > 0 && waiting.CompareAndSwap(false, true) {
		defer waiting.Store(false)
		end := c.dev.now() + waitMost
		for i := 0; i < budget && c.dev.now() <= end; i++ {
			if c.Waiting() > 0 {
				return true
			}
			c.progress()
		}
	}
	s.since.Store(int64(c.dev.now()) + 1)
	return c.Waiting() > 0
}

// woken is called when the goroutines that wait are told of a completion.
func (s *waitSpin) woken(d *Device) {
	if since := s.since.Swap(0); since != 0 {
		s.budget.Store(int64(nextBudget(int(s.budget.Load()), d.now()-time.Duration(since))))
	}
}

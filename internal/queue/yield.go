package queue

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Yielder gives the core of a thread that spins to other threads, as long as they give it back soon. Most do: the
// program, the device and their peers wait for one another. A thread that only computes keeps a core for its whole
// time slice, and to yield to it again and again would cost milliseconds each time. So after a yield that took long
// the cores count as crowded for a while, and for a longer while if that happens again: nobody yields, and a device
// sleeps in place of spinning, since the kernel lets a thread that is woken go before one that computes.
//
// A nil Yielder does nothing.
type Yielder struct {
	now   func() time.Duration
	yield func()

	until atomic.Int64 // ns; when the cores count as crowded no more, 0 if they do not
	pause atomic.Int64 // ns; for how long they did the latest time, 0 if that is forgotten
	short atomic.Int32 // yields in a row that were short since then
}

const (
	yieldLong  = time.Millisecond // less than a time slice of Linux
	pauseFirst = 10 * time.Millisecond
	pauseMost  = 10 * time.Second
	forgetting = 1000 // short yields in a row after which a pause is the first again
)

// NewYielder makes a Yielder of a clock and of the function that gives the core away.
func NewYielder(now func() time.Duration, yield func()) *Yielder {
	return &Yielder{now: now, yield: yield}
}

// Crowded reports whether a yield took long, not long ago.
func (y *Yielder) Crowded() bool {
	if y == nil {
		return false
	}
	until := y.until.Load()
	if until == 0 {
		return false
	}
	if int64(y.now()) < until {
		return true
	}
	y.until.CompareAndSwap(until, 0)
	return false
}

// Yield gives the core to another thread that waits for it, unless the cores are crowded.
func (y *Yielder) Yield() {
	if y == nil || y.Crowded() {
		return
	}
	start := y.now()
	y.yield()
	end := y.now()
	if end-start < yieldLong {
		if y.pause.Load() != 0 && y.short.Add(1) >= forgetting {
			y.pause.Store(0)
		}
		return
	}
	y.short.Store(0)
	pause := min(max(pauseFirst, 2*time.Duration(y.pause.Load())), pauseMost)
	y.pause.Store(int64(pause))
	y.until.Store(int64(end + pause))
}

// oneCPU says that the process may run on one CPU only. The completions for which a program polls come from other
// threads, and these run only while the program does not.
var oneCPU = runtime.NumCPU() == 1

// cede lets others run after a poll in vain, where there is one CPU. To poll on would bring nothing even if it takes
// long to get the CPU back, so it counts for nothing that the cores are crowded. Soon does not look there: nothing
// spins on the only CPU.
func (c *CQ) cede() {
	if !oneCPU {
		return
	}
	runtime.Gosched()
	if y := c.hooks.Yielder; y != nil {
		y.yield()
	}
}

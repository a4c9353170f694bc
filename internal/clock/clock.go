// Package clock tells the time to code that asks for it very often. It asks the system once in a millisecond, and
// counts the processor's ticks in between. That costs a third of what the system's clock does.
//
// Where the processor has no such counter, or the system does not trust it, there is only System.
package clock

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// Ticks are counted for window nanoseconds before the system is asked again. So this clock is never wrong by
	// more, whatever happens to the counter.
	window = 1_000_000

	// A rate is taken over rateLeast at least. Beyond rateMost the machine may have slept, which the two clocks see
	// differently.
	rateLeast = 50_000_000
	rateMost  = 5_000_000_000

	// A rate has scale bits behind the point.
	scale = 32
)

// A Clock is a clock that counts from its making on. Any number of goroutines may ask it.
type Clock struct {
	ticks func() uint64 // or nil
	since func() time.Duration

	version atomic.Uint32 // odd while somebody writes what follows
	tick    atomic.Uint64 // when the system was asked
	at      atomic.Int64  // what it said, in nanoseconds
	rate    atomic.Uint64 // nanoseconds in a tick, times 2^scale
	limit   atomic.Uint64 // ticks in a window; 0 until the rate is known

	firstTick uint64 // where the rate is taken from; whoever writes owns the two
	firstAt   int64
}

// newClock makes a clock of a counter of ticks, and of a clock that is right.
func newClock(ticks func() uint64, since func() time.Duration) *Clock {
	c := &Clock{ticks: ticks, since: since}
	c.firstTick, c.firstAt = ticks(), int64(since())
	return c
}

// System returns a clock that asks the system each time.
func System() *Clock {
	start := time.Now()
	return &Clock{since: func() time.Duration { return time.Since(start) }}
}

// Now returns the time since the clock was made.
func (c *Clock) Now() time.Duration {
	if c.ticks == nil {
		return c.since()
	}
	version := c.version.Load()
	tick, at, rate, limit := c.tick.Load(), c.at.Load(), c.rate.Load(), c.limit.Load()
	if d := c.ticks() - tick; d < limit && version&1 == 0 && c.version.Load() == version {
		return time.Duration(at + nanoseconds(d, rate))
	}
	return c.ask()
}

// nanoseconds returns how long so many ticks take.
func nanoseconds(ticks, rate uint64) int64 {
	hi, lo := bits.Mul64(ticks, rate)
	return int64(hi<<(64-scale) | lo>>scale)
}

// ask returns what the system says, and takes note of it unless somebody else does.
func (c *Clock) ask() time.Duration {
	version := c.version.Load()
	if version&1 != 0 || !c.version.CompareAndSwap(version, version+1) {
		return c.since()
	}
	tick := c.ticks()
	now := c.since()
	c.measure(tick, c.ticks(), int64(now))
	c.tick.Store(tick)
	c.at.Store(int64(now))
	c.version.Store(version + 2)
	return now
}

// measure takes the rate anew, if it is time. now lies between two ticks.
func (c *Clock) measure(tick, after uint64, now int64) {
	took := now - c.firstAt
	switch {
	case took < rateLeast:
		return
	case took <= rateMost && tick > c.firstTick:
		if (after-tick)>>10 > (tick-c.firstTick)>>20 {
			return // something came between the two: a thousandth of the interval is too much
		}
		hi, lo := bits.Mul64(uint64(took), 1<<scale)
		if hi >= tick-c.firstTick {
			c.limit.Store(0) // less than a tick in a second
			break
		}
		rate, _ := bits.Div64(hi, lo, tick-c.firstTick)
		if rate == 0 {
			c.limit.Store(0)
			break
		}
		c.rate.Store(rate)
		c.limit.Store(uint64(window) << scale / rate)
	}
	c.firstTick, c.firstAt = tick, now
}

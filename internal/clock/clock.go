// Package clock tells the time to code that asks for it very often. It asks the system once in a millisecond, and
// counts the processor's ticks in between. That costs a third of what the system's clock does.
//
// Where the processor has no such counter, or the system does not trust it, there is only System.
//
// # What a clock promises
//
// The system's clock never goes back. If the counter does not either, and its rate is even, then:
//
//   - Time never goes back: what one call of Now returns is not less than what any call returned that had ended before.
//     So it is for one goroutine, and for several.
//   - The clock is never behind the system's, and ahead by at most slack, and by what the rate is off in a window. To be
//     ahead it does not take back: it stands still until the system's has come up.
//
// A counter that goes back, or has suddenly another rate, makes the clock wrong for a window at most.
//
// A processor reads its counter without waiting for the loads before it. So between goroutines on two processors, a time
// may seem earlier by the time of a load, less than a microsecond. Who subtracts times of several goroutines from one
// another must allow for that, and for the time between a reading and its use, which is mostly longer.
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

	// Counter and system are read one after the other. If something comes between, for slack nanoseconds or longer, they
	// are read again, pairTries times in all. If that is of no use, the system is asked for each time until it is.
	slack     = window / 64
	pairTries = 3
)

// A Clock is a clock that counts from its making on. Any number of goroutines may ask it.
type Clock struct {
	ticks func() uint64 // or nil
	since func() time.Duration

	// The newest line is lines[newest%2]. Whoever draws the next one writes to the other, and does not change this one
	// before that is the newest. So fields that were read while newest stayed the same belong together.
	newest  atomic.Uint32
	drawing atomic.Bool
	lines   [2]line

	firstTick uint64 // where the rate is taken from, the later of two ticks; whoever draws owns the three
	firstGap  uint64 // ticks from the one to the other
	firstAt   int64  // what the system said in between
}

// A line tells the time for limit ticks from tick on. It is never behind the system's clock: at was read after tick, and
// the rate is rounded up. Nor does it begin before the end of the line before it.
type line struct {
	tick  atomic.Uint64
	at    atomic.Int64  // what the system said just after tick, in nanoseconds
	rate  atomic.Uint64 // nanoseconds in a tick, times 2^scale
	limit atomic.Uint64 // ticks in a window; 0 while the system is asked for each time
	floor atomic.Int64  // the end of the line before
}

// newClock makes a clock of a counter of ticks, and of a clock that is right.
func newClock(ticks func() uint64, since func() time.Duration) *Clock {
	c := &Clock{ticks: ticks, since: since}
	var before uint64
	before, c.firstAt, c.firstTick = c.pair(0)
	c.firstGap = c.firstTick - before
	return c
}

// System returns a clock that asks the system each time.
func System() *Clock {
	start := time.Now()
	return &Clock{since: func() time.Duration { return time.Since(start) }}
}

// Told returns a clock that has its time from now, for simulations. The time that now returns must not go back.
func Told(now func() time.Duration) *Clock { return &Clock{since: now} }

// Now returns the time since the clock was made.
func (c *Clock) Now() time.Duration {
	if c.ticks == nil {
		return c.since()
	}
	n := c.newest.Load()
	l := &c.lines[n%2]
	tick, at, rate, limit, floor := l.tick.Load(), l.at.Load(), l.rate.Load(), l.limit.Load(), l.floor.Load()
	if d := c.ticks() - tick; d < limit && c.newest.Load() == n {
		return time.Duration(max(at+nanoseconds(d, rate), floor))
	}
	return c.ask()
}

// nanoseconds returns how long so many ticks take. It cuts off what is less than a nanosecond.
func nanoseconds(ticks, rate uint64) int64 {
	hi, lo := bits.Mul64(ticks, rate)
	return int64(hi<<(64-scale) | lo>>scale)
}

// ask returns the time where the line that Now has found does not tell it. It draws the next one, unless somebody else
// does. Then it does not wait for that: the system's clock is not ahead of the line that is drawn meanwhile.
func (c *Clock) ask() time.Duration {
	for {
		n := c.newest.Load()
		l := &c.lines[n%2]
		tick, at, rate, limit, end := l.tick.Load(), l.at.Load(), l.rate.Load(), l.limit.Load(), l.floor.Load()
		d := c.ticks() - tick
		if c.newest.Load() != n {
			continue
		}
		if limit > 0 && int64(d) >= 0 {
			end = max(end, at+nanoseconds(min(d, limit), rate)) // no more was told by it
		}
		if d < limit {
			return time.Duration(end)
		}
		if !c.drawing.CompareAndSwap(false, true) {
			return max(c.since(), time.Duration(end))
		}
		now := end
		drawn := c.newest.Load() == n
		if drawn {
			now = max(c.draw(&c.lines[(n+1)%2], rate, end), end)
			c.newest.Store(n + 1)
		}
		c.drawing.Store(false)
		if drawn {
			return time.Duration(now)
		}
	}
}

// draw makes l the line that follows one with a rate and an end. It returns what the system says.
func (c *Clock) draw(l *line, rate uint64, end int64) (now int64) {
	tick, now, after := c.pair(rate)
	rate = c.measure(rate, tick, after, now)
	limit := uint64(0)
	if rate > 0 && nanoseconds(after-tick, rate) < slack {
		limit = uint64(window) << scale / rate
	}
	l.tick.Store(tick)
	l.at.Store(now + 1) // for what is cut off
	l.rate.Store(rate)
	l.limit.Store(limit)
	l.floor.Store(end)
	return now
}

// pair reads the system's clock, between two ticks that are not far from each other if that can be had.
func (c *Clock) pair(rate uint64) (tick uint64, now int64, after uint64) {
	for try := 0; ; {
		tick = c.ticks()
		now = int64(c.since())
		after = c.ticks()
		if try++; try == pairTries || nanoseconds(after-tick, rate) < slack {
			return tick, now, after
		}
	}
}

// measure takes the rate anew, if it is time, and returns it; 0 says that there is none. now lies between two ticks. The
// rate is rather too great than too small, by what came between them.
func (c *Clock) measure(rate, tick, after uint64, now int64) uint64 {
	took := now - c.firstAt
	switch {
	case took < rateLeast:
		return rate
	case took <= rateMost && tick > c.firstTick:
		if (after-tick+c.firstGap)>>10 > (tick-c.firstTick)>>20 {
			return rate // something came between two looks: a thousandth of the interval is too much
		}
		hi, lo := bits.Mul64(uint64(took), 1<<scale)
		if hi >= tick-c.firstTick {
			rate = 0 // less than a tick in a second
			break
		}
		rate, _ = bits.Div64(hi, lo, tick-c.firstTick)
		rate++
		if rate > window<<scale/2 {
			rate = 0 // a window has no two ticks
		}
	}
	c.firstTick, c.firstGap, c.firstAt = after, after-tick, now
	return rate
}

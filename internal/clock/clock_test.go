package clock

import (
	"testing"
	"time"
)

// A machine has a counter and a right clock that advance together, or not.
type machine struct {
	t     *testing.T
	ns    int64
	tick  float64
	hertz float64
	asked int
}

func (m *machine) ticks() uint64 { return uint64(m.tick) }

func (m *machine) since() time.Duration {
	m.asked++
	return time.Duration(m.ns)
}

func (m *machine) pass(d time.Duration) {
	m.ns += int64(d)
	m.tick += d.Seconds() * m.hertz
}

// check asks the clock, and fails unless it is right within slack.
func (m *machine) check(c *Clock, slack time.Duration) {
	m.t.Helper()
	if got := c.Now(); got < time.Duration(m.ns)-slack || got > time.Duration(m.ns)+slack {
		m.t.Fatalf("got %v, want %v", got, time.Duration(m.ns))
	}
}

func TestClock(t *testing.T) {
	for _, hertz := range []float64{2.5e9, 24e6, 1e9} {
		m := &machine{t: t, tick: 12345, hertz: hertz}
		c := newClock(m.ticks, m.since)
		for range 60 { // it learns the rate
			m.check(c, 0)
			m.pass(time.Millisecond)
		}
		m.check(c, 0)
		m.asked = 0
		const each = 10 * time.Microsecond
		for range 10_000 {
			m.pass(each)
			m.check(c, time.Microsecond)
		}
		if want := 10_000 * int(each) / window; m.asked < want/2 || m.asked > 2*want {
			t.Errorf("%g Hz: the system was asked %d times in 10000 looks, want some %d", hertz, m.asked, want)
		}
		m.pass(time.Hour) // the machine was busy with something else
		m.check(c, 0)
		m.ns += int64(time.Hour) // or its counter stood still: wrong for a window at most
		m.pass(2 * window)
		m.check(c, 0)
		m.tick = 77 // or begins again
		m.check(c, 0)
		m.hertz = hertz / 3 // or has another rate, which it learns
		for range 12 {
			m.pass(time.Second)
			m.check(c, 0)
		}
		for range 10 {
			m.pass(window / 20)
			m.check(c, time.Microsecond)
		}
	}
}

// A counter that stands still, or nearly, is not believed.
func TestNoTicks(t *testing.T) {
	for _, hertz := range []float64{0, 0.1} {
		m := &machine{t: t, hertz: hertz}
		c := newClock(m.ticks, m.since)
		for range 200 {
			m.pass(time.Millisecond)
			m.check(c, 0)
		}
	}
}

// What comes between the two looks, such as another thread, spoils no rate.
func TestInterrupted(t *testing.T) {
	m := &machine{t: t, hertz: 1e9}
	late := time.Duration(0)
	c := newClock(m.ticks, func() time.Duration {
		m.pass(late)
		return m.since()
	})
	for range 60 {
		m.pass(time.Millisecond)
		m.check(c, 0)
	}
	m.pass(60 * time.Millisecond)
	late = 40 * time.Millisecond
	c.Now()
	late = 0
	m.check(c, 0)
	for range 10 {
		m.pass(window / 20)
		m.check(c, time.Microsecond)
	}
}

func TestNew(t *testing.T) {
	c := New()
	if c == nil {
		t.Skip("this machine has no counter that pays")
	}
	start := time.Now()
	first := c.Now()
	began := time.Since(start) // at most
	for time.Since(start) < 2*rateLeast {
		before := time.Since(start)
		got := c.Now() - first
		after := time.Since(start)
		const slack = 100 * time.Microsecond
		if got < before-began-slack || got > after+slack {
			t.Fatalf("got %v between %v and %v, want a time between them", got, before, after)
		}
	}
}

func TestTold(t *testing.T) {
	now := 3 * time.Second
	c := Told(func() time.Duration { return now })
	for range 2 {
		if got := c.Now(); got != now {
			t.Errorf("got %v, want %v", got, now)
		}
		now += time.Hour
	}
}

func BenchmarkNow(b *testing.B) {
	start := time.Now()
	b.Run("system", func(b *testing.B) {
		for range b.N {
			time.Since(start)
		}
	})
	if c := New(); c != nil {
		b.Run("clock", func(b *testing.B) {
			for range b.N {
				c.Now()
			}
		})
	}
}

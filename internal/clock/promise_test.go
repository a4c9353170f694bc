package clock

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// stalls is a machine on which anything may come between any two readings: an interrupt, a hypervisor, or other
// goroutines that ask the clock meanwhile.
type stalls struct {
	t     *testing.T
	seed  uint64
	rand  *rand.Rand
	clock *Clock
	ns    int64
	told  time.Duration // the most that a call has returned which has ended
	depth int
	most  int64 // a stall
}

func (s *stalls) stall() {
	switch s.rand.IntN(40) {
	case 0:
		s.ns += s.rand.Int64N(s.most)
	case 1, 2:
		s.ns += s.rand.Int64N(200)
	case 3, 4, 5:
		if s.clock != nil && s.depth < 3 {
			s.ask()
		}
	}
}

func (s *stalls) ticks() uint64 {
	s.stall()
	defer s.stall()
	return uint64(s.ns) * 5 / 2
}

func (s *stalls) since() time.Duration {
	s.stall()
	defer s.stall()
	return time.Duration(s.ns)
}

// ask asks the clock, and fails unless it does what it promises.
func (s *stalls) ask() {
	s.depth++
	began, told := s.ns, s.told
	got := s.clock.Now()
	s.depth--
	const rate = time.Microsecond // by which the rate may be off in a window
	fail := func(format string, args ...any) {
		s.t.Helper()
		s.t.Fatalf("seed %d, stalls of up to %v: "+format, append([]any{s.seed, time.Duration(s.most)}, args...)...)
	}
	switch {
	case got < told:
		fail("at %v the clock said %v, after %v: it went back by %v", time.Duration(s.ns), got, told, told-got)
	case got < time.Duration(began):
		fail("at %v the clock said %v", time.Duration(began), got)
	case got > time.Duration(s.ns)+slack+rate:
		fail("at %v the clock said %v, which is ahead by %v", time.Duration(s.ns), got, got-time.Duration(s.ns))
	}
	s.told = max(s.told, got)
}

// TestTimeNeverGoesBack: whatever comes between the readings of counter and system, of whichever goroutine.
func TestTimeNeverGoesBack(t *testing.T) {
	seeds, looks := uint64(8), 20_000
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		for _, most := range []int64{1_000, 10_000, 900_000, 40_000_000} {
			s := &stalls{t: t, rand: rand.New(rand.NewPCG(seed, uint64(most))), most: most}
			s.clock = newClock(s.ticks, s.since)
			s.seed = seed
			for range looks {
				s.ns += s.rand.Int64N(20_000)
				s.ask()
			}
		}
	}
}

// TestStallBetweenReads: 900 µs pass between the reading of the counter and that of the system's clock.
func TestStallBetweenReads(t *testing.T) {
	m := &machine{t: t, hertz: 1e9}
	stall := time.Duration(0)
	c := newClock(m.ticks, func() time.Duration {
		m.pass(stall)
		stall = 0
		return m.since()
	})
	for range 200 { // it learns the rate
		m.pass(time.Millisecond)
		m.check(c, 0)
	}
	m.pass(time.Millisecond)
	stall = 900 * time.Microsecond
	latest := c.Now()
	for range 300 {
		if got := c.Now(); got < latest {
			t.Fatalf("it went back by %v", latest-got)
		}
		m.check(c, slack)
		latest = c.Now()
		m.pass(10 * time.Microsecond)
	}
}

// TestNeverBackBetweenGoroutines asks the clock of this machine in turn from several goroutines.
func TestNeverBackBetweenGoroutines(t *testing.T) {
	c := New()
	if c == nil {
		t.Skip("this machine has no counter that pays")
	}
	const askers = 4
	looks := 400_000
	if testing.Short() {
		looks = 100_000
	}
	const loads = time.Microsecond // by which a counter may be read early
	var mu sync.Mutex
	var latest time.Duration
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() {
			for range looks {
				mu.Lock()
				got := c.Now()
				if got < latest-loads {
					t.Errorf("it went back by %v", latest-got)
				}
				latest = max(latest, got)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

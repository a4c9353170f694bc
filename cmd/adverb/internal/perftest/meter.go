package perftest

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// epoch is the zero of a run's times.
var epoch = time.Now()

// now is the time in nanoseconds, by the monotonic clock.
func now() int64 { return int64(time.Since(epoch)) }

// meter counts messages while a test runs. Its one writer is the test; the clock, the progress line
// and the reports of an endless run read it.
type meter struct {
	count atomic.Int64
	span  span
}

// sample is a count at a time.
type sample struct{ at, count int64 }

// span measures a part of a run by time. At its begin and its end there is a margin in which the
// run goes on and nothing counts.
type span struct {
	mu         sync.Mutex
	begin, end sample
	timer      *time.Timer
	over       context.CancelFunc
}

// start starts the clock of -D, by which the run began at a time. The context that it returns ends when the run is
// to end.
func (m *meter) start(ctx context.Context, at int64, duration, margin time.Duration) context.Context {
	ctx, over := context.WithCancel(ctx)
	s := &m.span
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = over
	// step takes a sample after a time, and goes on to the next step.
	step := func(after time.Duration, do func()) {
		s.timer = time.AfterFunc(after, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			do()
		})
	}
	finish := func() { s.over() }
	stopSampling := func() {
		s.end = m.sample()
		step(margin, finish)
	}
	begin := func(from sample) {
		s.begin = from
		step(duration-2*margin, stopSampling)
	}
	if margin == 0 {
		begin(sample{at, 0})
	} else {
		step(margin, func() { begin(m.sample()) })
	}
	return ctx
}

func (m *meter) sample() sample { return sample{now(), m.count.Load()} }

// stop ends the clock, and returns the count between the margins, and the time in nanoseconds. ok is false if the run
// has ended earlier.
func (m *meter) stop() (count, ns int64, ok bool) {
	s := &m.span
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.over()
	}
	return s.end.count - s.begin.count, s.end.at - s.begin.at, s.end.at > s.begin.at
}

const (
	progressAfter = 2 * time.Second
	progressEvery = time.Second
)

// isTerminal reports whether somebody watches w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// progress shows on a terminal how far a long run has come, in a line that it takes away again when
// stop is called. total is 0 for a run by time.
func (m *meter) progress(w io.Writer, total int64) (stop func()) {
	if !isTerminal(w) {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		begin := time.Now()
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		last, shown := int64(0), false
		for {
			select {
			case <-quit:
				if shown {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			case at := <-tick.C:
				n := m.count.Load()
				if took := at.Sub(begin); took >= progressAfter {
					fmt.Fprintf(w, "\r\x1b[K%s", progressLine(n, total, n-last, took))
					shown = true
				}
				last = n
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// progressLine says how many messages of total there were in took, and how many in the last second.
func progressLine(n, total, lately int64, took time.Duration) string {
	s := fmt.Sprintf(" %d messages", n)
	if total > 0 {
		s += fmt.Sprintf(" of %d (%d%%)", total, n*100/total)
	}
	return s + fmt.Sprintf(" in %d s, %d/s", int(took.Seconds()), lately)
}

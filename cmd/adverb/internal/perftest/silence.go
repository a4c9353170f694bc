package perftest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Until its first message is done a sender waits for answerPatience, and for as long as the messages before it take
// at slowest bytes a second. A peer that measures something else posts no receives, say: it asks to wait, and the C
// programs wait for ever.
var answerPatience = 30 * time.Second // tests have less

const slowest = 1 << 20

// expectAnswer ends the test if no more than so many messages have been counted after a while, until stop is called.
// Where messages are held back it does not.
func (t *tester) expectAnswer(size int, count int64) (stop func()) {
	if !t.sender || t.rate > 0 || t.gap > 0 {
		return func() {}
	}
	ahead := size * max(t.cqMod, t.postList) * t.qps
	patience := answerPatience + time.Duration(ahead/slowest)*time.Second
	timer := time.AfterFunc(patience, func() {
		if t.meter.count.Load() <= count {
			t.cancel(fmt.Errorf("wait for the peer to answer the first message: it has not for %v: is it %s too, with the same flags?",
				patience, t.inv.Cmd.Name))
		}
	})
	return func() { timer.Stop() }
}

// starvation is how long a receiver waits for the next message before it takes the rest for lost.
var starvation = 120 * time.Second // tests have less

// errStarved ends a run whose messages were lost.
var errStarved = errors.New("nothing repeats lost packets on UC and UD: send less at once (-t at the other end), or slower (--rate_limit)")

// looks is how often the watchdog looks within its patience.
const looks = 120

// watchdog ends a run of UC or UD whose messages do not come any more, when none has come for patience. It looks
// from time to time whether there are more than the last time. A message may have come just after the look before,
// so one look less is enough: patience is never exceeded.
func (b *bandwidth) watchdog(patience time.Duration) (stop func()) {
	ctx, cancel := context.WithCancelCause(b.ctx)
	b.ctx = ctx
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(patience / looks)
		defer tick.Stop()
		last := b.meter.count.Load()
		for quiet := 0; quiet < looks-1; quiet++ {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			if count := b.meter.count.Load(); count != last {
				last, quiet = count, -1
			}
		}
		cancel(errStarved)
	}()
	return func() {
		close(quit)
		<-done
		cancel(nil)
	}
}

package perftest

import (
	"context"
	"errors"
	"runtime"
	"time"
)

const (
	// firstSpin is how long a receiver polls for the first message, as the C program does without end. The clock of
	// later messages is right to firstNap.
	firstSpin = 50 * time.Millisecond
	firstNap  = time.Millisecond
	// firstYield is the number of empty polls after which other goroutines may run.
	firstYield = 128
)

// awaitFirst waits for the first message, and starts the clock. The first poll that finds messages may find many:
// while this end did something else, all of them may have come. So the clock starts at the last moment at which it
// is known that nothing had come. That is before the last poll that found nothing or, without one, when this end let
// the peer begin. A clock that started at the messages would claim a rate that nobody has sent at.
func (b *bandwidth) awaitFirst() (int, error) {
	at := b.talk.turn
	for polls := 1; ; polls++ {
		look := now()
		n, err := b.cq.Poll(b.wcs)
		if n > 0 || err != nil {
			b.begin(at)
			return n, err
		}
		at = look
		if !b.events && look-b.talk.turn < int64(firstSpin) {
			if polls%firstYield != 0 {
				continue
			}
			runtime.Gosched()
			if err := b.ctx.Err(); err != nil {
				return 0, err
			}
			continue
		}
		ctx, cancel := context.WithTimeout(b.ctx, firstNap)
		n, err = b.cq.Wait(ctx, b.wcs)
		cancel()
		if n > 0 {
			b.begin(at)
			return n, nil
		}
		if b.ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return 0, err
		}
	}
}

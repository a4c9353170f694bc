package perftest

import (
	"fmt"
	"time"
)

// Until its first message is done a sender waits for answerPatience, and for as long as what goes before it takes at
// slowest bytes a second. A peer that measures something else posts no receives, say: it asks to wait, and the C
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

package whole

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Some programs post no more receives at some time. An end that sends such a program more messages than receives
// must fail, when the retries are used up that rnr_retry gives.

// drawRetries decides how often packets of a life are repeated, and whether a program starves the other. The
// counts are small where small counts fail no end that must not fail.
func (c *conn) drawRetries() {
	w := c.w
	r := rand.New(rand.NewPCG(w.plan.Seed, uint64(0x5745+100*c.index+c.life)))
	counts := verbs.Retry{RetryCount: uint8(r.IntN(8)), RNRRetryCount: uint8(r.IntN(7))}
	side, most := r.IntN(2), recvSlotN/2+r.IntN(recvSlotN)
	if (w.plan.mayFail() || c.retry.Timeout == 0) && r.IntN(2) == 0 {
		c.retry.RetryCount = counts.RetryCount
	}
	if w.plan.mayFail() && r.IntN(3) == 0 {
		c.retry.RNRRetryCount = counts.RNRRetryCount
	}
	c.most = [2]uint64{math.MaxUint64, math.MaxUint64}
	if w.plan.Starve && c.typ == verbs.QPTypeRC && r.IntN(3) == 0 {
		c.most[side] = uint64(most)
		c.broken = true // a program that posts late may use up the retries too
		c.retry.RNRRetryCount = min(c.retry.RNRRetryCount, counts.RNRRetryCount)
	}
}

// starves reports whether the program has posted its last receive, and all are used up.
func (e *end) starves() bool {
	return !e.srq && e.posted == e.c.most[e.side] && e.taken == e.posted
}

// watchStarving sees to it that an end fails whose peer has no receive for its next message.
func (e *end) watchStarving() {
	p := e.peer()
	if e.starving || !p.starves() || uint64(len(e.messages)) <= p.posted {
		return
	}
	e.starving = true
	e.n.w.logf("%v starves, and must fail within %v", e, e.c.starvation())
	e.c.later(e.c.starvation(), func() { e.mustHaveStarved(e.done) })
}

// starvation is after how long an end has failed whose peer posts no receives. Timers wait for the end of a
// device's nap, a queue that is drained for its program, and where packets get lost, each repeat may take some
// of its own.
func (c *conn) starvation() time.Duration {
	times := time.Duration(c.retry.RNRRetryCount + 1)
	d := times*(wire.RNRTimer(c.rnr)+2*napTime) + 4*maxIdle
	if !c.w.plan.calm() {
		d += times * c.patience()
	}
	return d
}

func (e *end) mustHaveStarved(before int) {
	c := e.c
	switch {
	case e.failed || e.closed || c.phase != running || e.qp.State() == verbs.QPStateErr:
	case e.done != before || !e.n.awake() || !e.peer().n.awake():
		done := e.done
		c.later(c.starvation(), func() { e.mustHaveStarved(done) })
	default:
		c.w.failf("%v: the peer posts no receives, and work request %d is neither complete nor failed after %v, %d RNR retries",
			e, e.done, c.starvation(), c.retry.RNRRetryCount)
	}
}

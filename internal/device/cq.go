package device

import (
	"cmp"
	"slices"
	"sync"

	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// CQ is a completion queue, and the QPs that depend on it.
type CQ struct {
	*queue.CQ
	base *Base
	user *verbs.CQ

	mu     sync.Mutex
	closed bool       // no event may name it
	qps    map[QP]int // attached, by how often
}

// QP is a QP that puts completions into a CQ.
type QP interface {
	QPN() verbs.QPN
	Fail(cause error) // takes the QP to the error state
}

// Init makes a CQ of a device. The hook for overruns has Overrun called, without the locks that its caller holds.
func (c *CQ) Init(b *Base, a verbs.CQAttr, user *verbs.CQ, hooks queue.CQHooks) error {
	if a.Timestamps == verbs.WallclockTimestamps {
		return verbs.Errorf(verbs.ErrUnsupported, "a software device has no clock that tells the date: use DeviceTimestamps")
	}
	hooks.Stamped = a.Timestamps == verbs.DeviceTimestamps
	if err := queue.HoldsCQ(a.Entries); err != nil {
		return err
	}
	if !limits.Take(&b.CQs, limits.MaxCQ) {
		return verbs.Errorf(verbs.ErrLimit, "the device has its %d CQs (max_cq)", limits.MaxCQ)
	}
	c.CQ, c.base, c.user, c.qps = queue.NewCQ(a.Entries, hooks), b, user, map[QP]int{}
	return nil
}

// Overrun raises the event of the first lost completions, and takes all QPs of the queue to the error state.
func (c *CQ) Overrun(first bool) {
	cause := verbs.Errorf(verbs.ErrCQOverrun, "a CQ of %d entries was full, and completions were lost", c.Cap())
	c.mu.Lock()
	if first && !c.closed {
		c.base.Raise(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: c.user, Cause: cause})
	}
	qps := make([]QP, 0, len(c.qps))
	for q := range c.qps {
		qps = append(qps, q)
	}
	c.mu.Unlock()
	slices.SortFunc(qps, func(a, b QP) int { return cmp.Compare(a.QPN(), b.QPN()) }) // so that simulations replay
	for _, q := range qps {
		q.Fail(cause)
	}
}

// Close implements verbs.ProviderCQ.
func (c *CQ) Close() error {
	err := c.CQ.Close()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	if c.user != nil { // else it is an XRC target's, and events of QPs have no CQ either
		c.base.events.Drop(func(e verbs.AsyncEvent) bool { return e.CQ == c.user })
	}
	c.base.CQs.Add(-1)
	return err
}

// Attach takes note that a queue of a QP has its completions here, and Detach that it has them no more.
func (c *CQ) Attach(q QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qps[q]++
}

// Detach is called as often as Attach.
func (c *CQ) Detach(q QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.qps[q]--; c.qps[q] == 0 {
		delete(c.qps, q)
	}
}

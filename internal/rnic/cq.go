package rnic

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// A poll that finds nothing looks at pollLooks streams at most.
const pollLooks = 4

// cq is a completion queue of the device, and the QPs that depend on it.
type cq struct {
	*queue.CQ
	dev  *Device
	user *verbs.CQ

	mu     sync.Mutex
	closed bool        // no event may name it
	qps    map[*qp]int // attached, by how often

	connected atomic.Pointer[[]*qp] // those that have a stream a poll can look at
	next      atomic.Uint32         // where the next poll begins to look
	waits     atomic.Uint32         // how often somebody was about to block
}

// CreateCQ implements verbs.ProviderDevice.
func (d *Device) CreateCQ(entries int, user *verbs.CQ) (verbs.ProviderCQ, error) {
	if err := queue.HoldsCQ(entries); err != nil {
		return nil, err
	}
	if !limits.Take(&d.cqs, limits.MaxCQ) {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d CQs (max_cq)", limits.MaxCQ)
	}
	c := &cq{dev: d, user: user, qps: map[*qp]int{}}
	c.connected.Store(new([]*qp))
	c.CQ = queue.NewCQ(entries, queue.CQHooks{
		Progress: c.progress, Arming: c.expectWait, Notify: user.Notified, Overrun: func(first bool) { go c.overrun(first) },
		Spin: d.config.Spin, Yielder: d.config.Yielder, Now: d.now,
	})
	return c, nil
}

// progress reads the bytes that have come for the QPs of the queue, but for QPs whose lock another goroutine holds.
func (c *cq) progress() bool {
	qps := *c.connected.Load()
	n := len(qps)
	if n == 0 {
		runtime.Gosched()
		return false
	}
	at := 0
	if n > pollLooks {
		at = int(c.next.Add(pollLooks)) % n
	}
	for i := range min(n, pollLooks) {
		q := qps[(at+i)%n]
		if q.mu.TryLock() {
			q.looks++
			q.receive(q.dev.turn, false)
			if s := q.s; s != nil && s.blocked {
				s.room()
			}
			q.mu.Unlock()
		}
	}
	return false // it does not know
}

// expectWait is called when somebody is about to block, and will not poll.
func (c *cq) expectWait() {
	c.waits.Add(1)
	if p := c.dev.polling.Load(); p != nil {
		p.expectWait(c)
	}
}

// overrun raises the event of the first lost completions, and takes all QPs of the queue to the error state.
func (c *cq) overrun(first bool) {
	cause := verbs.Errorf(verbs.ErrCQOverrun, "a CQ of %d entries was full, and completions were lost", c.Cap())
	c.mu.Lock()
	if first && !c.closed {
		c.dev.events.Add(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: c.user, Cause: cause})
	}
	var qps []*qp
	for q := range c.qps {
		qps = append(qps, q)
	}
	c.mu.Unlock()
	for _, q := range qps {
		q.fail(cause)
	}
}

// Close implements verbs.ProviderCQ.
func (c *cq) Close() error {
	err := c.CQ.Close()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.dev.events.Drop(func(e verbs.AsyncEvent) bool { return e.CQ == c.user })
	c.dev.cqs.Add(-1)
	return err
}

func (c *cq) attach(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qps[q]++
}

func (c *cq) detach(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.qps[q]--; c.qps[q] == 0 {
		delete(c.qps, q)
	}
}

// follow takes note that polls should look at a QP's stream, or should not any more.
func (c *cq) follow(q *qp, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*c.connected.Load()), func(x *qp) bool { return x == q })
	if on {
		list = append(list, q)
	}
	c.connected.Store(&list)
}

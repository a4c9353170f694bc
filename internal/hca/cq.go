package hca

import (
	"sync"

	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// cq is a completion queue of the device, and the QPs that depend on it.
type cq struct {
	*queue.CQ
	dev  *Device
	user *verbs.CQ

	mu  sync.Mutex
	qps map[*qp]int // attached, by how often
}

// CreateCQ implements verbs.ProviderDevice.
func (d *Device) CreateCQ(entries int, user *verbs.CQ) (verbs.ProviderCQ, error) {
	if !d.take(&d.cqs, maxCQ) {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d CQs (max_cq)", maxCQ)
	}
	c := &cq{dev: d, user: user, qps: map[*qp]int{}}
	c.CQ = queue.NewCQ(entries, queue.CQHooks{Progress: d.progress, Arming: d.expectWait, Notify: user.Notified, Overrun: c.overrun})
	return c, nil
}

// overrun raises the event of lost completions and takes all QPs of the queue to the error state.
func (c *cq) overrun() {
	c.dev.events.Add(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: c.user})
	c.mu.Lock()
	qps := make([]*qp, 0, len(c.qps))
	for q := range c.qps {
		qps = append(qps, q)
	}
	c.mu.Unlock()
	for _, q := range qps {
		q.fail()
	}
}

func (c *cq) Close() error {
	err := c.CQ.Close()
	c.dev.events.Drop(func(e verbs.AsyncEvent) bool { return e.CQ == c.user })
	c.dev.cqs.Add(-1)
	return err
}

func (c *cq) attach(q *qp) {
	c.mu.Lock()
	c.qps[q]++
	c.mu.Unlock()
}

func (c *cq) detach(q *qp) {
	c.mu.Lock()
	if c.qps[q]--; c.qps[q] == 0 {
		delete(c.qps, q)
	}
	c.mu.Unlock()
}

package hca

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// cq is a completion queue of the device, and the QPs that depend on it.
type cq struct {
	*queue.CQ
	dev  *Device
	user *verbs.CQ

	mu      sync.Mutex
	closed  bool            // no event may name it
	qps     map[*qp]int     // attached, by how often
	engines map[*engine]int // by which attached QPs are connected, by how many
	anybody int             // attached QPs whose peers may come by any engine: UD

	shard *shard // of its QPs that are not UD, nil before the first; the device's lock guards it

	polled atomic.Pointer[engineList] // the engines that a poll looks at
}

// engineList is a list of engines that others may read while it changes.
type engineList = atomic.Pointer[[]*engine]

// CreateCQ implements verbs.ProviderDevice.
func (d *Device) CreateCQ(entries int, user *verbs.CQ) (verbs.ProviderCQ, error) {
	if err := queue.HoldsCQ(entries); err != nil {
		return nil, err
	}
	if !limits.Take(&d.cqs, limits.MaxCQ) {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d CQs (max_cq)", limits.MaxCQ)
	}
	c := &cq{dev: d, user: user, qps: map[*qp]int{}, engines: map[*engine]int{}}
	c.polled.Store(&d.engines)
	c.CQ = queue.NewCQ(entries, queue.CQHooks{
		Progress: c.progress, Arming: d.expectWait, Notify: c.notify, Overrun: func(first bool) { d.background(func() { c.overrun(first) }) },
		Spin: d.config.Spin, Yielder: d.config.Yielder, Now: d.now,
	})
	return c, nil
}

// notify tells programs that wait for the queue.
func (c *cq) notify() {
	c.dev.woken.Add(1)
	c.user.Notified()
}

// overrun raises the event of the first lost completions, and takes all QPs of the queue to the error state.
func (c *cq) overrun(first bool) {
	cause := verbs.Errorf(verbs.ErrCQOverrun, "a CQ of %d entries was full, and completions were lost", c.Cap())
	c.mu.Lock()
	if first && !c.closed {
		c.dev.event(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: c.user, Cause: cause})
	}
	qps := make([]*qp, 0, len(c.qps))
	for q := range c.qps {
		qps = append(qps, q)
	}
	c.mu.Unlock()
	slices.SortFunc(qps, func(a, b *qp) int { return cmp.Compare(a.num, b.num) }) // so that simulations replay
	for _, q := range qps {
		q.fail(cause)
	}
}

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
	if q.typ == verbs.QPTypeUD {
		c.anybody++
		c.choose()
	}
}

func (c *cq) detach(q *qp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.qps[q]--; c.qps[q] == 0 {
		delete(c.qps, q)
	}
	if q.typ == verbs.QPTypeUD {
		c.anybody--
		c.choose()
	}
}

// follow takes note that n more QPs are connected by e, or fewer.
func (c *cq) follow(e *engine, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.engines[e] += n; c.engines[e] == 0 {
		delete(c.engines, e)
	}
	c.choose()
}

// choose sets the engines that a poll looks at: those by which something can come for a QP of the queue. For UD QPs
// these are the engines of the first shard, at whatever address. The caller holds c.mu.
func (c *cq) choose() {
	switch {
	case c.anybody > 0 && !c.hasOtherShards():
		c.polled.Store(&c.dev.firstEngines)
		return
	case c.anybody > 0 || len(c.engines) == 0:
		c.polled.Store(&c.dev.engines)
		return
	}
	var es []*engine
	for _, e := range *c.dev.engines.Load() { // in the device's order
		if c.engines[e] > 0 {
			es = append(es, e)
		}
	}
	list := new(engineList)
	list.Store(&es)
	c.polled.Store(list)
}

// hasOtherShards reports whether a QP of the queue is connected by an engine of another shard than the first. The
// caller holds c.mu.
func (c *cq) hasOtherShards() bool {
	for e := range c.engines {
		if e.shard.index > 0 {
			return true
		}
	}
	return false
}

// progress receives and works off the packets for the QPs of the queue, by each engine at which nobody else is at
// work. A look at an address costs a system call, so progress leaves out the addresses at which no packet can come for
// these QPs. It reports whether packets had come.
func (c *cq) progress() (worked bool) {
	for _, e := range *c.polled.Load().Load() {
		worked = e.poll() > 0 || worked
	}
	return worked
}

package rnic

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// A poll that finds nothing looks at pollLooks streams at most.
const pollLooks = 4

// cq is a completion queue of the device, and the streams of its QPs.
type cq struct {
	device.CQ
	dev *Device

	mu        sync.Mutex
	connected atomic.Pointer[[]*qp] // those that have a stream a poll can look at; mu guards changes
	next      atomic.Uint32         // where the next poll begins to look
	waits     atomic.Uint32         // how often somebody was about to block
}

// CreateCQ implements verbs.ProviderDevice.
func (d *Device) CreateCQ(entries int, user *verbs.CQ) (verbs.ProviderCQ, error) {
	return d.CreateCQAttr(verbs.CQAttr{Entries: entries}, user)
}

// RawClock implements verbs.ProviderCQAttr.
func (d *Device) RawClock() (uint64, error) { return uint64(d.now()), nil }

// CreateCQAttr implements verbs.ProviderCQAttr.
func (d *Device) CreateCQAttr(a verbs.CQAttr, user *verbs.CQ) (verbs.ProviderCQ, error) {
	c := &cq{dev: d}
	c.connected.Store(new([]*qp))
	err := c.Init(&d.Base, a, user, queue.CQHooks{
		Progress: c.progress, Arming: c.expectWait, Notify: user.Notified, Overrun: func(first bool) { go c.Overrun(first) },
		Spin: d.config.Spin, Yielder: d.config.Yielder, Now: d.now,
	})
	if err != nil {
		return nil, err
	}
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

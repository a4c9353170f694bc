package hca

import (
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// cq is a completion queue of the device, and the engines that can bring something for its QPs.
type cq struct {
	device.CQ
	dev *Device

	mu      sync.Mutex
	engines map[*engine]int // by which attached QPs are connected, by how many
	anybody int             // attached QPs whose peers may come by any engine: UD, and the targets of XRC SRQs

	shard *shard // of its QPs that are not UD, nil before the first; the device's lock guards it

	polled atomic.Pointer[engineList] // the engines that a poll looks at
}

// engineList is a list of engines that others may read while it changes.
type engineList = atomic.Pointer[[]*engine]

// CreateCQ implements verbs.ProviderDevice.
func (d *Device) CreateCQ(entries int, user *verbs.CQ) (verbs.ProviderCQ, error) {
	return d.CreateCQAttr(verbs.CQAttr{Entries: entries}, user)
}

// RawClock implements verbs.ProviderCQAttr.
func (d *Device) RawClock() (uint64, error) { return uint64(d.now()), nil }

// CreateCQAttr implements verbs.ProviderCQAttr.
func (d *Device) CreateCQAttr(a verbs.CQAttr, user *verbs.CQ) (verbs.ProviderCQ, error) {
	c := d.newCQ()
	err := c.Init(&d.Base, a, user, queue.CQHooks{
		Progress: c.progress, Arming: d.expectWait, Notify: func() { d.woken.Add(1); user.Notified() },
		Overrun: func(first bool) { d.background(func() { c.Overrun(first) }) }, // in a driven device later, without a goroutine
		Spin:    d.config.Spin, Yielder: d.config.Yielder, Now: d.now,
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (d *Device) newCQ() *cq {
	c := &cq{dev: d, engines: map[*engine]int{}}
	c.polled.Store(&d.engines)
	return c
}

func (c *cq) attach(q *qp) {
	c.Attach(q)
	c.expect(q, 1)
}

func (c *cq) detach(q *qp) {
	c.Detach(q)
	c.expect(q, -1)
}

// expect takes note of n more QPs like q, or fewer, if their peers may come by any engine.
func (c *cq) expect(q *qp, n int) {
	if q.typ != verbs.QPTypeUD && q.typ != verbs.QPTypeXRCRecv {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anybody += n
	c.choose()
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

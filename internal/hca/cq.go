package hca

import (
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/verbs"
)

// cq is a completion queue: a ring of completions.
type cq struct {
	dev  *Device
	user *verbs.CQ

	waiting atomic.Int64 // completions in the ring, for a look without the lock

	mu      sync.Mutex
	ring    []cqe
	first   int
	count   int
	arm     armed
	overrun bool
	closed  bool
	qps     map[*qp]int // attached, by how often
}

// cqe is a completion, and how much of its work queue is free once it is polled.
type cqe struct {
	wc    verbs.WC
	slots *atomic.Uint64
	freed uint64
}

type armed uint8

const (
	notArmed armed = iota
	armedSolicited
	armedAny
)

// CreateCQ implements verbs.ProviderDevice.
func (d *Device) CreateCQ(entries int, user *verbs.CQ) (verbs.ProviderCQ, error) {
	if !d.take(&d.cqs, maxCQ) {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d CQs (max_cq)", maxCQ)
	}
	return &cq{dev: d, user: user, ring: make([]cqe, entries), qps: map[*qp]int{}}, nil
}

func (c *cq) Cap() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ring)
}

// Poll makes progress itself when it finds nothing.
func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	if c.waiting.Load() == 0 {
		c.dev.progress()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for ; n < len(wcs) && c.count > 0; n++ {
		e := &c.ring[c.first]
		wcs[n] = e.wc
		if e.slots != nil {
			e.slots.Store(e.freed)
		}
		*e = cqe{}
		if c.first++; c.first == len(c.ring) {
			c.first = 0
		}
		c.count--
	}
	c.waiting.Store(int64(c.count))
	if n > 0 || len(wcs) == 0 {
		return n, nil
	}
	switch {
	case c.closed:
		return 0, verbs.ErrClosed
	case c.overrun:
		return 0, verbs.Errorf(verbs.ErrCQOverrun, "completions were lost: the queue was full with %d; "+
			"create it for as many as all its QPs can have outstanding, or poll more often", len(c.ring))
	}
	return 0, nil
}

// push adds a completion. The caller may hold a qp's lock.
func (c *cq) push(wc verbs.WC, slots *atomic.Uint64, freed uint64, solicited bool) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	if c.count == len(c.ring) {
		first := !c.overrun
		c.overrun = true
		notify := c.arm != notArmed
		c.arm = notArmed
		c.mu.Unlock()
		if first {
			c.dev.events.add(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: c.user})
			go c.failAll() // the caller holds the lock of one of them
		}
		if notify {
			c.user.Notified()
		}
		return
	}
	at := c.first + c.count
	if at >= len(c.ring) {
		at -= len(c.ring)
	}
	c.ring[at] = cqe{wc, slots, freed}
	c.count++
	c.waiting.Store(int64(c.count))
	notify := c.arm == armedAny || c.arm == armedSolicited && (solicited || wc.Status != verbs.WCSuccess)
	if notify {
		c.arm = notArmed
	}
	c.mu.Unlock()
	if notify {
		c.user.Notified()
	}
}

// failAll takes the QPs that have lost completions to the error state.
func (c *cq) failAll() {
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

// Arm implements verbs.ProviderCQ.
func (c *cq) Arm(solicitedOnly bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return verbs.ErrClosed
	}
	want := armedAny
	if solicitedOnly {
		want = armedSolicited
	}
	c.arm = max(c.arm, want)
	if c.overrun { // nothing will come that could be waited for
		c.arm = notArmed
		go c.user.Notified()
	}
	c.dev.expectWait()
	return nil
}

// Resize implements verbs.ProviderCQ.
func (c *cq) Resize(entries int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count > entries {
		return verbs.Errorf(verbs.ErrBusy, "%d completions are waiting, more than %d: poll them first", c.count, entries)
	}
	ring := make([]cqe, entries)
	for i := range c.count {
		ring[i] = c.ring[(c.first+i)%len(c.ring)]
	}
	c.ring, c.first = ring, 0
	return nil
}

func (c *cq) Close() error {
	c.mu.Lock()
	c.closed = true
	c.ring, c.count = nil, 0
	c.waiting.Store(0)
	c.mu.Unlock()
	c.dev.events.drop(func(e verbs.AsyncEvent) bool { return e.CQ == c.user })
	c.dev.cqs.Add(-1)
	return nil
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

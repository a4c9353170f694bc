package queue

import (
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/release"
	"github.com/adverb-rdma/adverb/verbs"
)

// CQE is a completion in a completion queue, or on its way there.
type CQE struct {
	WC verbs.WC
	// Slots, unless nil, counts the freed places of the work queue. Polling the completion stores
	// Freed there.
	Slots *atomic.Uint64
	Freed uint64
	// Solicited says that the peer asked for an event.
	Solicited bool
}

var sendOpcodes = [...]verbs.WCOpcode{
	verbs.OpRDMAWrite:        verbs.WCRDMAWrite,
	verbs.OpRDMAWriteWithImm: verbs.WCRDMAWrite,
	verbs.OpSend:             verbs.WCSend,
	verbs.OpSendWithImm:      verbs.WCSend,
	verbs.OpRDMARead:         verbs.WCRDMARead,
	verbs.OpAtomicCmpSwap:    verbs.WCCompSwap,
	verbs.OpAtomicFetchAdd:   verbs.WCFetchAdd,
	verbs.OpSendWithInv:      verbs.WCSend,
	verbs.OpLocalInv:         verbs.WCLocalInv,
	verbs.OpBindMW:           verbs.WCBindMW,
	verbs.OpFlush:            verbs.WCFlush,
	verbs.OpAtomicWrite:      verbs.WCAtomicWrite,
}

// SendOpcode returns the opcode of the completion of a send work request.
func SendOpcode(op verbs.Opcode) verbs.WCOpcode { return sendOpcodes[op] }

// CQHooks are the device's functions that a completion queue calls. All may be called with locks of
// queue pairs held.
type CQHooks struct {
	Progress func() bool // a poll found nothing: receive and handle packets or bytes that have arrived, and report whether there were any
	Arming   func()      // somebody is about to wait for Notify
	Notify   func()      // the event that Arm asked for has come
	// Overrun is called when completions are lost, and again when more are: of QPs that came later.
	Overrun func(first bool)
	Spin    int                  // polls that Soon may make, if there is a Soon
	Yielder *Yielder             // gives the core to others while Soon polls, or nil
	Now     func() time.Duration // the device's clock, for Soon
	Stamped bool                 // completions bear the time of Now, in nanoseconds
}

// CQ is a completion queue: a ring of completions. The ring grows while completions wait, up to the room that the program
// has asked for, since most queues never hold more than a few.
type CQ struct {
	hooks CQHooks
	spin  waitSpin

	// shown can be read without the lock: it has count and, in its upper half, how many polls took the lock. It
	// changes under the lock.
	shown atomic.Uint64
	vain  atomic.Uint32 // polls that found nothing
	ended atomic.Bool   // closed or overrun: an empty poll has an error to tell

	mu      release.Mutex
	ring    []CQE
	entries int // that the ring may have
	first   int
	count   int
	arm     armed
	overrun bool
	closed  bool
	sink    verbs.CompletionSink // takes the completions in place of the ring, or nil
}

// SetSink implements verbs.ProviderCQSink.
func (c *CQ) SetSink(s verbs.CompletionSink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sink = s
}

// armed says which completions make an event.
type armed uint8

const (
	notArmed armed = iota
	armedSolicited
	armedAny
)

// NewCQ makes a queue for so many completions.
func NewCQ(entries int, hooks CQHooks) *CQ {
	return &CQ{hooks: hooks, ring: make([]CQE, FirstPlaces(entries)), entries: entries}
}

// Cap implements verbs.ProviderCQ.
func (c *CQ) Cap() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries
}

// Waiting returns how many completions are waiting. It takes no lock.
func (c *CQ) Waiting() int { return int(uint32(c.shown.Load())) }

// Polls returns how often Poll was called, modulo 2^32.
func (c *CQ) Polls() uint32 { return uint32(c.shown.Load()>>32) + c.vain.Load() }

const onePoll = 1 << 32 // in CQ.shown

// show adds to c.shown. The caller holds c.mu.
func (c *CQ) show(n uint64) { release.Store(&c.shown, c.shown.Load()+n) }

// Poll implements verbs.ProviderCQ. When it finds nothing it makes progress itself, and looks again.
func (c *CQ) Poll(wcs []verbs.WC) (int, error) {
	if c.Waiting() == 0 {
		worked := c.hooks.Progress()
		if c.Waiting() == 0 && !c.ended.Load() {
			c.vain.Add(1)
			if !worked {
				c.cede()
			}
			return 0, nil
		}
	}
	c.mu.Lock()
	n := 0
	var slots *atomic.Uint64 // of the completions before, of which the latest has freed most
	var freed uint64
	for ; n < len(wcs) && c.count > 0; n++ {
		e := &c.ring[c.first]
		wcs[n] = e.WC
		if slots != e.Slots && slots != nil {
			release.Store(slots, freed)
		}
		slots, freed = e.Slots, e.Freed
		e.Slots, e.WC.QP, e.WC.Cause = nil, nil, nil // otherwise the ring would keep these objects from the garbage collector
		if c.first++; c.first == len(c.ring) {
			c.first = 0
		}
		c.count--
	}
	if slots != nil {
		release.Store(slots, freed)
	}
	c.show(onePoll - uint64(n))
	var err error
	if n == 0 && len(wcs) > 0 {
		err = c.end()
	}
	c.mu.Unlock()
	return n, err
}

// end returns why an empty queue gets no more completions, or nil. The caller holds c.mu.
func (c *CQ) end() error {
	switch {
	case c.closed:
		return verbs.ErrClosed
	case c.overrun:
		return verbs.Errorf(verbs.ErrCQOverrun, "completions were lost: the queue was full with %d; "+
			"create it for as many as all its QPs can have outstanding, or poll more often", c.entries)
	}
	return nil
}

// Push adds completions. The first for which there is no room is lost, and all behind it: the queue is then overrun.
func (c *CQ) Push(cqes []CQE) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	before, overrun := c.count, c.overrun
	notify, lost := false, false
	if c.hooks.Stamped {
		c.stamp(cqes)
	}
	for i := range cqes {
		e := &cqes[i]
		if c.overrun || !c.add(e) { // a completion that fits later would have a gap before it
			lost, c.overrun = true, true
			c.ended.Store(true)
			notify = notify || c.arm != notArmed
			break
		}
		if c.arm == armedAny || c.arm == armedSolicited && (e.Solicited || e.WC.Status != verbs.WCSuccess) {
			notify = true
		}
	}
	c.show(uint64(c.count - before))
	if notify {
		c.arm = notArmed
	}
	c.mu.Unlock()
	if lost {
		c.hooks.Overrun(!overrun)
	}
	if notify {
		c.notify()
	}
}

// stamp says when completions have come. Under the lock no earlier one bears a later time. The caller holds c.mu.
func (c *CQ) stamp(cqes []CQE) {
	now := uint64(c.hooks.Now())
	for i := range cqes {
		cqes[i].WC.Timestamp = now
	}
}

// add puts a completion into the ring, or hands it to the sink. It returns false if there is no room. The caller holds c.mu.
func (c *CQ) add(e *CQE) bool {
	if c.sink != nil {
		if e.Slots != nil {
			e.Slots.Store(e.Freed)
		}
		return c.sink.Complete(&e.WC, e.Freed)
	}
	if c.count == len(c.ring) && !c.grow() {
		return false
	}
	at := c.first + c.count
	if at >= len(c.ring) {
		at -= len(c.ring)
	}
	c.ring[at] = *e
	c.count++
	return true
}

// grow makes the ring larger, if it may be. The caller holds c.mu.
func (c *CQ) grow() bool {
	n := min(2*len(c.ring), c.entries)
	if n <= len(c.ring) {
		return false
	}
	c.remake(n)
	return true
}

// remake makes a ring of n places, with the completions that wait. The caller holds c.mu.
func (c *CQ) remake(n int) {
	ring := make([]CQE, n)
	k := copy(ring, c.ring[c.first:min(c.first+c.count, len(c.ring))])
	copy(ring[k:], c.ring[:c.count-k])
	c.ring, c.first = ring, 0
}

// PushBoth puts the completions of a QP into the CQs of its queues. Those of receives have the bit of
// verbs.WCRecv in their opcode.
func PushBoth(send, recv *CQ, done []CQE) {
	if send == recv {
		send.Push(done)
		return
	}
	for len(done) > 0 {
		isRecv := done[0].WC.Op&verbs.WCRecv != 0
		n := 1
		for n < len(done) && (done[n].WC.Op&verbs.WCRecv != 0) == isRecv {
			n++
		}
		if isRecv {
			recv.Push(done[:n])
		} else {
			send.Push(done[:n])
		}
		done = done[n:]
	}
}

// Arm implements verbs.ProviderCQ.
func (c *CQ) Arm(solicitedOnly bool) error {
	lost, err := c.armFor(solicitedOnly)
	if lost { // nothing will come that could be waited for
		c.notify()
	}
	return err
}

// armFor is Arm, but for the event of an overrun queue. It reports whether the queue is one.
func (c *CQ) armFor(solicitedOnly bool) (lost bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false, verbs.ErrClosed
	}
	want := armedAny
	if solicitedOnly {
		want = armedSolicited
	}
	c.arm = max(c.arm, want)
	if c.overrun {
		c.arm = notArmed
	}
	c.hooks.Arming()
	return c.overrun, nil
}

// Resize implements verbs.ProviderCQ.
func (c *CQ) Resize(entries int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count > entries {
		return verbs.Errorf(verbs.ErrBusy, "%d completions are waiting, more than %d: poll them first", c.count, entries)
	}
	if err := HoldsCQ(entries); err != nil {
		return err
	}
	c.remake(max(FirstPlaces(entries), c.count))
	c.entries = entries
	return nil
}

// Close implements verbs.ProviderCQ.
func (c *CQ) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.ended.Store(true)
	c.show(-uint64(c.count))
	c.ring, c.entries, c.count = nil, 0, 0
	return nil
}

// Look returns the completions that wait, the oldest first, for those who show a queue.
func (c *CQ) Look() []verbs.WC {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]verbs.WC, c.count)
	for i := range list {
		list[i] = c.ring[(c.first+i)%len(c.ring)].WC
	}
	return list
}

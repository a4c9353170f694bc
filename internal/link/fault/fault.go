// Package fault disturbs datagrams as bad networks do, in a way that a seed determines. New makes
// middleware that disturbs a real link. The simulated network is made of the same parts: Dice, Path
// and Queue.
package fault

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Directions says which datagrams of a link are disturbed.
type Directions uint8

const (
	Outgoing Directions = 1 << iota
	Incoming

	Both = Outgoing | Incoming
)

// Config says which datagrams New disturbs, and how.
type Config struct {
	Seed uint64

	Loss, Duplicate, Reorder, Corrupt float64 // probabilities; see Faults
	Delay, Jitter                     time.Duration
	MarkCE                            float64 // a probability
	Rate                              int64   // in each direction; see Faults
	MarkCEAbove                       int     // in each direction; see Faults

	Directions Directions // 0 is Both

	// Match picks the datagrams that are disturbed; nil picks all. In each direction it is called for one datagram at
	// a time, and never for a train.
	Match func(*link.Datagram) bool
}

// Counter is implemented by the links of New. Counts returns the counters of their datagrams' fates.
type Counter interface {
	Counts() (out, in Counts)
}

const scratch = 64 // datagrams moved at a time

// New returns middleware that disturbs a link. The fate of the n-th datagram that Match picks from one address to
// another depends on the seed, the addresses, n and the direction only. A datagram that comes in for a multicast
// group counts as sent to the link's own address, so that the members of a group do not all lose the same datagrams.
//
// If outgoing datagrams are disturbed, MaxTrain is 1: a train that had lost one of its datagrams could not be sent,
// because the others would get wrong identifications. Stats counts datagrams that the faults lose as sent or received
// if the wrapped link has seen them.
func New(c Config) link.Middleware {
	if c.Directions == 0 {
		c.Directions = Both
	}
	return func(inner link.Link) link.Link {
		start := time.Now()
		l := &disturbed{
			Link:  inner,
			dirs:  c.Directions,
			match: c.Match,
			faults: Faults{Loss: c.Loss, Duplicate: c.Duplicate, Reorder: c.Reorder, Corrupt: c.Corrupt, Delay: c.Delay, Jitter: c.Jitter,
				MarkCE: c.MarkCE, Rate: c.Rate, MarkCEAbove: c.MarkCEAbove},
			now: func() time.Duration { return time.Since(start) },
		}
		// A datagram that a link sends to itself passes both ways. It should not have the same fate twice.
		l.out = newHalf(c.Seed)
		l.in = newHalf(mix(c.Seed + uint64(Incoming)))
		return l
	}
}

// disturbed is the link that New makes.
type disturbed struct {
	link.Link
	dirs   Directions
	match  func(*link.Datagram) bool
	faults Faults
	now    func() time.Duration

	out, in half

	// Guarded by out.mu.
	timer         *time.Timer // for sending late datagrams
	closed        bool
	sendErrors    uint64
	lastSendError error
}

// A half is one direction.
type half struct {
	seed uint64

	mu      sync.Mutex
	queue   *Queue
	paths   map[pair]*Path
	scratch []link.Datagram
	one     link.Datagram // a segment of a train, while Match looks at it
	counts  Counts
}

type pair struct{ src, dst netip.Addr }

func newHalf(seed uint64) half {
	return half{
		seed:    seed,
		queue:   NewQueue(0),
		paths:   make(map[pair]*Path),
		scratch: make([]link.Datagram, scratch),
	}
}

// pass puts into h.queue the copies of d, a single datagram, that the faults leave.
func (l *disturbed) pass(h *half, now time.Duration, d *link.Datagram) {
	if l.match != nil && !l.match(d) {
		h.queue.Push(d)
		return
	}
	key := pair{d.Src.Addr(), d.Dst.Addr()}
	if h == &l.in && key.dst.IsMulticast() {
		key.dst = l.Addr().Addr() // or all members of the group would lose the same datagrams
	}
	p := h.paths[key]
	if p == nil {
		p = NewPath(h.seed, key.src, key.dst)
		h.paths[key] = p
	}
	p.Pass(h.queue, &l.faults, now, d, &h.counts)
}

// MaxTrain implements link.Link.
func (l *disturbed) MaxTrain() int {
	if l.dirs&Outgoing != 0 {
		return 1
	}
	return l.Link.MaxTrain()
}

// Send implements link.Link.
func (l *disturbed) Send(batch []link.Datagram) error {
	if l.dirs&Outgoing == 0 {
		return l.Link.Send(batch)
	}
	h := &l.out
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.closed {
		return link.ErrClosed
	}
	now := l.now()
	for i := range batch {
		d := &batch[i]
		if n := d.Segments(); n > 1 {
			l.sendErrors += uint64(n)
			l.lastSendError = errTrain(d)
			continue
		}
		l.pass(h, now, d)
	}
	return l.forward(now)
}

func errTrain(d *link.Datagram) error {
	return fmt.Errorf("send from %v to %v: a train of %d datagrams, but faults make the link's MaxTrain 1", d.Src, d.Dst, d.Segments())
}

// forward sends the datagrams that are due, and starts the timer for the rest. The caller holds out.mu.
func (l *disturbed) forward(now time.Duration) error {
	h := &l.out
	h.queue.Arrive(now)
	for {
		n := h.queue.Pop(h.scratch)
		if err := l.Link.Send(h.scratch[:n]); err != nil { // also if n is 0, because the link may be closed
			return err
		}
		if n < len(h.scratch) {
			break
		}
	}
	if at, ok := h.queue.Next(); ok {
		if l.timer == nil {
			l.timer = time.AfterFunc(at-now, l.late)
		} else {
			l.timer.Reset(at - now)
		}
	}
	return nil
}

func (l *disturbed) late() {
	l.out.mu.Lock()
	defer l.out.mu.Unlock()
	if !l.closed {
		_ = l.forward(l.now()) // only ErrClosed, which the next Send returns
	}
}

// Recv implements link.Link.
func (l *disturbed) Recv(batch []link.Datagram) (int, error) {
	if l.dirs&Incoming == 0 {
		return l.Link.Recv(batch)
	}
	h := &l.in
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := l.Link.Recv(h.scratch[:min(len(batch), len(h.scratch))])
	if err != nil {
		return 0, err
	}
	if n == 0 && h.queue.Len() == 0 {
		return 0, nil
	}
	now := l.now()
	for i := range n {
		d := &h.scratch[i]
		one := &h.one
		*one = *d
		one.SegmentSize = 0
		for s := range d.Segments() {
			one.Payload = d.Segment(s)
			one.ID = d.ID + uint16(s)
			l.pass(h, now, one)
		}
	}
	h.queue.Arrive(now)
	return h.queue.Pop(batch), nil
}

// Wait implements link.Link.
func (l *disturbed) Wait(d time.Duration) error {
	if l.dirs&Incoming != 0 {
		l.in.mu.Lock()
		at, ok := l.in.queue.Next()
		l.in.mu.Unlock()
		if ok {
			if left := max(0, at-l.now()); d < 0 || left < d {
				d = left
			}
		}
	}
	return l.Link.Wait(d)
}

// Join implements link.Multicaster.
func (l *disturbed) Join(group netip.Addr) error { return link.Join(l.Link, group) }

// Leave implements link.Multicaster.
func (l *disturbed) Leave(group netip.Addr) error { return link.Leave(l.Link, group) }

// Counts implements Counter.
func (l *disturbed) Counts() (out, in Counts) {
	return l.out.counted(), l.in.counted()
}

func (h *half) counted() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts
}

// Stats implements link.Link.
func (l *disturbed) Stats() link.Stats {
	s := l.Link.Stats()
	l.out.mu.Lock()
	defer l.out.mu.Unlock()
	s.SendErrors += l.sendErrors
	if l.lastSendError != nil {
		s.LastSendError = l.lastSendError
	}
	return s
}

// Close implements link.Link. Late datagrams are lost.
func (l *disturbed) Close() error {
	err := l.Link.Close()
	if errors.Is(err, link.ErrClosed) {
		return err
	}
	l.out.mu.Lock()
	defer l.out.mu.Unlock()
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	return err
}

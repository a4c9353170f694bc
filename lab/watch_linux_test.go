package lab

import (
	"context"
	"fmt"
	"sync"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// watch is middleware that counts packets by opcode, and can hold back those that go out. One watch
// on each side of middleware that makes faults shows what the faults did.
type watch struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced after each batch of packets
	out, in map[wire.Opcode]int
	naks    map[byte]int // packets in both directions, by AETH syndromes other than ACKs
	holding bool
	held    []link.Datagram
	inner   link.Link
}

func newWatch() *watch {
	return &watch{changed: make(chan struct{}), out: make(map[wire.Opcode]int), in: make(map[wire.Opcode]int), naks: make(map[byte]int)}
}

func (w *watch) middleware(inner link.Link) link.Link {
	w.inner = inner
	return &watchedLink{inner, w}
}

func (w *watch) count(counts map[wire.Opcode]int, d *link.Datagram) {
	var p wire.Packet
	for i := range d.Segments() {
		if p.Decode(d.Segment(i)) != nil {
			continue
		}
		counts[p.Opcode]++
		if p.Opcode == wire.RCAcknowledge && p.AETH.Syndrome >= firstNAK {
			w.naks[byte(p.AETH.Syndrome)]++
		}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// AETH syndromes.
const (
	firstNAK      = 0x20
	rnrNAK        = 0x20 // the low bits hold the timer's code
	nakSequence   = 0x60
	nakInvalid    = 0x61
	nakAccess     = 0x62
	nakOperation  = 0x63
	syndromeClass = 0xe0
)

// total returns how many packets with these opcodes went out and came in. Without opcodes it counts
// all packets.
func (w *watch) total(ops ...wire.Opcode) (out, in int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := func(counts map[wire.Opcode]int) (n int) {
		for op, c := range counts {
			if len(ops) == 0 {
				n += c
			}
			for _, want := range ops {
				if op == want {
					n += c
				}
			}
		}
		return n
	}
	return sum(w.out), sum(w.in)
}

// nak returns how many NAKs with a syndrome passed in either direction.
func (w *watch) nak(syndrome byte) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s, c := range w.naks {
		if s == syndrome || syndrome == rnrNAK && s&syndromeClass == rnrNAK {
			n += c
		}
	}
	return n
}

// await returns when f returns true. await calls f after each batch of packets.
func (w *watch) await(ctx context.Context, f func() bool) error {
	for {
		w.mu.Lock()
		changed := w.changed
		w.mu.Unlock()
		if f() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the awaited packets did not pass: %w", context.Cause(ctx))
		}
	}
}

// hold keeps back the packets that go out, until release.
func (w *watch) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holding = true
}

// release sends the packets that hold has kept back, and ends the holding.
func (w *watch) release() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holding = false
	held := w.held
	w.held = nil
	return w.inner.Send(held)
}

// watchedLink is the link that a watch makes of an inner link.
type watchedLink struct {
	link.Link
	w *watch
}

func (l *watchedLink) Send(batch []link.Datagram) error {
	w := l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range batch {
		w.count(w.out, &batch[i])
	}
	if !w.holding {
		return l.Link.Send(batch)
	}
	for _, d := range batch {
		d.Payload = append([]byte(nil), d.Payload...)
		w.held = append(w.held, d)
	}
	return nil
}

func (l *watchedLink) Recv(batch []link.Datagram) (int, error) {
	n, err := l.Link.Recv(batch)
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	for i := range batch[:n] {
		l.w.count(l.w.in, &batch[i])
	}
	return n, err
}

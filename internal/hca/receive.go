package hca

import (
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	pkeyBase = 0x7fff // a P_Key without its membership bit
	ecnMask  = 0x03   // of a traffic class
)

// counter32 is a counter that sticks at its maximum, as those of ports do.
type counter32 struct{ n atomic.Uint32 }

func (c *counter32) add() {
	for {
		if n := c.n.Load(); n == 1<<32-1 || c.n.CompareAndSwap(n, n+1) {
			return
		}
	}
}

func (c *counter32) load() uint32 { return c.n.Load() }

// receive takes a batch of datagrams from the link and works it off. The caller holds e.rx.
// A QP stays locked over a run of its packets, and answers them when the run ends, so that
// one acknowledgement serves the run.
func (e *engine) receive(now time.Duration) (int, error) {
	n, err := e.link.Recv(e.arrivals[:])
	if err != nil || n == 0 {
		return n, err
	}
	var q *qp
	for i := range e.arrivals[:n] {
		d := &e.arrivals[i]
		for s := range d.Segments() {
			q = e.packetIn(now, q, d, s)
		}
		if q != nil {
			q.publish() // the program need not wait for the rest of a long batch
		}
	}
	if q != nil {
		q.transmit(now)
		q.mu.Unlock()
	}
	return n, nil
}

// packetIn hands a datagram to its QP, which it returns locked. cur is the QP that is locked
// before, or nil.
func (e *engine) packetIn(now time.Duration, cur *qp, d *link.Datagram, segment int) *qp {
	p := &e.packet
	payload := d.Segment(segment)
	if p.Decode(payload) != nil {
		e.drops.malformed.Add(1)
		return cur
	}
	if p.DestQP == multicastQPN {
		if cur != nil { // its lock may be one that is about to be taken
			cur.transmit(now)
			cur.mu.Unlock()
		}
		e.multicast(d, segment, payload)
		return nil
	}
	q := cur
	if q == nil || q.num != p.DestQP {
		if q = e.dev.qps.Get(p.DestQP); q == nil && p.DestQP == gsiQPN {
			q = e.dev.gsi.qp.Load()
		}
		if q == nil {
			e.drops.noQP.Add(1)
			return cur
		}
		if cur != nil {
			cur.transmit(now)
			cur.mu.Unlock()
		}
		q.mu.Lock()
	}
	e.accept(now, q, d, segment, payload)
	return q
}

// accept checks whether the packet is one for q at all, and lets the transport have it.
func (e *engine) accept(now time.Duration, q *qp, d *link.Datagram, segment int, payload []byte) {
	p := &e.packet
	switch {
	case q.typ == verbs.QPTypeUD:
		e.acceptDatagram(q, d, segment, payload)
	case q.closed || q.out.eng != e:
		e.drops.noQP.Add(1)
	case d.Src.Addr() != q.out.dst.Addr():
		e.drops.source.Add(1)
	case !q.in.verify(q.out.src.Addr(), d, segment, payload):
		e.drops.icrc.Add(1)
	case p.PKey&pkeyBase != wire.DefaultPKey&pkeyBase: // after the ICRC: damage is no partition's fault
		e.drops.pkey.Add(1)
		e.dev.port.badPKeys.add()
	default:
		q.t.HandlePacket(now, p, transport.ECN(d.TrafficClass&ecnMask))
	}
}

// acceptDatagram is accept for a UD QP, whose packets may come from anywhere.
func (e *engine) acceptDatagram(q *qp, d *link.Datagram, segment int, payload []byte) {
	p := &e.packet
	flow := wire.NewFlow(d.Src, d.Dst)
	switch {
	case q.closed:
		e.drops.noQP.Add(1)
	case !verifyAny(&flow, d, segment, payload):
		e.drops.icrc.Add(1)
	case p.PKey&pkeyBase != wire.DefaultPKey&pkeyBase:
		e.drops.pkey.Add(1)
		e.dev.port.badPKeys.add()
	default:
		putGRH(&e.grh, d, len(payload))
		if !q.t.HandleDatagram(p, &e.grh) {
			e.drops.qkey.Add(1)
			e.dev.port.qkeyViolations.add()
		}
	}
}

// multicast hands a datagram to every QP that is attached to its group.
func (e *engine) multicast(d *link.Datagram, segment int, payload []byte) {
	members := e.dev.groups.members(d.Dst.Addr())
	if len(members) == 0 {
		e.drops.noQP.Add(1)
	}
	for _, q := range members {
		q.mu.Lock()
		e.acceptDatagram(q, d, segment, payload)
		q.publish()
		q.mu.Unlock()
	}
}

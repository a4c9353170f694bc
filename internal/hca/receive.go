package hca

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// drops count the datagrams that an engine has refused, by cause.
type drops struct {
	malformed atomic.Uint64 // no RoCEv2 packet
	noQP      atomic.Uint64 // no QP of that number on this address
	source    atomic.Uint64 // not from the QP's peer
	icrc      atomic.Uint64 // ICRC wrong
	pkey      atomic.Uint64
}

// counter32 is a counter that sticks at its maximum, as those of ports do.
type counter32 struct{ n atomic.Uint32 }

func (c *counter32) add() {
	if n := c.n.Load(); n != 1<<32-1 {
		c.n.CompareAndSwap(n, n+1)
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
	q := cur
	if q == nil || q.num != p.DestQP {
		if q = e.dev.qps.get(p.DestQP); q == nil {
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
	case q.closed || q.eng != e:
		e.drops.noQP.Add(1)
	case d.Src.Addr() != q.dst.Addr():
		e.drops.source.Add(1)
	case p.PKey&0x7fff != defaultPKey&0x7fff:
		e.drops.pkey.Add(1)
		e.dev.port.badPKeys.add()
	case !q.checkICRC(d, segment, payload):
		e.drops.icrc.Add(1)
	default:
		q.t.HandlePacket(now, p)
	}
}

// checkICRC verifies a packet's ICRC, which covers the IPv4 identification and DF: as the link
// saw them or, where it could not, as the sender must have set them.
func (q *qp) checkICRC(d *link.Datagram, segment int, payload []byte) bool {
	if d.Src != q.heardFrom {
		q.heardFrom = d.Src
		q.inbound = wire.NewFlow(d.Src, netip.AddrPortFrom(q.src.Addr(), link.Port))
	}
	if d.IDKnown {
		return q.inbound.Verify(d.ID+uint16(segment), payload)
	}
	if q.ids.kind != idsForeign && q.inbound.Verify(uint16(segment), payload) {
		return true // a sender such as ourselves
	}
	id, _, ok := q.inbound.SolveID(payload)
	return ok && q.ids.plausible(id)
}

// ids is what is known of a peer's IPv4 identifications. Solved from the ICRC they leave a check
// of 15 bits only; that they go on from where they were makes up for some of the rest.
type ids struct {
	kind     idsKind
	accepted uint16 // the latest of a packet that was taken
	refused  uint16 // the latest of one that was not
	misses   uint8
}

type idsKind uint8

const (
	idsOurs    idsKind = iota // as link.Link.Send has them, so far
	idsForeign                // counting up
	idsNoCount                // in no order that we know
)

// plausible reports whether a solved identification fits the sender. A count that jumps
// costs one packet, which comes again; a sender without a count costs idMisses.
func (s *ids) plausible(id uint16) bool {
	near := func(last uint16) bool { return id-last+idWindow/2 < idWindow }
	switch {
	case s.kind == idsNoCount:
		return true
	case s.kind == idsOurs, near(s.accepted), s.misses > 0 && near(s.refused):
		s.kind, s.accepted, s.misses = idsForeign, id, 0
		return true
	}
	s.refused = id
	if s.misses++; s.misses > idMisses {
		s.kind = idsNoCount
		return true
	}
	return false
}

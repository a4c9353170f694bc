package hca

// One packet's way in by the network. On one host a QP's packets come by lane.go instead of steps 1 to 3.
//
//  1. A polling program or the engine's goroutine calls engine.receive. link.Recv fills a batch of
//     datagrams. Each may be a train of segments, which are the packets.
//  2. packetIn decodes a packet and finds its QP by the destination QPN.
//  3. accept checks that the packet is from the QP's peer, by address and port, and checks its ICRC and
//     P_Key. A packet that does not fit is dropped and counted. A QP with keys decrypts the packet: see security.go.
//  4. transport.QP.HandlePacket executes a request, or completes work requests by a response. It
//     copies data to and from memory through package mem.
//  5. publish puts completions into the CQ, from where the program's Poll takes them.
//  6. After the last packet for the same QP, transmit sends its answers: see send.go.

import (
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/peer"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

const ecnMask = 0x03 // of a traffic class

// counter32 is a counter that stays at its maximum, as the counters of ports do.
type counter32 struct{ n atomic.Uint32 }

func (c *counter32) add() {
	for {
		if n := c.n.Load(); n == 1<<32-1 || c.n.CompareAndSwap(n, n+1) {
			return
		}
	}
}

func (c *counter32) load() uint32 { return c.n.Load() }

// receive takes a batch of datagrams from the link and works it off. It returns how many there were, and when
// they came. It looks at the clock for this: turns that were served before, or a host that took the processor away, may
// have taken longer than a probe waits. An acknowledgement restarts the timers of the packets that are under way, and
// these timers run from the time of the acknowledgement. A QP stays locked while packets for it follow one another, and
// answers after the last, so that one acknowledgement serves all. The caller holds e.rx.
func (e *engine) receive(now time.Duration) (int, time.Duration, error) {
	n, err := e.link.Recv(e.arrivals[:])
	now = max(now, e.dev.now())
	if err != nil || n == 0 {
		return n, now, err
	}
	var q *qp
	e.row = 0
	for i := range e.arrivals[:n] {
		d := &e.arrivals[i]
		segments := d.Segments()
		if segments > 1 && isACK(d.Segment(segments-1)) {
			// An acknowledgement ends the train because it is short. It was due before the rest: see gather.
			segments--
			q = e.packetIn(now, q, d, segments)
		}
		for s := range segments {
			q = e.packetIn(now, q, d, s)
		}
		if q != nil && i < n-1 { // transmit publishes what the last datagram has done
			q.publish() // the program need not wait for the rest of a long batch
		}
	}
	if q != nil {
		e.answer(now, q)
	}
	return n, now, nil
}

// isACK reports whether a packet looks like an acknowledgement.
func isACK(payload []byte) bool {
	return len(payload) == wire.BTHSize+wire.AETHSize+wire.ICRCSize && wire.Opcode(payload[0]) == wire.RCAcknowledge
}

// packetIn hands a segment of a datagram to its QP. cur is the QP that is locked before the call, or
// nil. packetIn returns the QP that is locked after it, or nil.
func (e *engine) packetIn(now time.Duration, cur *qp, d *link.Datagram, segment int) *qp {
	p := &e.packet
	payload := d.Segment(segment)
	if p.Decode(payload) != nil {
		e.drop(dropMalformed, nil, d)
		return cur
	}
	if p.DestQP == multicastQPN {
		if cur != nil { // multicast may lock this QP
			e.answer(now, cur)
		}
		e.multicast(d, segment, payload)
		return nil
	}
	q := cur
	if q == nil || q.num != p.DestQP {
		if q = e.shard.qps.Get(p.DestQP); q == nil && p.DestQP == gsiQPN {
			q = e.dev.gsi.qp.Load()
		}
		if q == nil { // QP0 among others: IBTA CA17-33
			e.drop(dropNoQP, nil, d)
			return cur
		}
		if cur != nil {
			e.answer(now, cur)
		}
		e.row = 0
		q.mu.Lock()
	}
	if q.typ == verbs.QPTypeUC && e.near.inbox != nil && e.near.inbox.Waiting() {
		e.lanesFirst(now, q, d.Src.Addr())
		_ = p.Decode(payload) // again: lanesFirst has used the packet. The payload is known to be right
	}
	if e.row++; e.row == 2 { // more may follow
		q.t.KeepMemory(&e.memory)
	}
	e.accept(now, q, d, segment, payload)
	return q
}

// accept checks whether the packet is for q, and hands the packet to the transport. IBTA CA17-24, CA17-39.
func (e *engine) accept(now time.Duration, q *qp, d *link.Datagram, segment int, payload []byte) {
	p := &e.packet
	switch {
	case q.typ == verbs.QPTypeUD:
		e.acceptDatagram(q, d, segment, payload)
	case q.closed || q.out.eng != e: // sent to another address than the QP's: IBTA CA17-41
		e.drop(dropNoQP, nil, d)
	case d.Src.Addr() != q.out.dst.Addr() && !q.followsPeer(now, p, d, segment, payload):
		e.drop(dropSource, q, d)
	case !q.peer.Verify(q.out.src.Addr(), d, segment, payload):
		e.drop(dropICRC, q, d)
	case !matches(q.pkey(), p.PKey): // after the ICRC: damage is no partition's fault
		e.drop(dropPKey, q, d)
		e.dev.port.badPKeys.add()
	case q.security != nil:
		e.acceptSecured(now, q, d, payload)
	case !q.sendsFrom(now, p, d.Src.Port()) && !q.followsPeer(now, p, d, segment, payload):
		e.drop(dropSource, q, d)
	default:
		q.traffic.receives(len(payload))
		if q.migrating && !p.MigReq {
			q.t.HeardMigReq()
		}
		if q.t.HandlePacket(now, p, transport.ECN(d.TrafficClass&ecnMask)) {
			q.peer.Progressed(p)
			if q.peer.IsSurelyAdverb() {
				q.t.PeerIsOurs()
			}
		} else if p.Opcode == wire.Secured {
			e.drop(dropNoKey, q, d)
		}
		if q.migrating {
			q.takeAlternate() // retries may be used up
		}
	}
}

// sendsFrom reports whether a packet, whose ICRC is right, comes from a UDP port that q's peer sends from.
func (q *qp) sendsFrom(now time.Duration, p *wire.Packet, port uint16) bool {
	if q.peer.SendsFrom(p, port) || q.t.PeerSends(port) {
		return true
	}
	fit, base := q.t.Expect(p)
	return q.peer.MovesTo(now, p, port, peer.Evidence{
		Next: fit == transport.Expected, Impossible: fit == transport.Unexpected, Base: base, SaidHello: q.t.PeerSaidHello(),
	})
}

// acceptDatagram is accept for a UD QP, to which anybody may send.
func (e *engine) acceptDatagram(q *qp, d *link.Datagram, segment int, payload []byte) {
	p := &e.packet
	flow := e.dev.flowOf(d)
	switch {
	case q.closed:
		e.drop(dropNoQP, nil, d)
	case !peer.VerifyAny(&flow, d, segment, payload):
		e.drop(dropICRC, q, d)
	case !matches(q.pkey(), p.PKey):
		e.drop(dropPKey, q, d)
		e.dev.port.badPKeys.add()
	default:
		q.traffic.receives(len(payload))
		from := e.dev.putHeader(&e.grh, d, len(payload))
		if !q.t.HandleDatagramFrom(p, &e.grh, from) {
			e.drop(dropQKey, q, d)
			e.dev.port.qkeyViolations.add()
		}
	}
}

// multicast hands a datagram to every QP that is attached to its group.
func (e *engine) multicast(d *link.Datagram, segment int, payload []byte) {
	members := e.dev.groups.members(d)
	if len(members) == 0 {
		e.drop(dropNoQP, nil, d)
	}
	for _, q := range members {
		q.mu.Lock()
		e.acceptDatagram(q, d, segment, payload)
		q.publish()
		q.mu.Unlock()
	}
}

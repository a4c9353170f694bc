package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// SetAdaptiveRouting chooses what the QP, which is RC, makes of a network whose packets overtake one another: see
// verbs.AdaptiveRouting, of which no value is left to a default.
func (q *QP) SetAdaptiveRouting(r verbs.AdaptiveRouting) {
	q.routing = r
	if rc, ok := q.service.(*rc); ok && !r.Accept {
		s := &rc.responder
		if s.gap.at != Never { // nothing waits any more
			s.gapStays()
		}
		s.gap = gap{at: Never}
	}
}

// gap is the wait for packets that others have overtaken, where the peer does not know acknowledged ranges. The
// answer is then a NAK, and the peer repeats all from the gap on. So a gap is reported late, and once.
type gap struct {
	at   time.Duration // when it is taken for a loss; Never if there is none, or it was reported
	told bool          // it was reported
}

// waits reports whether what comes before its turn waits for it.
func (s *responder) waits() bool { return s.hold.peer || s.qp.routing.Accept }

// watchGap starts the wait for what is missing now, if anything is, and ends that for what has come. moved says that
// something has. After an RNR NAK nothing is missing: the peer repeats all from there on when the time has come.
func (s *responder) watchGap(now time.Duration, moved bool) {
	switch {
	case s.hold.n == 0 || s.hold.peer || s.refused && !s.gap.told:
		s.gap = gap{at: Never}
	case moved || s.gap.at == Never && !s.gap.told:
		s.gap = gap{at: now + s.qp.routing.Patience}
	}
}

// gapStays takes the gap for a loss.
func (s *responder) gapStays() {
	s.gap = gap{at: Never, told: true}
	if s.reply.kind == noReply || s.reply.kind == ackReply {
		s.reply = reply{kind: sequenceReply, psn: s.qp.receiver.epsn}
	}
}

// isMarked reports whether a packet is a WRITE that may be placed before what was sent earlier has come.
func (s *responder) isMarked(p *wire.Packet) bool {
	r := &s.qp.routing
	return r.Accept && p.Opcode == wire.RCRDMAWriteOnly && p.Resv7&r.Mark == r.Mark
}

// placeWhole places a WRITE of one packet before its turn. It reports false where the packet is to be refused, in
// its turn.
func (s *receiver) placeWhole(p *wire.Packet) bool {
	n := len(p.Payload)
	if n > int(s.qp.mtu) || uint32(n) != p.RETH.Length {
		return false
	}
	span, r := s.open(p, verbs.AccessRemoteWrite)
	if r != nil {
		return false
	}
	if n > 0 {
		span.Place(p.Payload)
	}
	span.Release()
	s.qp.work.WriteBytes += uint64(n)
	return true
}

// whole is the turn of a WRITE that was placed before.
func (s *responder) whole(asks bool) *refusal {
	in := &s.qp.receiver
	if in.msg.kind != noMessage {
		return invalidRequest(verbs.ErrMalformed, "%v inside another message", wire.RCRDMAWriteOnly)
	}
	s.qp.work.Writes++
	s.executed(&wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAWriteOnly, PSN: in.epsn, AckReq: asks}})
	return nil
}

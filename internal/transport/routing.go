package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// SetAdaptiveRouting sets how the QP, which is RC, handles a network whose packets overtake one another: see
// verbs.AdaptiveRouting. The caller has filled in the defaults.
func (q *QP) SetAdaptiveRouting(r verbs.AdaptiveRouting) {
	q.routing = r
	if rc, ok := q.service.(*rc); ok && !r.Accept {
		s := &rc.responder
		if s.gapTimer != Never { // no packet waits any more
			s.gapTimedOut()
		}
	}
}

// holdsOutOfOrder reports whether a packet that comes before an earlier one is held. Behind a refusal a peer that
// acknowledges selectively repeats all packets.
func (s *responder) holdsOutOfOrder() bool {
	if s.reorder.peerSACKs {
		return !s.refused
	}
	return s.qp.routing.Accept
}

// setGapTimer sets the timer for the missing packets before the held ones, and stops it when there are none. moved
// says that the expected PSN has moved. A peer that does not acknowledge selectively repeats all packets from a NAK
// on, so a gap is reported late.
func (s *responder) setGapTimer(now time.Duration, moved bool) {
	switch {
	case s.reorder.n == 0 || s.reorder.peerSACKs:
		s.gapTimer = Never
	case moved || s.gapTimer == Never:
		s.gapTimer = now + s.qp.routing.Patience
	}
}

// gapTimedOut takes the gap for a loss, unless a NAK for the same PSN was sent.
func (s *responder) gapTimedOut() {
	s.gapTimer = Never
	if s.flushes != nil { // nothing is missing
		return
	}
	s.outOfOrder(s.qp.receiver.epsn)
}

// isMarked reports whether a packet is a WRITE that may be placed before earlier packets have come.
func (s *responder) isMarked(p *wire.Packet) bool {
	r := &s.qp.routing
	return r.Accept && p.Opcode == wire.RCRDMAWriteOnly && p.Reserved()&r.Mark == r.Mark
}

// placeWriteOnly places a WRITE of one packet before its turn. It reports false if the packet is to be refused, in
// its turn.
func (s *receiver) placeWriteOnly(p *wire.Packet) bool {
	n := len(p.Payload)
	if n > int(s.qp.mtu) || uint32(n) != p.RETH.Length {
		return false
	}
	span, r := s.open(p, verbs.AccessRemoteWrite)
	if r != nil {
		return false
	}
	var err error
	if n > 0 {
		err = span.Place(p.Payload)
	}
	span.Release()
	if err != nil {
		return false
	}
	s.qp.work.WriteBytes += uint64(n)
	return true
}

// executePlaced is the turn of a WRITE that was placed before.
func (s *responder) executePlaced(asks bool) *refusal {
	if s.qp.receiver.msg.kind != noMessage {
		return invalidRequest(verbs.ErrMalformed, "%v inside another message", wire.RCRDMAWriteOnly)
	}
	s.qp.work.wrote()
	s.executed(true, asks)
	return nil
}

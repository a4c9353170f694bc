package hca

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// ports are the UDP ports that the packets of a QP's peer come from: one for requests and one for
// responses, since cards may choose them apart. Another user of the peer's host can send from the peer's
// address, but not from a port that the peer has bound. So a port counts from the first packet that
// makes progress.
//
// A peer may move to another port: a card when its path changes, a program when its socket is a new one.
// Its first packet from there is dropped, and comes again. Then the peer has moved, unless something
// came by another port meanwhile that no peer sends. Somebody who tries PSNs sends such packets, and closes
// this way by them. A UC peer repeats nothing: it has moved when the next packet follows. If it lost many packets
// by the move, none of them fits. Then it has moved when its old port has been silent for ucMoveTime, in
// which packets in order came from one other port.
//
// An adverb that sends from several ports says from which, by a packet that comes from one of those that count.
//
// A CNP may come from any port: it has no PSN, and cards send it by ways of their own. Those of an adverb come
// from where its other packets come from. A card may have identifications such as an adverb's, always 0 above all, but on
// RC it never greets.
type ports struct {
	of     [2]uint16 // requests, responses; 0 as long as none counts
	roams  bool      // the peer may use any
	moves  int
	closed time.Duration // until when it cannot move
	waits  [2]mover
	ucMove ucMove
}

// mover is a packet that was dropped since it came from another port, though it was expected.
type mover struct {
	set       bool
	base, psn wire.PSN
}

// ucMove is a row of packets from another port than a UC peer's, while that was silent.
type ucMove struct {
	port  uint16 // 0: there is none
	psn   wire.PSN
	since time.Duration
}

func portKind(p *wire.Packet) int {
	if p.Opcode.IsRequest() {
		return 0
	}
	return 1
}

// allow reports whether a packet, whose ICRC is right, may come from a port.
func (s *ports) allow(now time.Duration, q *qp, p *wire.Packet, port uint16) bool {
	switch of := s.of[portKind(p)]; {
	case of == port:
		s.ucMove.port = 0
		return true
	case q.t.PeerSends(port):
		return true
	case p.Opcode == wire.CNP:
		return !q.in.isSurelyOurs() || q.typ == verbs.QPTypeRC && !q.t.PeerSaidHello() || port == s.of[0] || s.of == [2]uint16{}
	case of == 0:
		return true
	}
	return s.move(now, q, p, port)
}

// move reports whether q's peer has moved to the port from which a packet came.
func (s *ports) move(now time.Duration, q *qp, p *wire.Packet, port uint16) bool {
	k := portKind(p)
	w := &s.waits[k]
	if q.typ == verbs.QPTypeUC && s.hasMovedUC(now, p.PSN, port) {
		s.moved(k, port)
		return true
	}
	fit, base := q.t.Expect(p)
	switch {
	case fit == transport.Unexpected:
		s.closed, *w = now+portsClosed, mover{}
		return false
	case fit == transport.Ahead || now < s.closed:
		return false
	case !w.set || w.base != base || q.typ == verbs.QPTypeUC && p.PSN != w.psn.Add(1):
		*w = mover{true, base, p.PSN}
		return false
	}
	s.moved(k, port)
	return true
}

func (s *ports) moved(kind int, port uint16) {
	s.waits[kind], s.ucMove = mover{}, ucMove{}
	s.of[kind] = port
	if s.moves++; s.moves > maxMoves {
		s.roams, s.of = true, [2]uint16{}
	}
}

// hasMovedUC takes note of a packet from another port than a UC peer's. It reports whether packets in order have
// come from there for so long that the peer must have moved.
func (s *ports) hasMovedUC(now time.Duration, psn wire.PSN, port uint16) bool {
	if r := &s.ucMove; r.port != port || psn.Diff(r.psn) <= 0 {
		*r = ucMove{port: port, since: now}
	}
	s.ucMove.psn = psn
	return now-s.ucMove.since >= ucMoveTime
}

// progressed takes note that a packet from a port has made progress.
func (s *ports) progressed(p *wire.Packet, port uint16) {
	if k := portKind(p); s.of[k] == 0 && !s.roams {
		s.of[k] = port
	}
}

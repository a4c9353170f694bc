package peer

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// ports are the UDP ports that a peer's packets come from: one for requests and one for responses, since cards may
// choose them apart. Another user of the peer's host can send from the peer's address, but not from a port that the
// peer has bound. So a port counts from the first packet that makes progress.
//
// A peer may move to another port: a card when its path changes, a program when its socket is a new one.
// Its first packet from there is dropped, and comes again. Then the peer has moved, unless a packet
// that no peer sends has come from another port meanwhile. Whoever tries PSNs sends such packets, and closes
// this way by them. A UC peer repeats nothing: it has moved when the next packet follows. If it lost many packets
// by the move, none of them fits. Then it has moved when its old port has been silent for UCMoveTime, in
// which packets in order came from one other port.
//
// An adverb that sends from several ports names them in a packet that comes from a port that counts.
//
// A CNP may come from any port: it has no PSN, and cards send CNPs by ways of their own. The CNPs of an adverb come
// from the port of its other packets. A card may have an adverb's identifications, always 0 above all, but on
// RC a card never says hello.
type ports struct {
	of     [2]uint16 // of requests and of responses; 0 as long as none counts
	roams  bool      // the peer may use any port
	moves  int
	closed time.Duration // until when the peer cannot move
	waits  [2]mover
	ucMove ucMove
}

// mover is a packet that was expected, and was dropped since it came from another port.
type mover struct {
	set       bool
	base, psn wire.PSN
}

// ucMove is a row of packets from another port than a UC peer's, while the UC peer's port was silent.
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

// SendsFrom reports whether the peer sends such packets from a port or, if none counts yet, may send them from any.
func (p *Peer) SendsFrom(packet *wire.Packet, port uint16) bool {
	of := p.ports.of[portKind(packet)]
	if of == port {
		p.ports.ucMove.port = 0
	}
	return of == port || of == 0 && packet.Opcode != wire.CNP
}

// Evidence is the knowledge of a QP's transport about a packet: whether the packet's PSN fits the QP's peer.
type Evidence struct {
	Next       bool     // the peer can be about to send the packet, or repeats it
	Impossible bool     // no peer of the QP sends the packet now
	Base       wire.PSN // moves on whenever a packet of the kind makes progress
	SaidHello  bool     // the peer has said that it is an adverb; only RC peers say so
}

// MovesTo reports whether a packet, whose ICRC is right, may come from a port that SendsFrom does not know: whether the
// peer has moved there.
func (p *Peer) MovesTo(now time.Duration, packet *wire.Packet, port uint16, e Evidence) bool {
	s := &p.ports
	if packet.Opcode == wire.CNP {
		return !p.IsSurelyAdverb() || !p.uc && !e.SaidHello || port == s.of[0] || s.of == [2]uint16{}
	}
	k := portKind(packet)
	w := &s.waits[k]
	if p.uc && s.hasMovedUC(now, packet.PSN, port) {
		s.moved(k, port)
		return true
	}
	switch {
	case e.Impossible:
		s.closed, *w = now+MoveBan, mover{}
		return false
	case !e.Next || now < s.closed:
		return false
	case !w.set || w.base != e.Base || p.uc && packet.PSN != w.psn.Add(1):
		*w = mover{true, e.Base, packet.PSN}
		return false
	}
	s.moved(k, port)
	return true
}

func (s *ports) moved(kind int, port uint16) {
	s.waits[kind], s.ucMove = mover{}, ucMove{}
	s.of[kind] = port
	if s.moves++; s.moves > MaxMoves {
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
	return now-s.ucMove.since >= UCMoveTime
}

// progressed takes note that a packet from a port has made progress.
func (s *ports) progressed(p *wire.Packet, port uint16) {
	if k := portKind(p); s.of[k] == 0 && !s.roams {
		s.of[k] = port
	}
}

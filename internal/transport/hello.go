package transport

import (
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// handleHello takes a peer's hello, which says that the peer understands selective acknowledgements. A hello is
// trusted as much as a request with its PSN: a stranger, who does not know the PSNs, cannot make us answer so.
func (s *responder) handleHello(p *wire.Packet) {
	d := p.PSN.Diff(s.qp.receiver.epsn)
	if h, ok := wire.DecodeHello(p.Payload); ok && !s.qp.cfg.Standard && h.Version >= helloSACK && d > -repeatedPSNs && d < windowPSNs {
		s.reorder.peerSACKs, s.reorder.peerPiggybacks = true, h.Version >= helloPiggyback
		if s.peerPorts = nil; h.Ports[0] != 0 {
			s.peerPorts = &h.Ports
		}
		if s.reorder.n > 0 { // held for adaptive routing; no NAK will tell of the gap now
			s.sackDue(s.qp.receiver.epsn.Add(-1), false)
		}
		return
	}
	s.qp.counters.Unexpected++
}

// The versions of the hello. Each adds to the one before.
const (
	helloSACK      = 1 // selective acknowledgements
	helloPiggyback = 2 // piggybacked acknowledgements
)

// helloState is the exchange of capabilities with a peer that is an adverb too. Its packet, the hello, is our own.
type helloState struct {
	peerIsOurs bool // the peer is an adverb, as far as the device knows
	due        bool
	sent       uint8 // how many hellos
}

// PeerIsOurs says that the peer of an RC QP is an adverb, as far as its packets show. A hello then tells the peer
// that it may hold packets that come out of order, and acknowledge them selectively. Other devices would drop a
// hello.
func (q *QP) PeerIsOurs() {
	if r, ok := q.service.(*rc); ok && !r.hello.peerIsOurs && !q.cfg.Standard && q.attr.State >= verbs.QPStateRTR && q.attr.State != verbs.QPStateErr {
		r.hello.start()
	}
}

// PeerSaidHello reports whether an RC QP's peer has sent a hello. Only adverbs send one.
func (q *QP) PeerSaidHello() bool {
	r, ok := q.service.(*rc)
	return ok && r.peerSACKs()
}

// peerSACKs reports whether the peer is an adverb: it acknowledges selectively, and answers a READ for any part of an
// earlier READ.
func (r *rc) peerSACKs() bool { return r.responder.reorder.peerSACKs }

// start makes a hello due.
func (g *helloState) start() { *g = helloState{peerIsOurs: true, due: true} }

// reset forgets that the peer is like us.
func (g *helloState) reset() { *g = helloState{} }

// noteSent notes that a hello leaves.
func (g *helloState) noteSent() {
	g.due = false
	g.sent++
}

// portsChanged makes a hello due, with the new ports.
func (g *helloState) portsChanged() { g.due = g.due || g.peerIsOurs }

// sendAgain makes a hello due once more: the peer answers as one that has not received the hello.
func (g *helloState) sendAgain() { g.due = g.due || g.peerIsOurs && g.sent < maxHellos }

// helloMessage is the content of a hello.
func (r *rc) helloMessage() wire.Hello {
	h := wire.Hello{Version: helloPiggyback}
	if r.qp.cfg.Shown {
		h.Version = helloSACK
	}
	if r.multipath != nil {
		h.Ports = r.multipath.ports
	}
	return h
}

// sendHello writes a hello into buf.
func (r *rc) sendHello(buf []byte) int {
	r.hello.noteSent()
	if r.multipath != nil {
		r.multipath.toldAt = r.recovery.Max()
	}
	p := r.qp.header(wire.RCHello, psn(r.recovery.Max()))
	n := len(p.AppendHeaders(buf[:0]))
	n = len(r.helloMessage().AppendTo(buf[:n]))
	return finish(buf, n, 0)
}

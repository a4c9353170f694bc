package transport

import (
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// hello takes a peer's word that it understands acknowledged ranges. It counts as much as a request with its
// PSN: a stranger, who does not know the PSNs, cannot make us answer so.
func (s *responder) handleHello(p *wire.Packet) {
	d := p.PSN.Diff(s.qp.receiver.epsn)
	if h, ok := wire.DecodeHello(p.Payload); ok && !s.qp.cfg.Standard && h.Version >= helloSACK && d > -repeatedPSNs && d < windowPSNs {
		s.reorder.peerSACKs, s.reorder.peerPiggybacks = true, h.Version >= helloPiggyback
		if s.peerPorts = nil; h.Ports[0] != 0 {
			s.peerPorts = &h.Ports
		}
		if s.reorder.n > 0 { // by adaptive routing; no NAK will tell of the gap now
			s.sackDue(s.qp.receiver.epsn.Add(-1), false)
		}
		return
	}
	s.qp.counters.Unexpected++
}

// The versions of what we say to each other.
const (
	helloSACK      = 1 // acknowledged ranges
	helloPiggyback = 2 // and messages that carry an acknowledgement
)

// greeting tells a peer that is like us what we understand.
type helloState struct {
	peerIsOurs bool // the peer is like us, as far as the device knows
	due        bool
	sent       uint8 // how often
}

// PeerIsOurs says that the peer of an RC QP is a device of this kind, as far as one can tell by what it sends.
// It is then told that it may hold what comes out of order, and say what it has. To others that would be a
// packet that they drop.
func (q *QP) PeerIsOurs() {
	if r, ok := q.service.(*rc); ok && !r.hello.peerIsOurs && !q.cfg.Standard && q.attr.State >= verbs.QPStateRTR && q.attr.State != verbs.QPStateErr {
		r.hello.start()
	}
}

// PeerSaidHello reports whether an RC QP's peer has said that it is like us. Others never say so.
func (q *QP) PeerSaidHello() bool {
	r, ok := q.service.(*rc)
	return ok && r.peerSACKs()
}

// peerSACKs reports whether the peer is like us, and so answers READs for any part of one before.
func (r *rc) peerSACKs() bool { return r.responder.reorder.peerSACKs }

// start has the peer greeted.
func (g *helloState) start() { *g = helloState{peerIsOurs: true, due: true} }

// reset forgets that the peer is like us.
func (g *helloState) reset() { *g = helloState{} }

// count notes that a hello leaves.
func (g *helloState) noteSent() {
	g.due = false
	g.sent++
}

// portsChanged has the peer told of other ports.
func (g *helloState) portsChanged() { g.due = g.due || g.peerIsOurs }

// sendAgain tells the peer once more: it answers as one that does not know.
func (g *helloState) sendAgain() { g.due = g.due || g.peerIsOurs && g.sent < maxHellos }

// hello is what the peer is told.
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

// greet writes a hello into buf.
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

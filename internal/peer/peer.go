// Package peer recognizes the packets of a connected QP's peer. It verifies their ICRC, though a UDP socket hides the
// IPv4 identification that the ICRC covers. It knows the UDP ports that the peer sends from. And it finds out whether
// the peer is an adverb as well.
//
// The package has no lock: the QP's lock guards a Peer.
package peer

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Peer is a connected QP's knowledge of its peer as a sender of packets.
type Peer struct {
	uc   bool           // the QP's transport service is UC, else RC
	ib   *ibPeer        // on InfiniBand, or nil
	from netip.AddrPort // the source of the latest packet
	flow wire.Flow      // from that source to the QP

	ports  ports
	sender sender
	next   sender // the value of sender once the packet that was verified last makes progress
}

// New returns the Peer of a QP of a type, from which no packet has come.
func New(typ verbs.QPType) Peer { return Peer{uc: typ == verbs.QPTypeUC} }

// NewIB is New for a QP on InfiniBand.
func NewIB(typ verbs.QPType) Peer { return Peer{uc: typ == verbs.QPTypeUC, ib: new(ibPeer)} }

// Verify verifies the ICRC of a packet, which is a segment of a datagram. The ICRC covers the IPv4 identification and DF:
// as the link saw them or, where the link could not, as the sender must have set them. local is the packet's
// destination. Of a FLUSH it also takes the ICRC that Linux gives it, and puts the right one in its place.
func (p *Peer) Verify(local netip.Addr, d *link.Datagram, segment int, packet []byte) bool {
	return p.verify(local, d, segment, packet) ||
		p.MayBeLinux() && wire.UnsealLinuxFlush(packet) && p.verify(local, d, segment, packet)
}

func (p *Peer) verify(local netip.Addr, d *link.Datagram, segment int, packet []byte) bool {
	if d.Src != p.from || p.ib != nil {
		if p.ib != nil {
			return p.verifyIB(d, packet)
		}
		p.from = d.Src
		p.flow = wire.NewFlow(d.Src, netip.AddrPortFrom(local, link.PortOf(local)))
	}
	if label := p.flow.Label(); label != 0 {
		p.next = p.sender.labelled(d.FlowLabel == label)
		return p.flow.Verify(0, packet)
	}
	p.next = p.sender
	if d.IDKnown {
		return p.flow.Verify(d.ID+uint16(segment), packet)
	}
	if p.sender.kind <= Adverb && p.flow.Verify(uint16(segment), packet) {
		p.next = p.sender.adverb(ident{uint16(segment), true}) // all 32 bits
		return true
	}
	id, df, ok := p.flow.SolveID(packet)
	if ok {
		p.next, ok = p.sender.judge(ident{id, df})
	}
	return ok
}

// VerifyAny is Verify for a sender of whom nothing is known, as the senders of datagrams are.
func VerifyAny(f *wire.Flow, d *link.Datagram, segment int, packet []byte) bool {
	if d.IDKnown {
		return f.Verify(d.ID+uint16(segment), packet)
	}
	if f.Verify(uint16(segment), packet) {
		return true
	}
	_, _, ok := f.SolveID(packet)
	return ok
}

// Kind returns the implementation that the peer seems to have.
func (p *Peer) Kind() Kind { return p.sender.kind }

// IsAdverb reports whether the peer is an adverb as well, as far as its identifications or, over IPv6, its flow labels
// tell.
func (p *Peer) IsAdverb() bool { return p.sender.kind == Adverb }

// MayBeLinux reports whether the peer may be Linux's rdma_rxe: it is not on InfiniBand, and no adverb as far as is known.
func (p *Peer) MayBeLinux() bool { return p.ib == nil && !p.IsAdverb() }

// IsSurelyAdverb is IsAdverb for a caller that is about to send a packet which only an adverb understands. Identifications
// that have begun again a few times come from no counter: Linux's counter passes through the range of adverbs once in
// 65536 packets. Flow labels that change are not right a few times in a row, and a constant one is right once in 2^20
// flows.
func (p *Peer) IsSurelyAdverb() bool { return p.IsAdverb() && p.sender.restarts >= SureRestarts }

// Progressed is called when the packet that was verified last has made progress. The packet's source port, and its
// identification or flow label, count from now on.
func (p *Peer) Progressed(packet *wire.Packet) {
	p.ports.progressed(packet, p.from.Port())
	p.sender = p.next
}

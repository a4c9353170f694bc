package peer

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// ibPeer is what a peer on InfiniBand has besides: the latest packet's destination, and its service level and flow label.
type ibPeer struct {
	to    netip.AddrPort
	label uint32
}

// verifyIB is Verify on InfiniBand, where nothing tells what sends.
func (p *Peer) verifyIB(d *link.Datagram, packet []byte) bool {
	if d.Src != p.from || d.Dst != p.ib.to || d.FlowLabel != p.ib.label {
		p.from, p.ib.to, p.ib.label = d.Src, d.Dst, d.FlowLabel
		p.flow = IBFlow(d)
	}
	p.next = p.sender
	return p.flow.Verify(0, packet)
}

// IBFlow returns the flow of a datagram that came by InfiniBand.
func IBFlow(d *link.Datagram) wire.Flow {
	label, sl := wire.LinkLabel(d.FlowLabel)
	if link.IsLID(d.Src.Addr()) {
		return wire.NewLocalFlow(d.Src.Port(), d.Dst.Port(), sl)
	}
	return wire.NewGlobalFlow(d.Src.Addr().As16(), d.Dst.Addr().As16(), sl, label)
}

package hca

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// inbound is what a connected QP knows of the way by which its peer's packets come.
type inbound struct {
	from netip.AddrPort // of the latest packet
	flow wire.Flow      // from there to us
	ids  ids
}

// verify verifies a packet's ICRC, which covers the IPv4 identification and DF: as the link saw them
// or, where it could not, as the sender must have set them. local is the address that it came to.
func (in *inbound) verify(local netip.Addr, d *link.Datagram, segment int, payload []byte) bool {
	if d.Src != in.from {
		in.from = d.Src
		in.flow = wire.NewFlow(d.Src, netip.AddrPortFrom(local, link.Port))
	}
	if d.IDKnown {
		return in.flow.Verify(d.ID+uint16(segment), payload)
	}
	if in.ids.kind <= idsOurs && in.flow.Verify(uint16(segment), payload) {
		return in.ids.accept(idsOurs, ident{uint16(segment), true}) // all 32 bits
	}
	id, df, ok := in.flow.SolveID(payload)
	return ok && in.ids.plausible(ident{id, df})
}

// verifyAny is verify for a sender of whom nothing is known, as those of datagrams are.
func verifyAny(f *wire.Flow, d *link.Datagram, segment int, payload []byte) bool {
	if d.IDKnown {
		return f.Verify(d.ID+uint16(segment), payload)
	}
	if f.Verify(uint16(segment), payload) {
		return true
	}
	_, _, ok := f.SolveID(payload)
	return ok
}

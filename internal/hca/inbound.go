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

	ports ports
	ids   ids
	next  ids // what ids becomes if the packet that was verified last makes progress
}

// verify verifies a packet's ICRC, which covers the IPv4 identification and DF: as the link saw them
// or, where it could not, as the sender must have set them. local is the address that it came to.
func (in *inbound) verify(local netip.Addr, d *link.Datagram, segment int, payload []byte) bool {
	if d.Src != in.from {
		in.from = d.Src
		in.flow = wire.NewFlow(d.Src, netip.AddrPortFrom(local, link.Port))
	}
	if label := in.flow.Label(); label != 0 {
		in.next = in.ids.labelled(d.FlowLabel == label)
		return in.flow.Verify(0, payload)
	}
	in.next = in.ids
	if d.IDKnown {
		return in.flow.Verify(d.ID+uint16(segment), payload)
	}
	if in.ids.kind <= idsOurs && in.flow.Verify(uint16(segment), payload) {
		in.next = in.ids.ours(ident{uint16(segment), true}) // all 32 bits
		return true
	}
	id, df, ok := in.flow.SolveID(payload)
	if ok {
		in.next, ok = in.ids.judge(ident{id, df})
	}
	return ok
}

// isOurs reports whether the peer is an adverb as well, as far as its identifications tell or, over IPv6,
// its flow label.
func (in *inbound) isOurs() bool { return in.ids.kind == idsOurs }

// isSurelyOurs is isOurs for a sender of what only an adverb understands. A count that has begun
// again a few times is no count: Linux's passes through the range of ours once in 65536 packets. Labels
// that change are not right a few times in a row, and one that stays is right once in 2^20 flows.
func (in *inbound) isSurelyOurs() bool { return in.isOurs() && in.ids.restarts >= sureRestarts }

// progressed is called when the packet that was verified last has made progress. What it tells of its
// sender is believed from now on.
func (in *inbound) progressed(p *wire.Packet) {
	in.ports.progressed(p, in.from.Port())
	in.ids = in.next
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

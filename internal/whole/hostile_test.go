package whole

import (
	"math/rand/v2"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// forge sends a node something on behalf of a hostile station: noise, a message to QP1, or a packet of a
// connection. The station knows all but the PSNs, and sometimes more: see station_test.go.
func (w *world) forge(r *rand.Rand) {
	n := w.nodes[r.IntN(len(w.nodes))]
	if !n.awake() {
		return
	}
	from := netip.AddrPortFrom(w.nodes[r.IntN(len(w.nodes))].addr, uint16(0xc000+r.IntN(4)))
	to := netip.AddrPortFrom(n.addr, link.Port)
	var b []byte
	if d, ok := n.replayed(r); ok && r.IntN(3) == 0 {
		w.totals.Forged++
		w.logf("replayed packet to %v: %x", n, d.Payload[:min(len(d.Payload), 24)])
		n.forgedArrives(d)
		return
	}
	switch k := r.IntN(6); {
	case k == 4 && n.agent != nil:
		var addr netip.Addr
		b, addr = n.forgedCM(r)
		from = netip.AddrPortFrom(addr, from.Port())
	case k == 5 && n.ud != nil:
		b = n.forgedUD(r)
	case k == 0:
		b = content(r.IntN(200), r.Uint64())
	case k == 1:
		b = forgedMAD(r)
	default:
		var near []*end
		for _, e := range n.ends {
			if e.up && !e.closed && e.peer() != nil {
				near = append(near, e)
			}
		}
		if len(near) == 0 {
			return
		}
		e := near[r.IntN(len(near))]
		if e.c.typ == verbs.QPTypeUC {
			e.forgeUC(r)
			return
		}
		from = netip.AddrPortFrom(e.peer().n.addr, from.Port())
		b = e.forgedPacket(r)
	}
	if b == nil {
		return
	}
	f := wire.NewFlow(from, to)
	if len(b) > wire.BTHSize+wire.ICRCSize && r.IntN(10) > 0 {
		f.Seal(0, b)
	}
	w.totals.Forged++
	w.logf("forged packet to %v: %x", n, b[:min(len(b), 24)])
	n.forgedArrives(link.Datagram{Src: from, Dst: to, Payload: b, FlowLabel: f.Label(), IDKnown: w.plan.Visible && n.addr.Is4()})
}

// forgedArrives lets a datagram arrive at a node.
func (n *node) forgedArrives(d link.Datagram) {
	n.forged = append(n.forged, d)
	if !n.gathers {
		n.hca.Drive(false)
	}
}

var forgedOps = []wire.Opcode{
	wire.RCSendOnly, wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendOnlyWithImm, wire.RCSendOnlyWithInvalidate,
	wire.RCRDMAWriteOnly, wire.RCRDMAWriteFirst, wire.RCRDMAWriteMiddle, wire.RCRDMAWriteLast, wire.RCRDMAWriteOnlyWithImm,
	wire.RCRDMAReadRequest, wire.RCCompareSwap, wire.RCFetchAdd,
	wire.RCAcknowledge, wire.RCAcknowledge, wire.RCRDMAReadResponseOnly, wire.RCRDMAReadResponseFirst, wire.RCAtomicAcknowledge, wire.CNP,
}

// forgedPacket makes a packet to e that differs from its peer's only in the PSN.
func (e *end) forgedPacket(r *rand.Rand) []byte {
	attr, _, err := e.qp.Query()
	e.n.w.must(err)
	p := wire.Packet{Payload: content(r.IntN(e.c.mtu.Bytes()+1), r.Uint64())}
	p.BTH = wire.BTH{Opcode: forgedOps[r.IntN(len(forgedOps))], MigReq: true, PKey: wire.DefaultPKey, DestQP: uint32(e.qp.QPN()), AckReq: r.IntN(2) == 0}
	base := wire.PSN(attr.RQPSN)
	if !p.Opcode.IsRequest() {
		base = wire.PSN(attr.SQPSN)
	}
	d := 5000 + r.IntN(1<<22)
	if r.IntN(2) == 0 {
		d = -100_000 - r.IntN(1<<22)
	}
	if e.c.secured { // any PSN
		d = r.IntN(64) - 32
		if r.IntN(4) == 0 {
			p.Opcode = wire.Secured
		}
	}
	p.PSN = base.Add(d)
	target := e.dst.mr.Remote(0)
	if p.Opcode.IsAtomic() || p.Opcode == wire.RCCompareSwap || p.Opcode == wire.RCFetchAdd {
		target = e.n.words.r.mr.Remote(0)
	}
	p.RETH = wire.RETH{VA: target.VA, RKey: uint32(target.RKey), Length: uint32(len(p.Payload))}
	p.AtomicETH = wire.AtomicETH{VA: target.VA, RKey: uint32(target.RKey), SwapAdd: 1 << 40}
	p.AETH = wire.AETH{Syndrome: wire.Syndrome(r.IntN(256)), MSN: uint32(r.IntN(1 << 24))}
	if !p.Opcode.HasPayload() {
		p.Payload = nil
	}
	p.PadCount = wire.PadCount(len(p.Payload))
	return p.AppendTo(nil)
}

// forgedMAD makes a message of the connection manager.
func forgedMAD(r *rand.Rand) []byte {
	attrs := []wire.CMAttr{wire.CMREQ, wire.CMMRA, wire.CMREJ, wire.CMREP, wire.CMRTU, wire.CMDREQ, wire.CMDREP, wire.CMSIDRREQ, wire.CMSIDRREP}
	h := wire.NewCMHeader(attrs[r.IntN(len(attrs))], r.Uint64())
	mad := make([]byte, 0, wire.MADSize)
	mad = h.AppendTo(mad)
	mad = append(mad, content(wire.MADSize-len(mad), r.Uint64())...)
	return toQP1(r, mad)
}

package whole

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// A UC packet needs no PSN to begin a message, so who sends from the peer's address and port can make the peer's
// messages: docs/SECURITY.md. A message that begins properly may arrive, whole and once, and its WRITEs change the
// memory that they have a key for. A message that does not begin properly, or comes from elsewhere, must change
// nothing. A port counts once the peer has made progress from that port. The PSNs of forged packets are far from the
// peer's PSNs, for packets with the peer's PSNs would continue the peer's messages.

// forgery is a message of the hostile station. A forgery that arrives takes a receive.
type forgery struct {
	op
	came bool
}

// forgeries are the messages that an end of UC may get besides its peer's messages.
type forgeries struct {
	messages []*forgery
	writes   []*op    // the part of each WRITE that may be placed
	ports    []uint16 // that the peer was heard to send from
	moored   bool     // the peer has made progress for certain
}

// flaw is the defect of a forged message.
type flaw uint8

const (
	flawNone      flaw = iota
	flawCut            // the message's end is missing
	flawHeadless       // the message's beginning is missing
	flawLong           // the message is longer than the receive
	flawKey            // nobody has given that key, or not for so much
	flawSize           // the RETH says another length
	flawShort          // a packet is shorter than the path MTU
	flawOpcode         // another service's, or nobody's
	flawICRC           // the ICRC is wrong
	flawElsewhere      // the message comes from another address
	flawPort           // the message comes from another port
	flawCount
)

// forgeUC sends an end of UC the packets of a message.
func (e *end) forgeUC(r *rand.Rand) {
	w, p := e.n.w, e.peer()
	f := flaw(r.IntN(2 * int(flawCount)))
	if f >= flawCount {
		f = flawNone
	}
	mtu := e.c.mtu.Bytes()
	o := op{wr: verbs.SendWR{Op: ucOps[r.IntN(len(ucOps))], Imm: r.Uint32()}, where: "forged", srcAt: -1, target: -1}
	o.length = 8 + r.IntN(min(3*mtu, dstSize-8))
	if f == flawLong {
		o.length = recvSize + 1 + r.IntN(mtu)
		o.wr.Op = verbs.OpSend
	}
	o.data = content(o.length, r.Uint64()|1<<63)
	reth := wire.RETH{Length: uint32(o.length)}
	if o.writes() {
		o.area, o.off = p.area, r.IntN(dstSize-o.length+1)
	}
	target := e.dst.mr.Remote(o.off)
	switch {
	case f == flawKey && !o.writes(), f == flawSize && !o.writes(), f == flawShort && o.length <= mtu:
		f = flawNone
	case f == flawKey:
		switch r.IntN(4) {
		case 0:
			target = e.src.mr.Remote(0) // the peer may only read this region
		case 1:
			target = e.recvs.r.mr.Remote(0) // no peer may use this region
		case 2:
			target = e.dst.mr.Remote(dstSize - o.length + 1 + r.IntN(o.length)) // beyond the region's end
		default:
			target.RKey ^= 1 << r.IntN(8)
		}
	case f == flawSize:
		reth.Length = uint32(r.IntN(dstSize - o.off + 1))
		if reth.Length == uint32(o.length) {
			f = flawNone
		}
	}
	reth.VA, reth.RKey = target.VA, uint32(target.RKey)
	parts := slices.Collect(slices.Chunk(o.data, mtu))
	first, end, short := 0, len(parts), len(parts)
	switch f {
	case flawCut:
		end = r.IntN(len(parts))
	case flawHeadless:
		first = 1
	case flawShort:
		short = r.IntN(len(parts) - 1)
		parts[short] = parts[short][:mtu-1-r.IntN(mtu-1)]
	}
	from := netip.AddrPortFrom(p.n.addr, uint16(0xc000+r.IntN(4)))
	switch ports := e.forged.ports; {
	case f == flawElsewhere:
		from = netip.AddrPortFrom(w.nodes[r.IntN(len(w.nodes))].addr, from.Port())
		if from.Addr() == p.n.addr {
			from = netip.AddrPortFrom(stranger(e.n.addr), from.Port())
		}
	case f == flawPort:
		for slices.Contains(ports, from.Port()) {
			from = netip.AddrPortFrom(from.Addr(), uint16(1024+r.IntN(1<<16-1024)))
		}
	case len(ports) > 0:
		from = netip.AddrPortFrom(from.Addr(), ports[r.IntN(len(ports))])
	}
	nothing := false // may change
	switch f {
	case flawHeadless, flawKey, flawOpcode, flawElsewhere:
		nothing = true
	case flawICRC:
		nothing = w.plan.Visible || w.plan.IPv6 // else one in 2^16 may pass
	case flawPort:
		nothing = e.forged.moored
	}
	if !nothing && !e.c.secured {
		if o.takesRecv() && (f == flawNone || f == flawICRC || f == flawPort) {
			e.forged.messages = append(e.forged.messages, &forgery{op: o})
		}
		if o.writes() {
			one := o
			most := min(len(o.data), int(reth.Length), mtu*min(end, short))
			one.data = o.data[:most]
			e.forged.writes = append(e.forged.writes, &one)
		}
	}
	attr, _, err := e.qp.Query()
	w.must(err)
	d := 5000 + r.IntN(1<<22)
	if r.IntN(2) == 0 {
		d = -100_000 - r.IntN(1<<22)
	}
	w.logf("forged message to %v: %v, %d bytes to %d, flaw %d, from %v, may change nothing: %v", e, o.wr.Op, o.length, o.off, f, from, nothing)
	to := netip.AddrPortFrom(e.n.addr, link.Port)
	for i := first; i < end; i++ {
		k := wire.Packet{Payload: parts[i]}
		k.BTH = wire.BTH{Opcode: o.ucOpcode(i, len(parts)), Solicited: r.IntN(2) == 0, MigReq: true, PKey: wire.DefaultPKey,
			DestQP: uint32(e.qp.QPN()), AckReq: r.IntN(2) == 0, PSN: wire.PSN(attr.RQPSN).Add(d + i), PadCount: wire.PadCount(len(parts[i]))}
		k.RETH, k.Imm = reth, o.wr.Imm
		b := k.AppendTo(nil)
		if f == flawOpcode {
			b[0] ^= 0x20 << r.IntN(3)
		}
		flow := wire.NewFlow(from, to)
		if f != flawICRC {
			flow.Seal(0, b)
		}
		w.totals.Forged++
		e.n.forgedArrives(link.Datagram{Src: from, Dst: to, Payload: b, FlowLabel: flow.Label(), IDKnown: w.plan.Visible && e.n.addr.Is4()})
	}
}

// stranger returns an address of an address's kind that none of the network's nodes has.
func stranger(a netip.Addr) netip.Addr {
	if a.Is6() {
		return netip.AddrFrom16([16]byte{0: 0xfd, 14: 9})
	}
	return netip.AddrFrom4([4]byte{10, 0, 9, 9})
}

// ucOpcode is the opcode of packet i of n.
func (o *op) ucOpcode(i, n int) wire.Opcode {
	imm := o.wr.Op == verbs.OpSendWithImm || o.wr.Op == verbs.OpRDMAWriteWithImm
	code := wire.UCSendFirst
	if o.writes() {
		code = wire.UCRDMAWriteFirst
	}
	switch {
	case n == 1 && o.writes():
		code = wire.UCRDMAWriteOnly
	case n == 1:
		code = wire.UCSendOnly
	case i == 0:
		return code
	case i < n-1:
		return code + 1
	default:
		code += 2
	}
	if imm {
		code++
	}
	return code
}

// take reports whether a receive of e got a forged message, which may come once.
func (x *forgeries) take(e *end, wc *verbs.WC, got []byte) (data []byte, ok bool) {
	for _, f := range x.messages {
		want, data := f.receipt(wc.ID, e, e.peer())
		if *wc != want || !bytes.Equal(got[:len(data)], data) {
			continue
		}
		if f.came {
			e.n.w.failf("%v: a forged message comes twice: %+v", e, *wc)
		}
		f.came = true
		e.n.w.totals.Injected++
		return data, true
	}
	return nil, false
}

// hears takes note of the port from which e's peer sends.
func (x *forgeries) hears(port uint16) {
	if !slices.Contains(x.ports, port) {
		x.ports = append(x.ports, port)
	}
}

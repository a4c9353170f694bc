package whole

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// A hostile station may also know the communication IDs of connections, and the QPNs of UD. Who knows all numbers
// of a connection and sends from its peer's address is the peer, and can end it: docs/SECURITY.md. Such a connection
// is exposed. With one of the numbers wrong, or from another address, nothing happens to it. UD takes datagrams from
// anybody who has its Q_Key: they arrive as they were sent, or not at all.

// forgedCM makes a message to the node's connection manager about one of its connections, and says from where.
func (n *node) forgedCM(r *rand.Rand) (b []byte, from netip.Addr) {
	var list []*end
	for _, e := range n.ends {
		if e.cm != nil && e.up && e.c.phase == running && e.cm.State() == cm.StateEstablished {
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		return nil, from
	}
	e := list[r.IntN(len(list))]
	local, remote, qpn := e.cm.RemoteID(), e.cm.ID(), e.cm.QPN()
	from = e.peer().n.addr
	attrs := []wire.CMAttr{wire.CMDREQ, wire.CMDREQ, wire.CMREJ, wire.CMREJ, wire.CMMRA, wire.CMREP, wire.CMRTU, wire.CMDREP, wire.CMLAP}
	attr := attrs[r.IntN(len(attrs))]
	exact := false
	switch r.IntN(8) {
	case 0:
		exact = attr == wire.CMDREQ || attr == wire.CMREJ
	case 1, 2:
		local ^= 1 << r.IntN(32)
	case 3, 4:
		remote ^= 1 << r.IntN(32)
	case 5:
		from = stranger(n.addr)
	default:
		qpn ^= 1 << r.IntN(24)
		exact = attr == wire.CMREJ // which names none
	}
	if exact {
		e.c.exposed, e.c.broken = true, true
	}
	h := wire.NewCMHeader(attr, r.Uint64())
	mad := h.AppendTo(nil)
	switch attr {
	case wire.CMDREQ:
		m := wire.DREQ{LocalCommID: local, RemoteCommID: remote, RemoteQPN: qpn}
		mad = m.AppendTo(mad)
	case wire.CMDREP:
		m := wire.DREP{LocalCommID: local, RemoteCommID: remote}
		mad = m.AppendTo(mad)
	case wire.CMREJ:
		m := wire.REJ{LocalCommID: local, RemoteCommID: remote, Message: uint8(r.IntN(4)), Reason: wire.RejReason(1 + r.IntN(30))}
		mad = m.AppendTo(mad)
	case wire.CMMRA:
		m := wire.MRA{LocalCommID: local, RemoteCommID: remote, Message: uint8(r.IntN(4)), ServiceTimeout: uint8(r.IntN(32))}
		mad = m.AppendTo(mad)
	case wire.CMREP:
		m := wire.REP{LocalCommID: local, RemoteCommID: remote, LocalQPN: qpn}
		mad = m.AppendTo(mad)
	case wire.CMRTU:
		m := wire.RTU{LocalCommID: local, RemoteCommID: remote}
		mad = m.AppendTo(mad)
	case wire.CMLAP:
		m := wire.LAP{LocalCommID: local, RemoteCommID: remote, RemoteQPN: qpn}
		mad = m.AppendTo(mad)
	}
	n.w.totals.Insider++
	n.w.logf("forged %v to %v, exact: %v", attr, e, exact)
	return toQP1(r, mad), from
}

// toQP1 makes the packet of a MAD.
func toQP1(r *rand.Rand, mad []byte) []byte {
	p := wire.Packet{Payload: mad}
	p.BTH = wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSIQPN, PSN: wire.PSN(r.IntN(1 << 24))}
	p.DETH = wire.DETH{QKey: wire.GSIQKey, SrcQP: wire.GSIQPN}
	return p.AppendTo(nil)
}

// checkDisconnect checks that somebody has ended a connection whose end hears so.
func (e *end) checkDisconnect(t cm.EventType) {
	c, p := e.c, e.peer()
	if t != cm.EventDisconnected || c.phase != running || c.exposed || p == nil || p.closed || p.parted {
		return
	}
	e.n.w.failf("%v: disconnected, and neither its peer nor anybody who knows all its numbers has done so", e)
}

const forgedDatagram = 1 << 63 // in the numbers that tell datagrams apart

// forgedUD makes a datagram to the node's UD QP, with the right Q_Key or a wrong one.
func (n *node) forgedUD(r *rand.Rand) []byte {
	w := n.w
	d := &datagram{to: n, life: n.life, never: r.IntN(3) == 0, imm: r.Uint32(), withImm: r.IntN(2) == 0}
	d.data = content(8+r.IntN(200), r.Uint64())
	binary.BigEndian.PutUint64(d.data, forgedDatagram|uint64(len(w.forgedUD)))
	w.forgedUD = append(w.forgedUD, d)
	p := wire.Packet{Payload: d.data}
	p.BTH = wire.BTH{Opcode: wire.UDSendOnly, Solicited: d.solicited(), PKey: wire.DefaultPKey, DestQP: uint32(n.ud.qp.QPN()), PSN: wire.PSN(r.IntN(1 << 24)),
		PadCount: wire.PadCount(len(d.data))}
	if d.withImm {
		p.Opcode, p.Imm = wire.UDSendOnlyWithImm, d.imm
	}
	p.DETH = wire.DETH{QKey: udQKey, SrcQP: r.Uint32N(1 << 24)}
	if d.never {
		p.DETH.QKey ^= 1 << r.IntN(32)
	}
	w.totals.Insider++
	return p.AppendTo(nil)
}

// datagram finds the datagram that tells itself to be this one.
func (w *world) datagram(id uint64) *datagram {
	list := w.datagrams
	if id&forgedDatagram != 0 {
		list, id = w.forgedUD, id&^forgedDatagram
	}
	if id >= uint64(len(list)) {
		return nil
	}
	return list[id]
}

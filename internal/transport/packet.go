package transport

import (
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The position of a packet in its message, as index of the tables below.
const (
	posMiddle = 0
	posFirst  = 1
	posLast   = 2
	posOnly   = posFirst | posLast
)

// position returns the position of a run of n packets from packet k on in a message of so many packets.
func position(k, n, packets uint64) int {
	pos := posMiddle
	if k == 0 {
		pos |= posFirst
	}
	if k+n == packets {
		pos |= posLast
	}
	return pos
}

var readOpcodes = [4]wire.Opcode{posMiddle: wire.RCRDMAReadResponseMiddle, posFirst: wire.RCRDMAReadResponseFirst, posLast: wire.RCRDMAReadResponseLast, posOnly: wire.RCRDMAReadResponseOnly}

// dataOpcodes are the opcodes of the packets that have a work request's data.
var dataOpcodes = [...][4]wire.Opcode{
	verbs.OpSend:             {posMiddle: wire.RCSendMiddle, posFirst: wire.RCSendFirst, posLast: wire.RCSendLast, posOnly: wire.RCSendOnly},
	verbs.OpSendWithInv:      {posMiddle: wire.RCSendMiddle, posFirst: wire.RCSendFirst, posLast: wire.RCSendLastWithInvalidate, posOnly: wire.RCSendOnlyWithInvalidate},
	verbs.OpSendWithImm:      {posMiddle: wire.RCSendMiddle, posFirst: wire.RCSendFirst, posLast: wire.RCSendLastWithImm, posOnly: wire.RCSendOnlyWithImm},
	verbs.OpRDMAWrite:        {posMiddle: wire.RCRDMAWriteMiddle, posFirst: wire.RCRDMAWriteFirst, posLast: wire.RCRDMAWriteLast, posOnly: wire.RCRDMAWriteOnly},
	verbs.OpRDMAWriteWithImm: {posMiddle: wire.RCRDMAWriteMiddle, posFirst: wire.RCRDMAWriteFirst, posLast: wire.RCRDMAWriteLastWithImm, posOnly: wire.RCRDMAWriteOnlyWithImm},
}

// ucOpcodes is the difference between the opcodes of UC and of RC.
const ucOpcodes = wire.UCSendFirst - wire.RCSendFirst

// header prepares q.out for a packet to the connected peer.
func (q *QP) header(op wire.Opcode, psn wire.PSN) *wire.Packet {
	p := &q.out
	p.BTH = wire.BTH{} // and then field by field, which the CPU does faster than copying a literal
	p.Opcode, p.MigReq, p.PKey, p.DestQP, p.PSN = op, q.attr.PathMigState == verbs.MigMigrated, wire.DefaultPKey, uint32(q.attr.DestQPN), psn
	return p
}

// dataPacket writes the n packets of a SEND or WRITE from packet k on as one packet to buf, under the header p, whose
// opcode it sets.
func (q *QP) dataPacket(p *wire.Packet, w *sendWQE, k, n uint64, buf []byte) (int, *fault) {
	off := uint32(k) * q.mtu
	p.Opcode = dataOpcodes[w.op][position(k, n, w.packets)]
	if q.cfg.Type == verbs.QPTypeUC {
		p.Opcode += ucOpcodes
	}
	size := min(w.length-off, uint32(n)*q.mtu)
	p.RETH.VA, p.RETH.RKey, p.RETH.Length = w.remote.VA, uint32(w.remote.RKey), w.length
	if w.split {
		p.Opcode = wire.RCRDMAWriteOnly
		p.RETH.VA, p.RETH.Length = w.remote.VA+uint64(off), size
		p.SetReserved(w.mark)
	}
	p.InvalidateRKey = uint32(w.invalidate)
	return q.payload(p, w, off, size, buf)
}

// opcode returns the opcode that a packet has on the wire, for texts.
func (q *QP) opcode(p *wire.Packet) wire.Opcode { return q.cfg.opcodes | p.Opcode }

// headers writes the header p, whose opcode is that of RC or UC, to buf.
func (q *QP) headers(p *wire.Packet, buf []byte) []byte {
	p.Opcode = q.opcode(p)
	return p.AppendHeaders(buf[:0])
}

// requestHeaders completes the header p, whose opcode is set, of a packet of w, and writes it to buf.
func (q *QP) requestHeaders(p *wire.Packet, w *sendWQE, buf []byte) (n int) {
	p.Solicited = p.Opcode.EndsMessage() && w.flags&verbs.SendSolicited != 0 && w.takesRecv()
	p.Imm = w.imm
	return len(q.headers(p, buf))
}

// payload writes the header p and the bytes [off, off+size) of w's message to buf.
func (q *QP) payload(p *wire.Packet, w *sendWQE, off, size uint32, buf []byte) (int, *fault) {
	p.PadCount = wire.PadCount(int(size))
	h := q.requestHeaders(p, w, buf)
	payload := buf[h : h+int(size)]
	if w.inline != nil {
		copy(payload, w.inline[off:])
	} else if err := q.memory.Gather(q.cfg.PD, payload, w.sg, off); err != nil {
		return 0, &fault{verbs.WCLocProtErr, err}
	}
	return finish(buf, h+int(size), p.PadCount), nil
}

// finish zeroes the pad behind n bytes, and returns the datagram's length with the space for the ICRC.
func finish(buf []byte, n int, pad uint8) int {
	clear(buf[n : n+int(pad)])
	return n + int(pad) + wire.ICRCSize
}

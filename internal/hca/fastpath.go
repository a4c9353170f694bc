package hca

// A short SEND between processes of this host most often meets a receive, and nothing else is under way. Such a SEND takes
// the fast path, which goes by a lane without the headers and states that packets need for networks:
//
//  1. PostSend hands SENDs to postFast. transport.QP.SendFast takes one if the QP is calm, and writes its payload
//     into the lane, behind a fastHeader.
//  2. fastIn, at the other end, finds the record. transport.QP.ReceiveFast executes the SEND if it is the expected one.
//  3. The acknowledgement is a record of its own: see sendFastACK. transport.QP.AcknowledgeFast takes it.
//
// A record that the transport does not take is handed to the transport again, as the packet that the record stands for.
// So errors are those of packets.

import (
	"encoding/binary"
	"time"

	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// A fastHeader begins a record of the fast path. Its first byte is no opcode that a packet of a lane has. Its fields, in
// the host's byte order:
//
//	1   fastMark
//	1   flags
//	2   0
//	4   destination QPN
//	4   PSN of the message, or the acknowledged PSN
//	4   immediate data, or the AETH
const (
	fastMark = 0xff
	fastSize = 16

	fastMessage   = 1 << 0 // else it is an acknowledgement
	fastImm       = 1 << 1
	fastSolicited = 1 << 2
)

// putFast writes a header.
func (q *qp) putFast(b []byte, flags byte, psn wire.PSN, last uint32) {
	b[0], b[1], b[2], b[3] = fastMark, flags, 0, 0
	binary.NativeEndian.PutUint32(b[4:], uint32(q.t.DestQPN()))
	binary.NativeEndian.PutUint32(b[8:], uint32(psn))
	binary.NativeEndian.PutUint32(b[12:], last)
}

// fastHeader is the header of a record that has come.
type fastHeader struct {
	flags uint8
	qpn   uint32
	psn   wire.PSN
	last  uint32
}

// decode reads a record that its sender may still write to. Each field is read once.
func (h *fastHeader) decode(b []byte) {
	_ = b[fastSize-1]
	h.flags = b[1]
	h.qpn = binary.NativeEndian.Uint32(b[4:])
	h.psn = wire.PSN(binary.NativeEndian.Uint32(b[8:])) & wire.PSNMask
	h.last = binary.NativeEndian.Uint32(b[12:])
}

// messageFlags returns the flags of a message's header.
func messageFlags(m *transport.Message) byte {
	flags := byte(fastMessage)
	if m.HasImm {
		flags |= fastImm
	}
	if m.Solicited {
		flags |= fastSolicited
	}
	return flags
}

// postFast posts work requests, of which the first is a SEND, by the fast path, up to the first that the fast path does not
// take. It returns how many it has posted. The caller holds q.mu.
func (q *qp) postFast(wrs []verbs.SendWR) (n int) {
	o := q.lane.out
	if o.Broken() || !q.t.SendsFast() {
		return 0
	}
	var m transport.Message
	q.t.KeepMemory(q.keeps().requester)
	o.Lock()
	for n < len(wrs) {
		b := o.Reserve(fastSize + transport.FastMost) // which is more than a Loan takes
		if b == nil {
			break
		}
		size, ok := q.t.SendFast(&wrs[n], b[fastSize:], &m)
		if !ok {
			break
		}
		q.putFast(b, messageFlags(&m), m.PSN, m.Imm)
		if l := q.t.Loan(); l.Packets > 0 {
			q.lane.lend(fastSize, l)
			size += int(l.Len)
		} else {
			o.Commit(fastSize+size, m.Packets)
		}
		q.traffic.fast++
		q.traffic.sendsNear(m.Packets, fastSize+size)
		n++
	}
	if n > 0 {
		o.Publish()
	}
	o.Unlock()
	q.t.ReleaseMemory()
	if n > 0 && !q.t.FastTimerRuns() {
		q.t.StartFastTimer(q.dev.now())
		q.setTimer()
	}
	return n
}

// sendFastACK sends the ACK that is due, if q has nothing else to send. The caller holds q.mu.
func (q *qp) sendFastACK() bool {
	if !q.t.OnlyACK() {
		return false
	}
	o := q.lane.out
	o.Lock()
	defer o.Unlock()
	b := o.Reserve(fastSize)
	if b == nil {
		return false
	}
	psn, a := q.t.TakeACK()
	q.putFast(b, 0, psn, a.Word())
	o.Commit(fastSize, 1)
	o.Publish()
	q.traffic.sendsNear(1, fastSize)
	return true
}

// fastIn is nearIn for a record of the fast path.
func (e *engine) fastIn(now time.Duration, cur *qp, in *shm.In, b []byte) *qp {
	var h fastHeader
	h.decode(b)
	packets, payload := in.Packets(), b[fastSize:]
	l := in.Lent()
	var lent transport.Lent // nil if the payload is in the record
	if l != nil {
		lent, payload = l, l.Payload
	}
	q := e.turnTo(now, cur, h.qpn, in)
	if q == nil {
		return cur
	}
	if !e.admits(q, in) {
		return q
	}
	q.traffic.receivesNear(packets, fastSize+len(payload))
	if packets == 0 || lent != nil && payload == nil { // the sender has taken its memory back
		e.dropNear(dropMalformed, q, in.From())
		return q
	}
	if h.flags&fastMessage == 0 {
		a := wire.AETHOf(h.last)
		if !q.t.AcknowledgeFast(now, h.psn, a) {
			p := e.standsFor(q, wire.RCAcknowledge, h.psn, nil)
			p.AETH = a
			q.t.HandlePacket(q.at(now), p, 0)
		}
		return q
	}
	var m transport.Message // whose fields are stored in their places: a copy would wait for them
	m.PSN, m.Packets, m.Imm = h.psn, packets, h.last
	m.HasImm, m.Solicited = h.flags&fastImm != 0, h.flags&fastSolicited != 0
	if q.t.ReceiveFast(now, &m, payload, lent) {
		return q
	}
	p := e.standsFor(q, wire.RCSendOnly, m.PSN, payload)
	if m.HasImm {
		p.Opcode, p.Imm = wire.RCSendOnlyWithImm, m.Imm
	}
	p.AckReq, p.Solicited = true, m.Solicited
	q.handleNear(now, p, packets, l)
	return q
}

// standsFor makes the packet that a record of the fast path stands for.
func (e *engine) standsFor(q *qp, op wire.Opcode, psn wire.PSN, payload []byte) *wire.Packet {
	p := &e.packet
	*p = wire.Packet{BTH: wire.BTH{Opcode: op, MigReq: true, PKey: wire.DefaultPKey, DestQP: q.num, PSN: psn}, Payload: payload}
	return p
}

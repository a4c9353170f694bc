package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Between processes of one host a payload need not be copied on its way: the peer reads it from memory that the
// requester lends. One such packet then stands for a run of packets, with their PSNs. Its opcode says whether the run
// has the message's first packet, its last, or both. A payload that cannot be lent is copied, and a packet then
// stands for as many as the largest path MTU holds. Repeated packets go one by one, and their payload is copied.

// lending is the state of lending payloads.
type lending struct {
	may  func(*mem.File) bool // reports whether the peer can read the file; nil if it can read none
	loan Loan                 // of the latest packet
}

// Loan says for how many packets a packet stands, and where its payload lies.
type Loan struct {
	File    *mem.File // or nil, if the payload is in the packet
	Off     uint64
	Len     uint32
	Packets uint32 // 0 if the packet stands for itself; the other fields then mean nothing
}

// Lend has the QP lend payloads from files that the peer can read, as may reports. With a nil may the QP lends none.
func (q *QP) Lend(may func(*mem.File) bool) {
	q.lending.may = may
	if r, ok := q.service.(*rc); ok {
		r.endSlowStart()
	}
}

// Loan returns the loan of the packet that Transmit has written. The peer may read the payload until the memory
// region is closed, the connection fails, or the packets are acknowledged.
func (q *QP) Loan() *Loan { return &q.lending.loan }

// lend lends size bytes for a packet that stands for n packets, if the peer can read them.
func (q *QP) lend(l mem.Loan, size uint32, n uint64) bool {
	ok := q.lending.may(l.File) // while the region is there
	l.Release()                 // whoever closes the region takes back its loans
	if !ok {
		return false
	}
	q.lending.loan = Loan{File: l.File, Off: l.Off, Len: size, Packets: uint32(n)}
	return true
}

// lendable returns how many packets of w from packet k on may go as one, with room for so many more packets in
// flight. If it returns 0, the packets go one by one, with their payload.
func (r *requester) lendable(w *sendWQE, k, room uint64) uint64 {
	q, rec := r.qp, &r.rc.recovery
	if q.lending.may == nil {
		return 0
	}
	n := min(w.packets-k, uint64(lendMost/q.mtu), room)
	if !worthLending(n, w.packets, w.length) || w.hasResponse() || rec.Nxt() != rec.Max() || w.inline != nil || w.split || q.rate.IsPaced() || r.lacksCredit(w) {
		return 0
	}
	return n
}

// worthLending reports whether lending the payload of n packets costs less than copying it. Their message has so many
// packets and bytes.
func worthLending(n, packets uint64, length uint32) bool {
	return n >= 2 || n == 1 && packets == 1 && length >= lendLeast
}

// lend writes the header of one packet for n packets of w from packet k on, and lends their payload. It returns 0
// where the packets must go one by one, with their payload.
func (r *requester) lend(w *sendWQE, k, n uint64, buf []byte) int {
	if n == 0 {
		return 0
	}
	q := r.qp
	off := uint32(k) * q.mtu
	size := uint32(min(uint64(w.length-off), n*uint64(q.mtu)))
	if l, ok := q.cfg.PD.Lend(w.sg, off, size); !ok || !q.lend(l, size, n) {
		return 0
	}
	p := q.header(0, psn(r.rc.recovery.Nxt()))
	p.Opcode = dataOpcodes[w.op][position(k, n, w.packets)]
	p.AckReq = r.requestsACK(w, k, n)
	p.RETH = wire.RETH{VA: w.remote.VA, RKey: uint32(w.remote.RKey), Length: w.length}
	p.InvalidateRKey = uint32(w.invalidate)
	return q.requestHeaders(p, w, buf) + wire.ICRCSize
}

// copiedRun returns how many of n packets, whose payload cannot be lent, go as one packet with the payload: 1 at
// least.
func (q *QP) copiedRun(n uint64) uint64 { return max(1, min(n, uint64(maxPacketData/q.mtu))) }

// standsFor takes note that the packet that was written has the payload of n packets.
func (q *QP) standsFor(n uint64) {
	if n > 1 {
		q.lending.loan = Loan{Packets: uint32(n)}
	}
}

// readRun returns how many of the next response packets of the READ e may go as one, or 0.
func (s *responder) readRun(e *response) uint32 {
	q := s.qp
	if q.lending.may == nil || e.kind != readResponse || e.replay || q.rate.IsPaced() {
		return 0
	}
	n := min(e.packets-e.sent, lendMost/q.mtu)
	if q.cfg.Turn > 0 {
		n = min(n, uint32(q.left))
	}
	return n
}

// lend writes the header of one packet for the next n packets of the READ e, and lends their payload. It returns 0
// where it cannot.
func (s *responder) lend(e *response, n uint32, buf []byte) int {
	q := s.qp
	if !worthLending(uint64(n), uint64(e.packets), e.length) {
		return 0
	}
	off := e.sent * q.mtu
	size := min(e.length-off, n*q.mtu)
	if l, ok := q.cfg.PD.LendRemote(e.rkey, q.cfg.QPN, e.va+uint64(off), uint64(size)); !ok || !q.lend(l, size, uint64(n)) {
		return 0
	}
	p := q.header(e.opcode(n), e.psn.Add(int(e.sent)))
	if p.Opcode.Headers()&wire.HeaderAETH != 0 {
		p.AETH = s.ack()
	}
	s.responded(e, n)
	return len(p.AppendHeaders(buf[:0])) + wire.ICRCSize
}

// run is how many packets a packet stands for.
type run struct {
	packets int
	payload Lent // nil if the payload is in the packet
}

// Lent is a payload that the peer lends.
type Lent interface {
	// Taken is called once, when the payload was copied. It reports whether the peer has lent the payload until then.
	Taken() bool
}

// length returns how many packets the run is.
func (r *run) length() int { return max(r.packets, 1) }

// isTaken is called once the payload was copied. It reports whether the copy has the bytes that the peer has sent.
func (r *run) isTaken() bool { return r.payload == nil || r.payload.Taken() }

// place stores the payload in a span.
func (r *run) place(s mem.Span, payload []byte) error {
	if r.payload != nil {
		return s.PlaceShared(payload)
	}
	return s.Place(payload)
}

// begin notes for how many packets the current packet stands. It writes field by field: see QP.header.
func (r *run) begin(packets int, payload Lent) { r.packets, r.payload = packets, payload }

func (r *run) end() { *r = run{} }

// scatter stores the payload of the current packet in a list, from byte off of the list on.
func (q *QP) scatter(pd *mem.PD, sg []verbs.SGE, off uint32, payload []byte) error {
	if q.run.payload != nil {
		return pd.ScatterShared(sg, off, payload)
	}
	return q.memory.Scatter(pd, sg, off, payload)
}

// recalled says that the peer has taken back a loan. The peer has given up.
var recalled = &refusal{silent: true}

// HandleRun is HandlePacket for an RC packet that stands for several packets. payload is nil if it was not lent.
func (q *QP) HandleRun(now time.Duration, p *wire.Packet, packets int, payload Lent) {
	op := p.Opcode
	if q.cfg.Type != verbs.QPTypeRC || packets < 1 || packets > maxWindow || !op.HasPayload() || !op.IsSend() && !op.IsWrite() && !op.IsRead() {
		q.counters.Unexpected++
		return
	}
	q.run.begin(packets, payload)
	q.service.handle(q.notBefore(now), p)
	q.run.end()
}

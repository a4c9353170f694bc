package transport

import (
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// unreliable is the requester of UC and UD: a work request is complete when its last packet is
// sent (IBTA C9-180), so the oldest one is always the one under way.
type unreliable struct {
	qp    *QP
	sent  uint64 // packets of the oldest work request
	route any    // of the packet that transmit wrote
}

// transmit writes the next packet into buf, if there is one.
func (u *unreliable) transmit(buf []byte) int {
	q := u.qp
	for u.ready() {
		w := q.sq.at(q.sq.head)
		if w.local() {
			if f := q.local(w); f != nil {
				u.fail(f)
				return 0
			}
			u.done(w)
			continue
		}
		if q.cfg.Type == verbs.QPTypeUD && w.length > maxPacketData {
			u.done(w) // IBTA C10-93.1.1: nothing is sent, and nothing said
			continue
		}
		if q.spent() {
			return 0
		}
		n, f := u.packet(w, buf)
		if f != nil {
			u.fail(f)
			return 0
		}
		q.spend()
		u.route = w.route
		if u.sent++; u.sent == w.packets {
			u.done(w)
		}
		return n
	}
	return 0
}

// ready reports whether the oldest work request may go on.
func (u *unreliable) ready() bool {
	q := u.qp
	if q.sq.head == q.sq.tail {
		return false
	}
	// While the queue drains, a message that was begun is finished.
	return q.attr.State == verbs.QPStateRTS || q.attr.State == verbs.QPStateSQD && u.sent > 0
}

func (u *unreliable) packet(w *sendWQE, buf []byte) (int, *Fault) {
	q := u.qp
	if q.cfg.Type == verbs.QPTypeUC {
		p := q.header(w.seq + u.sent)
		return q.dataPacket(p, w, u.sent, buf)
	}
	p := q.header(w.seq)
	p.DestQP = uint32(w.destQPN)
	p.AckReq = true // as Linux has it; nobody answers
	p.Opcode = wire.UDSendOnly
	if w.op == verbs.OpSendWithImm {
		p.Opcode = wire.UDSendOnlyWithImm
	}
	p.DETH = wire.DETH{QKey: uint32(q.qkey(w)), SrcQP: uint32(q.cfg.QPN)}
	return q.payload(p, w, 0, w.length, buf)
}

// privilegedQKey is the bit by which a work request asks for its QP's own Q_Key.
const privilegedQKey = 1 << 31

func (q *QP) qkey(w *sendWQE) verbs.QKey {
	if w.qkey&privilegedQKey != 0 {
		return q.attr.QKey
	}
	return w.qkey
}

// done completes the oldest work request.
func (u *unreliable) done(w *sendWQE) {
	q := u.qp
	u.sent = 0
	q.sq.head++
	q.complete(w, verbs.WCSuccess, nil)
	q.reportDrained()
}

// fail completes the oldest work request with an error and takes the send queue, and it alone,
// to the error state. Of a message that was begun the peer never sees the end, and drops it.
func (u *unreliable) fail(f *Fault) {
	q := u.qp
	w := q.sq.at(q.sq.head)
	u.sent = 0
	q.sq.head++
	q.attr.State = verbs.QPStateSQE
	q.complete(w, f.Status, f.Cause)
	q.flushSend()
}

// Route returns what the work request of the latest packet gave as its way: of UD, where each has
// one of its own.
func (q *QP) Route() any { return q.unr.route }

// handleUC takes a packet of an unreliable connection. A message of which a packet is missing, or
// that cannot be placed, is dropped without a word, and its receive serves the next one.
func (q *QP) handleUC(p *wire.Packet) {
	switch q.attr.State {
	case verbs.QPStateRTR, verbs.QPStateRTS, verbs.QPStateSQD, verbs.QPStateSQE:
	default:
		return
	}
	s := &q.res
	s.establish()
	if p.PSN != s.epsn || p.Opcode.StartsMessage() {
		s.dropMessage()
		s.epsn = p.PSN
	}
	r := s.execute(p)
	if r == nil {
		return
	}
	s.epsn = p.PSN.Add(1)
	if w := s.msg.recv; w != nil && r.status == verbs.WCLocProtErr {
		s.reject(p, r) // the receive itself is at fault, and would be for the next message
		return
	}
	if r.rnr {
		q.counters.NoReceive++
	} else {
		q.counters.Unexpected++
	}
	s.dropMessage()
}

// dropMessage forgets the message under way and keeps its receive.
func (s *responder) dropMessage() {
	if s.msg.recv != nil {
		s.spare = s.msg.recv
	}
	s.msg = message{}
}

// HandleDatagram takes a UD packet whose ICRC, destination QPN and P_Key have been checked. grh is
// what stands before the payload in the receive buffer.
func (q *QP) HandleDatagram(p *wire.Packet, grh *[verbs.GRHSize]byte) {
	switch q.attr.State {
	case verbs.QPStateRTR, verbs.QPStateRTS, verbs.QPStateSQD, verbs.QPStateSQE:
	default:
		return
	}
	if p.Opcode.Service() != wire.ServiceUD {
		q.counters.Unexpected++
		return
	}
	if verbs.QKey(p.DETH.QKey) != q.attr.QKey {
		q.counters.QKeyViolations++
		return
	}
	s := &q.res
	w := s.nextRecv()
	if w == nil {
		q.counters.NoReceive++
		return
	}
	n := uint32(len(p.Payload))
	if w.Length < verbs.GRHSize+n {
		// Datagrams come from anybody: one that is too long must not cost a receive.
		s.spare = w
		q.counters.Unexpected++
		return
	}
	f := q.host.ScatterRecv(w, 0, grh[:])
	if f == nil && n > 0 {
		f = q.host.ScatterRecv(w, verbs.GRHSize, p.Payload)
	}
	wc := verbs.WC{ID: w.ID, Op: verbs.WCRecv, QPN: q.cfg.QPN}
	if f != nil {
		wc.Status, wc.Cause = f.Status, f.Cause
		q.attr.State = verbs.QPStateErr
		q.host.CompleteRecv(w, wc, true)
		q.enterError()
		return
	}
	wc.Flags = verbs.WCFlagGRH
	wc.ByteLen = verbs.GRHSize + n
	wc.SrcQPN = verbs.QPN(p.DETH.SrcQP)
	if p.Opcode.HasImm() {
		wc.Flags |= verbs.WCFlagWithImm
		wc.Imm = p.Imm
	}
	q.host.CompleteRecv(w, wc, p.Solicited)
}

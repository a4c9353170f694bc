package transport

import (
	"fmt"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// responder takes the peer's requests: PSN, opcode sequence, access, length, resources, key,
// then execution and acknowledgement.
type responder struct {
	qp   *QP
	epsn wire.PSN // the PSN expected next
	msn  uint32   // messages completed

	// refused is set once a NAK for epsn has been sent: what follows is dropped silently
	// until epsn comes again.
	refused     bool
	established bool // a request has come since RTR

	// answered says that the request before epsn is a READ or an atomic: only its response may bear its PSN.
	answered bool

	// told is the PSN by which a receive was completed last: all that the program may know of
	// the peer's progress. See duplicateRead.
	told wire.PSN

	msg   message
	spare *RecvWQE // UC and UD: the receive of a message that was dropped, for the next one
	reply reply
	queue responses
}

// message is a SEND or WRITE of which the first packet has come and the last has not.
type message struct {
	kind messageKind
	recv *RecvWQE // SEND: where it goes
	off  uint32   // bytes that have come
	va   uint64   // WRITE
	rkey verbs.RKey
	size uint32 // WRITE: bytes announced
}

type messageKind uint8

const (
	noMessage messageKind = iota
	sendMessage
	writeMessage
)

func (s *responder) reset() { *s = responder{qp: s.qp} }

func (s *responder) start() {
	s.epsn = wire.PSN(s.qp.attr.RQPSN)
	s.told = s.epsn.Add(-1)
	s.resize()
}

// resize takes over attributes that Modify changed.
func (s *responder) resize() { s.queue.resize(s.qp.attr.MaxDestRDAtomic) }

// refusal is why a request is not executed.
type refusal struct {
	nak    wire.NAKCode
	rnr    bool
	silent bool           // ends the connection without a NAK
	status verbs.WCStatus // for the receive, if the message has one
	cause  error
	event  verbs.EventType // if it has none
}

// handle takes a request packet.
func (s *responder) handle(p *wire.Packet) {
	q := s.qp
	s.establish()
	switch d := p.PSN.Diff(s.epsn); {
	case d > 0:
		q.counters.OutOfOrder++
		s.outOfOrder(p.PSN)
		return
	case d < 0:
		q.counters.Duplicates++
		s.duplicate(p)
		return
	}
	if r := s.execute(p); r != nil {
		s.reject(p, r)
		return
	}
	s.refused = false
}

// establish tells of the first request, and raises the event if it comes in RTR.
func (s *responder) establish() {
	if s.established {
		return
	}
	s.established = true
	s.qp.host.Established()
	if s.qp.attr.State == verbs.QPStateRTR {
		s.qp.host.Event(verbs.EventCommEst)
	}
}

// nextRecv takes a receive for a message, or returns nil.
func (s *responder) nextRecv() *RecvWQE {
	if w := s.spare; w != nil {
		s.spare = nil
		return w
	}
	return s.qp.host.NextRecv()
}

// outOfOrder asks for the packets before psn, once until they come.
func (s *responder) outOfOrder(psn wire.PSN) {
	switch {
	case s.reply.kind == sequenceReply:
		if s.reply.psn.Less(psn) {
			s.reply.psn = psn
		}
	case !s.refused:
		s.refused = true
		s.reply = reply{kind: sequenceReply, psn: psn}
	}
}

// reject answers a request that cannot be executed. All but RNR end the connection.
func (s *responder) reject(p *wire.Packet, r *refusal) {
	q := s.qp
	s.refused = true
	if r.rnr {
		s.reply = reply{kind: rnrReply, syndrome: wire.SyndromeRNR(q.attr.MinRNRTimer), psn: s.epsn}
		return
	}
	if !r.silent {
		s.reply = reply{kind: fatalReply, syndrome: wire.SyndromeNAK(r.nak), psn: s.epsn}
	}
	q.attr.State = verbs.QPStateErr
	// IBTA C9-222.1.1: a completion error if a work request can be named, else an event.
	if w := s.msg.recv; w != nil {
		s.msg.recv = nil
		q.host.CompleteRecv(w, verbs.WC{ID: w.ID, Status: r.status, Op: verbs.WCRecv, QPN: q.cfg.QPN, Cause: r.cause}, true)
	} else {
		q.host.Event(r.event)
	}
	q.enterError()
}

func invalidRequest(format string, args ...any) *refusal {
	return &refusal{
		nak: wire.NAKInvalidRequest, status: verbs.WCRemInvReqErr, event: verbs.EventQPReqErr,
		cause: fmt.Errorf(format, args...),
	}
}

func accessError(f *Fault) *refusal {
	return &refusal{nak: wire.NAKRemoteAccessError, status: verbs.WCRemAccessErr, event: verbs.EventQPAccessErr, cause: f.Cause}
}

var receiverNotReady = &refusal{rnr: true}

// execute carries a request with the expected PSN out. Nothing has changed when it returns a
// refusal with rnr.
func (s *responder) execute(p *wire.Packet) *refusal {
	if r := s.checkSequence(p); r != nil {
		return r
	}
	switch {
	case p.Opcode.IsSend():
		return s.send(p)
	case p.Opcode.IsWrite():
		return s.write(p)
	case p.Opcode.IsRead():
		return s.read(p)
	case p.Opcode == wire.RCCompareSwap || p.Opcode == wire.RCFetchAdd:
		return s.atomic(p)
	}
	return invalidRequest("operation %v is not supported", p.Opcode)
}

// checkSequence checks that the packet fits the message under way, and its length its place.
func (s *responder) checkSequence(p *wire.Packet) *refusal {
	op := p.Opcode
	if op.StartsMessage() {
		if s.msg.kind != noMessage {
			return invalidRequest("%v inside another message", op)
		}
	} else if op.IsSend() && s.msg.kind != sendMessage || op.IsWrite() && s.msg.kind != writeMessage {
		return invalidRequest("%v without a first packet", op)
	}
	if !op.HasPayload() {
		if len(p.Payload) != 0 {
			return invalidRequest("%v with a payload", op)
		}
		return nil
	}
	// IBTA C9-92.
	n, mtu := len(p.Payload), int(s.qp.mtu)
	switch {
	case n > mtu:
	case (op.IsFirst() || op.IsMiddle()) && n != mtu:
	case op.IsLast() && n == 0:
	default:
		return nil
	}
	return invalidRequest("%v with %d bytes at a path MTU of %d", op, n, mtu)
}

func (s *responder) send(p *wire.Packet) *refusal {
	q := s.qp
	if p.Opcode.StartsMessage() {
		w := s.nextRecv()
		if w == nil {
			return receiverNotReady
		}
		s.msg = message{kind: sendMessage, recv: w}
	}
	m := &s.msg
	n := uint32(len(p.Payload))
	if m.recv.Length-m.off < n {
		return &refusal{
			nak: wire.NAKInvalidRequest, status: verbs.WCLocLenErr,
			cause: fmt.Errorf("the receive has %d bytes, and at least %d came", m.recv.Length, m.off+n),
		}
	}
	if n > 0 {
		if f := q.host.ScatterRecv(m.recv, m.off, p.Payload); f != nil {
			return &refusal{nak: wire.NAKRemoteOperationalError, status: f.Status, cause: f.Cause}
		}
	}
	m.off += n
	if p.Opcode.HasInvalidate() {
		if f := q.host.Invalidate(verbs.RKey(p.InvalidateRKey)); f != nil {
			// An error of responder class J: the receive says so and the QP goes to ERR, but the
			// peer, whose data have arrived, gets no NAK. Linux does the same.
			return &refusal{silent: true, status: verbs.WCRemInvReqErr, cause: f.Cause}
		}
	}
	if p.Opcode.EndsMessage() {
		w, length := m.recv, m.off
		s.msg = message{}
		s.completeRecv(w, p, verbs.WCRecv, length)
	}
	s.executed(p)
	return nil
}

func (s *responder) completeRecv(w *RecvWQE, p *wire.Packet, op verbs.WCOpcode, length uint32) {
	wc := verbs.WC{ID: w.ID, Op: op, ByteLen: length, QPN: s.qp.cfg.QPN, SrcQPN: s.qp.attr.DestQPN}
	if p.Opcode.HasImm() {
		wc.Flags |= verbs.WCFlagWithImm
		wc.Imm = p.Imm
	}
	if p.Opcode.HasInvalidate() {
		wc.Flags |= verbs.WCFlagWithInv
		wc.Imm = p.InvalidateRKey
	}
	s.told = p.PSN
	s.qp.host.CompleteRecv(w, wc, p.Solicited)
}

func (s *responder) write(p *wire.Packet) *refusal {
	q := s.qp
	m := s.msg
	if p.Opcode.StartsMessage() {
		if r := s.checkRDMA(p, verbs.AccessRemoteWrite); r != nil {
			return r
		}
		m = message{kind: writeMessage, va: p.RETH.VA, rkey: verbs.RKey(p.RETH.RKey), size: p.RETH.Length}
	}
	n := uint32(len(p.Payload))
	if left := m.size - m.off; n > left || p.Opcode.EndsMessage() && n != left {
		return invalidRequest("%v with %d bytes, and %d of %d are left of the WRITE", p.Opcode, n, left, m.size)
	}
	var w *RecvWQE
	if p.Opcode.HasImm() {
		// Before any byte is placed: the packet is repeated whole after an RNR NAK.
		if w = s.nextRecv(); w == nil {
			return receiverNotReady
		}
	}
	if n > 0 {
		if f := q.host.WriteRemote(m.rkey, m.va+uint64(m.off), p.Payload); f != nil {
			s.msg.recv = w
			r := accessError(f)
			if w != nil {
				r.status = verbs.WCLocAccessErr
			}
			return r
		}
	}
	m.off += n
	s.msg = m
	if p.Opcode.EndsMessage() {
		s.msg = message{}
	}
	if w != nil {
		s.completeRecv(w, p, verbs.WCRecvRDMAWithImm, m.size)
	}
	s.executed(p)
	return nil
}

// checkRDMA checks the RETH of a READ or WRITE.
func (s *responder) checkRDMA(p *wire.Packet, need verbs.Access) *refusal {
	q := s.qp
	if q.attr.Access&need == 0 {
		return invalidRequest("%v, and the QP does not allow %v: give it to Init or in ACCESS_FLAGS", p.Opcode, need)
	}
	if p.RETH.Length > maxMessage {
		return invalidRequest("%v of %d bytes: at most 2^31", p.Opcode, p.RETH.Length)
	}
	if p.RETH.Length == 0 {
		return nil // IBTA C9-88
	}
	if f := q.host.CheckRemote(verbs.RKey(p.RETH.RKey), p.RETH.VA, p.RETH.Length, need); f != nil {
		return accessError(f)
	}
	return nil
}

func (s *responder) read(p *wire.Packet) *refusal {
	q := s.qp
	if r := s.checkRDMA(p, verbs.AccessRemoteRead); r != nil {
		return r
	}
	if s.queue.full() {
		return invalidRequest("more READs and atomics at a time than MAX_DEST_RD_ATOMIC, %d", q.attr.MaxDestRDAtomic)
	}
	e := s.readEntry(p)
	s.queue.add(e)
	s.epsn = s.epsn.Add(int(e.packets))
	s.msn = (s.msn + 1) & msnMask // IBTA C9-148
	s.acknowledgedByResponse()
	return nil
}

func (s *responder) readEntry(p *wire.Packet) response {
	return response{
		psn: p.PSN, packets: uint32(packetsFor(p.RETH.Length, s.qp.mtu)),
		va: p.RETH.VA, rkey: verbs.RKey(p.RETH.RKey), length: p.RETH.Length,
	}
}

func (s *responder) atomic(p *wire.Packet) *refusal {
	q := s.qp
	if q.attr.Access&verbs.AccessRemoteAtomic == 0 {
		return invalidRequest("%v, and the QP does not allow %v: give it to Init or in ACCESS_FLAGS", p.Opcode, verbs.AccessRemoteAtomic)
	}
	key, va := verbs.RKey(p.AtomicETH.RKey), p.AtomicETH.VA
	if va%atomicLength != 0 {
		return invalidRequest("%v at va %#x, which is not divisible by 8", p.Opcode, va)
	}
	if s.queue.full() {
		return invalidRequest("more READs and atomics at a time than MAX_DEST_RD_ATOMIC, %d", q.attr.MaxDestRDAtomic)
	}
	var orig uint64
	f := q.host.CheckRemote(key, va, atomicLength, verbs.AccessRemoteAtomic)
	if f == nil {
		if p.Opcode == wire.RCCompareSwap {
			orig, f = q.host.CompareSwap(key, va, p.AtomicETH.Compare, p.AtomicETH.SwapAdd)
		} else {
			orig, f = q.host.FetchAdd(key, va, p.AtomicETH.SwapAdd)
		}
	}
	if f != nil {
		return accessError(f)
	}
	e := response{psn: p.PSN, packets: 1, atomic: true, orig: orig}
	s.queue.add(e)
	s.queue.save(e)
	s.epsn = s.epsn.Add(1)
	s.msn = (s.msn + 1) & msnMask
	s.acknowledgedByResponse()
	return nil
}

// acknowledgedByResponse drops an ACK that is due: a response acknowledges all before it.
func (s *responder) acknowledgedByResponse() {
	s.answered = true
	if s.reply.kind == ackReply {
		s.reply = reply{}
	}
}

// executed moves on behind a SEND or WRITE packet.
func (s *responder) executed(p *wire.Packet) {
	s.epsn = s.epsn.Add(1)
	s.answered = false
	if p.Opcode.EndsMessage() {
		s.msn = (s.msn + 1) & msnMask
	}
	if p.AckReq {
		s.acknowledge(p.PSN)
	}
}

// acknowledge makes an ACK of a SEND or WRITE packet due, unless a NAK is, which acknowledges as well.
func (s *responder) acknowledge(psn wire.PSN) {
	switch r := &s.reply; {
	case r.kind == noReply:
		*r = reply{kind: ackReply, psn: psn}
	case r.kind == ackReply && r.psn.Less(psn):
		r.psn = psn
	}
}

// abandon drops what was to be sent.
func (s *responder) abandon() {
	s.queue.clear()
	s.reply = reply{}
}

// flush completes every receive with WCFlushErr, that of the message under way first. A NAK
// that says why stays due, and the READ responses before it.
func (s *responder) flush() {
	q := s.qp
	for _, w := range []*RecvWQE{s.spare, s.msg.recv} {
		if w != nil {
			q.host.CompleteRecv(w, verbs.WC{ID: w.ID, Status: verbs.WCFlushErr, Op: verbs.WCRecv, QPN: q.cfg.QPN}, true)
		}
	}
	s.msg, s.spare = message{}, nil
	q.host.FlushRecv()
}

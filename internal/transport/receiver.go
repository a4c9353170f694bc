package transport

import (
	"fmt"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// receiver reassembles the peer's SENDs and WRITEs and executes them, for all services. Each service has its own
// consequence of a refusal.
type receiver struct {
	qp   *QP
	epsn wire.PSN // the PSN expected next
	msg  message  // the message under way

	// unused is the receive of a message that was dropped. It serves the next one.
	unused *queue.Recv
}

// message is a SEND or WRITE of which the first packet has come and the last has not.
type message struct {
	kind messageKind
	srqn uint32      // XRC: the SRQ that the first packet named
	recv *queue.Recv // SEND: its receive
	off  uint32      // bytes that have come
	va   uint64      // WRITE
	rkey verbs.RKey
	size uint32 // WRITE: bytes announced
}

type messageKind uint8

const (
	noMessage messageKind = iota
	sendMessage
	writeMessage
)

// refusal is why a request is not executed.
type refusal struct {
	nak    wire.NAKCode
	rnr    bool
	silent bool           // ends the connection without a NAK
	status verbs.WCStatus // of the receive, if the message has one
	cause  error
	event  verbs.EventType // if the message has no receive
}

// invalidRequest refuses a request. kind is the mistake that the program's error names.
func invalidRequest(kind error, format string, args ...any) *refusal {
	return &refusal{
		nak: wire.NAKInvalidRequest, status: verbs.WCRemInvReqErr, event: verbs.EventQPReqErr,
		cause: verbs.Errorf(kind, format, args...),
	}
}

// notAllowed refuses an operation that the QP does not allow, whatever the memory region allows.
func notAllowed(op wire.Opcode, need verbs.Access) *refusal {
	return invalidRequest(verbs.ErrQPAccess, "%v, and the QP does not allow %v: give it to Init or in ACCESS_FLAGS", op, need)
}

func accessError(cause error) *refusal {
	return &refusal{nak: wire.NAKRemoteAccessError, status: verbs.WCRemAccessErr, event: verbs.EventQPAccessErr, cause: cause}
}

// localError refuses a request because of memory at this end. The peer has done nothing wrong.
func localError(cause error) *refusal {
	return &refusal{nak: wire.NAKRemoteOperationalError, status: verbs.WCLocProtErr, event: verbs.EventQPFatal, cause: cause}
}

var receiverNotReady = &refusal{rnr: true}

// established takes note of the peer's first request, and raises the event if it comes in RTR.
func (s *receiver) established() {
	q := s.qp
	if q.outputs.established {
		return
	}
	q.outputs.established = true
	if q.attr.State == verbs.QPStateRTR {
		q.raise(verbs.EventCommEst, nil)
	}
}

// takeRecv takes a receive for a message, or returns nil.
func (s *receiver) takeRecv() *queue.Recv {
	if w := s.unused; w != nil {
		s.unused = nil
		return w
	}
	return s.qp.cfg.Receives.Take()
}

// checkSequence checks that the packet fits the message under way, and that its length fits its position.
func (s *receiver) checkSequence(p *wire.Packet) *refusal {
	op := p.Opcode
	if op.StartsMessage() {
		if s.msg.kind != noMessage {
			return invalidRequest(verbs.ErrMalformed, "%v inside another message", op)
		}
	} else if op.IsSend() && s.msg.kind != sendMessage || op.IsWrite() && s.msg.kind != writeMessage {
		return invalidRequest(verbs.ErrMalformed, "%v without a first packet", op)
	}
	if !op.HasPayload() {
		if len(p.Payload) != 0 {
			return invalidRequest(verbs.ErrMalformed, "%v with a payload", op)
		}
		return nil
	}
	// IBTA C9-92.
	n, mtu := len(p.Payload), int(s.qp.mtu)
	if before := (s.qp.run.length() - 1) * mtu; n > before {
		n -= before // the last packet's
	} else if before > 0 {
		return invalidRequest(verbs.ErrMalformed, "%v with %d bytes for %d packets", op, n, s.qp.run.packets)
	}
	switch {
	case n > mtu:
	case (op.IsFirst() || op.IsMiddle()) && n != mtu:
	case op.IsLast() && n == 0:
	default:
		return nil
	}
	if m, ok := verbs.MTUFromBytes(n); ok && (op.IsFirst() || op.IsMiddle()) {
		return invalidRequest(verbs.ErrPathMTU, "%v with %d bytes: the peer's path MTU is %d, and here it is %d: give both QPs the same PATH_MTU", op, n, m.Bytes(), mtu)
	}
	if n > mtu {
		return invalidRequest(verbs.ErrPathMTU, "%v with %d bytes, and the path MTU here is %d: give both QPs the same PATH_MTU", op, n, mtu)
	}
	return invalidRequest(verbs.ErrMalformed, "%v with %d bytes at a path MTU of %d", op, n, mtu)
}

// send executes a packet of a SEND. Nothing has changed when it returns a refusal with rnr.
func (s *receiver) send(p *wire.Packet) *refusal {
	q := s.qp
	if p.Opcode.StartsMessage() {
		w := s.takeRecv()
		if w == nil {
			return receiverNotReady
		}
		s.msg.kind, s.msg.recv, s.msg.off = sendMessage, w, 0
		s.msg.srqn = p.XRCETH.SRQN
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
		if err := q.scatter(m.recv.PD, m.recv.SGList, m.off, p.Payload); err != nil {
			return localError(err)
		}
	}
	if !s.qp.run.isTaken() {
		if p.Opcode.StartsMessage() {
			s.dropMessage()
		}
		return recalled
	}
	m.off += n
	if p.Opcode.HasInvalidate() {
		if err := q.cfg.PD.Invalidate(verbs.RKey(p.InvalidateRKey), q.cfg.QPN); err != nil {
			// An error of responder class J: the receive fails and the QP goes to ERR, but the peer, whose data have
			// arrived, gets no NAK. Linux does the same.
			return &refusal{silent: true, status: verbs.WCRemInvReqErr, cause: err}
		}
	}
	if p.Opcode.EndsMessage() {
		w, length := m.recv, m.off
		s.msg.kind, s.msg.recv = noMessage, nil
		s.complete(w, p, verbs.WCRecv, length)
	}
	return nil
}

// write executes a packet of a WRITE. Nothing has changed when it returns a refusal with rnr. Only immediate data
// cost a receive: IBTA C10-87.
func (s *receiver) write(p *wire.Packet) *refusal {
	m := s.msg
	n := uint32(len(p.Payload))
	var span mem.Span
	if p.Opcode.StartsMessage() {
		var r *refusal
		if span, r = s.open(p, verbs.AccessRemoteWrite); r != nil {
			return r
		}
		m = message{kind: writeMessage, va: p.RETH.VA, rkey: verbs.RKey(p.RETH.RKey), size: p.RETH.Length, srqn: p.XRCETH.SRQN}
	}
	if left := m.size - m.off; n > left || p.Opcode.EndsMessage() && n != left {
		span.Release()
		return s.badLength(p, left, m.size)
	}
	var w *queue.Recv
	if p.Opcode.HasImm() {
		// Before any byte is placed: the packet is repeated whole after an RNR NAK.
		if w = s.takeRecv(); w == nil {
			span.Release()
			return receiverNotReady
		}
	}
	var err error
	if n > 0 {
		if m.off > 0 {
			if span, err = s.qp.memory.Open(s.qp.cfg.PD, m.rkey, s.qp.cfg.QPN, m.va+uint64(m.off), uint64(n), verbs.AccessRemoteWrite); err != nil {
				return s.writeRefused(w, err)
			}
		}
		err = s.qp.run.place(span, p.Payload)
	}
	span.Release()
	if err != nil {
		s.msg.recv = w
		return localError(err)
	}
	s.qp.work.WriteBytes += uint64(n)
	if !s.qp.run.isTaken() {
		s.unused = w
		return recalled
	}
	m.off += n
	s.msg = m
	if p.Opcode.EndsMessage() {
		s.msg = message{}
		s.qp.work.wrote()
	}
	if w != nil {
		s.complete(w, p, verbs.WCRecvRDMAWithImm, m.size)
	}
	return nil
}

// start makes psn the next one that is expected.
func (s *receiver) start(psn wire.PSN) { s.epsn = psn }

// pass moves on by n PSNs.
func (s *receiver) pass(n int) { s.epsn = s.epsn.Add(n) }

// placed notes that n bytes of the WRITE under way have been placed.
func (s *receiver) placed(n uint32) { s.msg.off += n }

// badLength refuses a packet of a WRITE of size bytes, of which left bytes are still to come.
func (s *receiver) badLength(p *wire.Packet, left, size uint32) *refusal {
	return invalidRequest(verbs.ErrMalformed, "%v with %d bytes, and %d of %d are left of the WRITE", s.qp.opcode(p), len(p.Payload), left, size)
}

// writeRefused is the refusal of a WRITE whose memory has gone while it was under way. w is the receive
// of its immediate data, or nil.
func (s *receiver) writeRefused(w *queue.Recv, cause error) *refusal {
	s.msg.recv = w
	r := accessError(cause)
	if w != nil {
		r.status = verbs.WCLocAccessErr
	}
	return r
}

// open checks the RETH of a READ or WRITE and opens the memory that it names, which the caller
// releases.
func (s *receiver) open(p *wire.Packet, need verbs.Access) (mem.Span, *refusal) {
	q := s.qp
	if q.attr.Access&need == 0 {
		return mem.Span{}, notAllowed(q.opcode(p), need)
	}
	if p.RETH.Length > maxMessage {
		return mem.Span{}, invalidRequest(verbs.ErrMalformed, "%v of %d bytes: at most 2^31", s.qp.opcode(p), p.RETH.Length)
	}
	if p.RETH.Length == 0 {
		return mem.Span{}, nil // IBTA C9-88
	}
	span, err := q.memory.Open(q.cfg.PD, verbs.RKey(p.RETH.RKey), q.cfg.QPN, p.RETH.VA, uint64(p.RETH.Length), need)
	if err != nil {
		return mem.Span{}, accessError(err)
	}
	return span, nil
}

// complete completes the receive that p, the last packet of its message, was for.
func (s *receiver) complete(w *queue.Recv, p *wire.Packet, op verbs.WCOpcode, length uint32) {
	wc := s.succeed(w, op, length, p.Solicited)
	if p.Opcode.HasImm() {
		wc.Flags |= verbs.WCFlagWithImm
		wc.Imm = p.Imm
	}
	if p.Opcode.HasInvalidate() {
		wc.Flags |= verbs.WCFlagWithInv
		wc.Imm = p.InvalidateRKey
	}
}

// succeed makes the completion of a receive of length bytes. The caller fills in the other fields.
func (s *receiver) succeed(w *queue.Recv, op verbs.WCOpcode, length uint32, solicited bool) *verbs.WC {
	wc := s.qp.completeRecv(w, verbs.WCSuccess, op, solicited)
	wc.ByteLen, wc.SrcQPN = length, s.qp.attr.DestQPN
	return wc
}

// dropMessage forgets the message under way and keeps its receive for the next.
func (s *receiver) dropMessage() {
	if s.msg.recv != nil {
		s.unused = s.msg.recv
	}
	s.msg = message{}
}

// fail takes the QP to the error state for a refusal. IBTA C9-222.1.1: a completion error if a work request can be
// named, else an event.
func (s *receiver) fail(r *refusal) {
	q := s.qp
	if w := s.msg.recv; w != nil {
		s.msg.recv = nil
		q.completeRecv(w, r.status, verbs.WCRecv, true).Cause = r.cause
	} else {
		q.raise(r.event, r.cause)
	}
	q.enterError(fmt.Errorf("a request of the peer was refused: %w", r.cause))
}

// flush completes the receives that the QP holds with WCFlushErr: the one of the message under way, or of a dropped
// message.
func (s *receiver) flush() {
	for _, w := range [...]*queue.Recv{s.unused, s.msg.recv} {
		if w != nil {
			s.qp.completeRecv(w, verbs.WCFlushErr, verbs.WCRecv, true)
		}
	}
	s.msg, s.unused = message{}, nil
}

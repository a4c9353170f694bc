package transport

import (
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// reply is the acknowledgement that is due after all queued READ responses. Its packet is written when it is sent, so
// that it covers the requests that came in the meantime.
//
// Only for an adverb does an ACK cover them. For other peers it covers no more than they asked for. Linux's requester
// can miss its wake-up (rxe_requester's need_req_skb). Then its retransmission timer wakes it, which runs only while
// something is not acknowledged.
type reply struct {
	kind      replyKind
	deferred  uint8         // how many packets of SENDs may go before an ACK
	syndrome  wire.Syndrome // of an RNR or fatal NAK
	psn       wire.PSN      // the refused PSN, for a sequence NAK the last one that was dropped, or the one to acknowledge
	msn       uint32        // messages completed by psn, for an ACK
	duplicate bool          // for ranges: psn had come before
}

// deferACK lets packets of SENDs go before the ACK, up to deferBehind.
func (r *reply) deferACK() { r.deferred = deferBehind }

// passed notes that a packet goes before the ACK.
func (r *reply) passed() { r.deferred-- }

type replyKind uint8

const (
	noReply replyKind = iota
	ackReply
	sequenceReply // NAK for epsn, if anything after it was dropped
	rnrReply      // RNR NAK
	fatalReply    // NAK that ends the connection
	sackReply     // ACK, with the ranges that have come beyond it
)

// duplicate answers a request that was executed before. READs are executed again, atomics, FLUSHes and ATOMIC WRITEs are
// answered with the saved result, and all other requests are acknowledged again. Answers go out in the order of their PSNs: IBTA C9-110.
func (s *responder) duplicate(p *wire.Packet) {
	q := s.qp
	switch {
	case q.cfg.XRC != nil && !q.receiver.namesAgain(p):
		q.counters.Unexpected++
	case p.Opcode.IsRead():
		s.duplicateRead(p)
	case p.Opcode.IsAtomic():
		s.duplicateSaved(atomicResponse, p.PSN)
	case p.Opcode == wire.RCFlush, p.Opcode == wire.RCAtomicWrite:
		s.duplicateSaved(emptyResponse, p.PSN) // and not executed again
	case s.reorder.n > 0 && s.reorder.peerSACKs:
		s.sackDue(p.PSN, true)
	case s.afterResponse:
		s.acknowledge(p.PSN)
	default:
		s.acknowledge(q.receiver.epsn.Add(-1))
	}
}

// duplicateSaved answers a request again with the response that was saved.
func (s *responder) duplicateSaved(kind responseKind, psn wire.PSN) {
	e := s.responses.saved(kind, psn)
	if e == nil {
		s.qp.counters.Unexpected++
		return
	}
	s.repeated.read = true
	s.responses.replay(*e, s.qp.receiver.epsn)
}

// duplicateRead answers a READ again, with the current content of the memory. If the region is gone, a NAK tells a
// peer that still waits. A peer that does not wait, because the network repeated the request or delayed it, ignores
// the NAK: so the connection lives on.
func (s *responder) duplicateRead(p *wire.Packet) {
	q := s.qp
	e := s.readEntry(p)
	if !s.responses.repeatsRead(&e, q.mtu) || len(p.Payload) != 0 {
		q.counters.Unexpected++
		return
	}
	span, r := q.receiver.open(p, verbs.AccessRemoteRead)
	switch {
	case r == nil:
		span.Release() // the data are read when they are sent
	case r.nak == wire.NAKRemoteAccessError && !s.responses.overlaps(&e):
		e.gone = true
	default:
		q.counters.Unexpected++
		return
	}
	s.repeated.read = true
	s.responses.replay(e, q.receiver.epsn)
}

// regionGone ends the connection at a READ that was accepted and can no longer be answered.
func (s *responder) regionGone(psn wire.PSN, r *refusal) {
	q := s.qp
	q.counters.refused(r)
	s.refused = true
	s.reply = reply{kind: fatalReply, syndrome: wire.SyndromeNAK(r.nak), psn: psn}
	if q.attr.State != verbs.QPStateErr {
		q.raise(r.event, r.cause)
		q.enterError(fmt.Errorf("the memory of a READ that was accepted is gone, at psn %v: %w", psn, r.cause))
	}
}

func (s *responder) idle() bool { return s.reply.kind == noReply && s.responses.none() }

// onlyReply reports whether an acknowledgement of any kind is due, and nothing else.
func (s *responder) onlyReply() bool { return s.reply.kind != noReply && s.responses.none() }

// onlyACK reports whether an ACK is due and nothing else.
func (s *responder) onlyACK() bool { return s.reply.kind == ackReply && s.responses.none() }

// transmit writes the next response packet into buf, if there is one.
func (s *responder) transmit(now time.Duration, buf []byte) int {
	q := s.qp
	if e := s.responses.oldest(); e != nil {
		if e.kind == readResponse && (q.spent() || q.rate.Holds(now)) {
			return 0 // and the responses behind it wait too
		}
		run := s.readRun(e)
		n := s.lend(e, run, buf)
		if n == 0 {
			n = s.respond(e, run, buf)
		}
		if n > 0 {
			if q.rate.IsPaced() {
				q.sent(now, n)
			}
			return n
		}
	}
	r := s.reply
	if r.kind == noReply {
		return 0
	}
	s.reply = reply{}
	epsn := q.receiver.epsn
	p := q.header(wire.RCAcknowledge, epsn.Add(-1))
	switch {
	case r.kind == sequenceReply && epsn.LessEq(r.psn):
		p.PSN = epsn
		q.counters.SentSequenceNAKs++
		p.AETH = wire.AETH{Syndrome: wire.SyndromeNAK(wire.NAKSequenceError), MSN: s.msn}
		s.refused = true
	case r.kind == sackReply && (s.reorder.n > 0 || s.flushes != nil):
		return s.sendSACK(p, r, buf)
	case r.kind == fatalReply, r.kind == rnrReply && epsn == r.psn:
		p.PSN = r.psn
		p.AETH = wire.AETH{Syndrome: r.syndrome, MSN: s.msn}
	case s.afterResponse && r.kind != ackReply:
		return 0 // the response acknowledges
	default:
		p.PSN, p.AETH = s.acknowledgement(r)
	}
	return len(q.headers(p, buf)) + wire.ICRCSize
}

// takeACK returns the acknowledgement that is due, which the caller sends.
func (s *responder) takeACK() (wire.PSN, wire.AETH) {
	r := s.reply
	s.reply = reply{}
	return s.acknowledgement(r)
}

// acknowledgement returns PSN and AETH of the ACK that r is now.
func (s *responder) acknowledgement(r reply) (psn wire.PSN, aeth wire.AETH) {
	psn, aeth = s.qp.receiver.epsn.Add(-1), s.ack()
	if s.afterResponse {
		// An ACK with the PSN of a READ or an atomic says nothing of its response, which may have
		// been lost. Linux takes it for the response: the atomic then completes without its result.
		psn = r.psn
	}
	if r.kind == ackReply && !s.reorder.peerSACKs {
		psn, aeth.MSN = r.psn, r.msn
	}
	return psn, aeth
}

// sendSACK writes a selective acknowledgement.
func (s *responder) sendSACK(p *wire.Packet, r reply, buf []byte) int {
	epsn := s.qp.receiver.epsn
	p.Opcode, p.PSN, p.AETH = wire.RCAckRanges, epsn, s.ack()
	n := len(p.AppendHeaders(buf[:0]))
	what := wire.Ranges{Latest: r.psn, Again: r.duplicate, Bits: s.reorder.ranges(epsn)}
	if s.flushes != nil {
		what.Bits[0] |= 1 // it has come: the peer need not repeat it
	}
	return finish(buf, len(what.AppendTo(buf[:n])), 0)
}

// respond writes the next packet of e, the oldest of the queued READs and atomics. run is how many packets of a READ
// may go as one.
func (s *responder) respond(e *response, run uint32, buf []byte) int {
	q := s.qp
	if e.kind != readResponse {
		p := q.header(wire.RCRDMAReadResponseOnly, e.psn)
		if e.kind == atomicResponse {
			p.Opcode = wire.RCAtomicAcknowledge
			p.AtomicAckETH.Orig = e.orig
		}
		p.AETH = s.ack()
		s.responses.drop()
		return len(q.headers(p, buf)) + wire.ICRCSize
	}
	if e.gone {
		return s.nakGone(e, buf, accessError(nil))
	}
	off, n := e.sent*q.mtu, uint32(q.copiedRun(uint64(run)))
	size := min(e.length-off, n*q.mtu)
	p := q.header(e.opcode(n), e.psn.Add(int(e.sent)))
	if p.Opcode.Headers()&wire.HeaderAETH != 0 {
		p.AETH = s.ack()
	}
	p.PadCount = wire.PadCount(int(size))
	h := len(q.headers(p, buf))
	if size > 0 {
		r := s.fetch(e, off, buf[h:h+int(size)])
		if r != nil && e.replay {
			return s.nakGone(e, buf, r)
		}
		if r != nil {
			s.responses.clear()
			s.regionGone(p.PSN, r)
			return 0
		}
	}
	q.standsFor(uint64(n))
	s.responded(e, n)
	return finish(buf, h+int(size), p.PadCount)
}

// fetch fills dst with bytes of the READ e, from byte off of it on.
func (s *responder) fetch(e *response, off uint32, dst []byte) *refusal {
	q := s.qp
	span, err := q.memory.Open(e.domain(q), e.rkey, q.cfg.QPN, e.va+uint64(off), uint64(len(dst)), verbs.AccessRemoteRead)
	if err != nil {
		return accessError(err)
	}
	err = q.memory.Fetch(span, dst)
	span.Release()
	if err != nil {
		return localError(err)
	}
	return nil
}

// opcode returns the opcode of the next n packets of the READ e, as one.
func (e *response) opcode(n uint32) wire.Opcode {
	return readOpcodes[position(uint64(e.sent), uint64(n), uint64(e.packets))]
}

// nakGone answers the rest of the repeated READ e with a NAK.
func (s *responder) nakGone(e *response, buf []byte, r *refusal) int {
	q := s.qp
	q.counters.refused(r)
	p := q.header(wire.RCAcknowledge, e.psn.Add(int(e.sent)))
	p.AETH = wire.AETH{Syndrome: wire.SyndromeNAK(r.nak), MSN: s.msn}
	s.responses.drop()
	return len(q.headers(p, buf)) + wire.ICRCSize
}

// responded takes note that the next n packets of the READ e are sent.
func (s *responder) responded(e *response, n uint32) {
	s.qp.spend(int(n))
	if e.sent += n; e.sent == e.packets {
		s.responses.drop()
	}
}

// pending reports whether READ responses wait for another turn.
func (s *responder) pending() bool {
	e := s.responses.oldest()
	return e != nil && e.kind == readResponse && s.qp.spent()
}

// ack is the AETH of an ACK. It announces the receives that are posted.
func (s *responder) ack() wire.AETH {
	credits := uint8(wire.CreditsUnlimited)
	if n := s.qp.cfg.Receives.Credits(); n >= 0 {
		credits = wire.EncodeCredits(n)
	}
	return wire.AETH{Syndrome: wire.SyndromeACK(credits), MSN: s.msn}
}

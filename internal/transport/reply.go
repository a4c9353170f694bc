package transport

import (
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// reply is the acknowledgement that is due after all queued READ responses. It is made up when
// it is sent, so that it covers what came in the meantime.
type reply struct {
	kind     replyKind
	syndrome wire.Syndrome // of an RNR or fatal NAK
	psn      wire.PSN      // refused, for a sequence NAK the last one that was dropped, or the one to acknowledge
}

type replyKind uint8

const (
	noReply replyKind = iota
	ackReply
	sequenceReply // NAK for epsn, if anything after it was dropped
	rnrReply      // RNR NAK
	fatalReply    // NAK that ends the connection
)

// duplicate answers a request that was executed before. READs are executed again, atomics
// answered with the saved result, all else is acknowledged again. Answers go out in the order
// of their PSNs: IBTA C9-110.
func (s *responder) duplicate(p *wire.Packet) {
	q := s.qp
	switch {
	case p.Opcode.IsRead():
		s.duplicateRead(p)
	case p.Opcode.IsAtomic():
		if e, ok := s.queue.saved(p.PSN); ok {
			s.queue.replay(e, s.epsn)
		} else {
			q.counters.Unexpected++
		}
	default:
		s.acknowledge(p.PSN)
	}
}

// duplicateRead answers a READ again, with what is in memory now.
func (s *responder) duplicateRead(p *wire.Packet) {
	q := s.qp
	e := s.readEntry(p)
	// The request may be for the rest of an earlier one, never for more than was executed.
	if p.PSN.Add(int(e.packets)).Diff(s.epsn) > 0 || len(p.Payload) != 0 {
		q.counters.Unexpected++
		return
	}
	if r := s.checkRDMA(p, verbs.AccessRemoteRead); r != nil {
		// The peer waits for data that it can no longer have, and is told. But once a later
		// message has reached the program, the region may be gone because the READ was done,
		// and this is an old packet that the network held back: it must not end the connection.
		if r.nak == wire.NAKRemoteAccessError && p.PSN.Diff(s.told) > 0 {
			s.queue.cut(p.PSN, s.epsn)
			s.regionGone(p.PSN)
		} else {
			q.counters.Unexpected++
		}
		return
	}
	s.queue.replay(e, s.epsn)
}

// regionGone ends the connection at a READ that was accepted and can no longer be answered.
func (s *responder) regionGone(psn wire.PSN) {
	q := s.qp
	s.refused = true
	s.reply = reply{kind: fatalReply, syndrome: wire.SyndromeNAK(wire.NAKRemoteAccessError), psn: psn}
	if q.attr.State != verbs.QPStateErr {
		q.attr.State = verbs.QPStateErr
		q.host.Event(verbs.EventQPAccessErr)
		q.enterError()
	}
}

// transmit writes the next response packet into buf, if there is one.
func (s *responder) transmit(buf []byte) int {
	if e := s.queue.oldest(); e != nil {
		if !e.atomic && s.qp.spent() {
			return 0 // and what is behind it waits too
		}
		if n := s.answer(e, buf); n > 0 {
			return n
		}
	}
	r := s.reply
	if r.kind == noReply {
		return 0
	}
	s.reply = reply{}
	p := s.header(wire.RCAcknowledge, s.epsn.Add(-1))
	p.AETH = s.aeth()
	switch {
	case r.kind == sequenceReply && s.epsn.LessEq(r.psn):
		p.PSN, p.AETH.Syndrome = s.epsn, wire.SyndromeNAK(wire.NAKSequenceError)
		s.refused = true
	case r.kind == fatalReply, r.kind == rnrReply && s.epsn == r.psn:
		p.PSN, p.AETH.Syndrome = r.psn, r.syndrome
	case s.answered:
		// An ACK with the PSN of a READ or an atomic says nothing of its response, which may have been
		// lost. Linux takes it for the response: the atomic then completes without its result.
		if r.kind != ackReply {
			return 0 // the response acknowledges
		}
		p.PSN = r.psn
	}
	return len(p.AppendHeaders(buf[:0])) + wire.ICRCSize
}

// answer writes the next packet of e, the oldest of the queued READs and atomics.
func (s *responder) answer(e *response, buf []byte) int {
	if e.atomic {
		p := s.header(wire.RCAtomicAcknowledge, e.psn)
		p.AETH = s.aeth()
		p.AtomicAckETH.Orig = e.orig
		s.queue.drop()
		return len(p.AppendHeaders(buf[:0])) + wire.ICRCSize
	}
	q := s.qp
	off := e.sent * q.mtu
	size := min(e.length-off, q.mtu)
	pos := posMiddle
	if e.sent == 0 {
		pos |= posFirst
	}
	if e.sent+1 == e.packets {
		pos |= posLast
	}
	p := s.header(readOpcodes[pos], e.psn.Add(int(e.sent)))
	p.AETH = s.aeth()
	p.PadCount = wire.PadCount(int(size))
	h := len(p.AppendHeaders(buf[:0]))
	if size > 0 {
		if f := q.host.ReadRemote(buf[h:h+int(size)], e.rkey, e.va+uint64(off)); f != nil {
			s.queue.clear()
			s.regionGone(p.PSN)
			return 0
		}
	}
	q.spend()
	if e.sent++; e.sent == e.packets {
		s.queue.drop()
	}
	return sealSpace(buf, h+int(size), p.PadCount)
}

func (s *responder) header(op wire.Opcode, psn wire.PSN) *wire.Packet {
	p := &s.qp.out
	p.BTH = wire.BTH{Opcode: op, MigReq: true, PKey: defaultPKey, DestQP: uint32(s.qp.attr.DestQPN), PSN: psn}
	return p
}

func (s *responder) aeth() wire.AETH {
	credits := uint8(wire.CreditsUnlimited)
	if n := s.qp.host.RecvCredits(); n >= 0 {
		credits = wire.EncodeCredits(n)
	}
	return wire.AETH{Syndrome: wire.SyndromeACK(credits), MSN: s.msn}
}

package transport

import (
	"errors"
	"time"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// responder takes the requests of a reliable connection. It checks the PSN, opcode sequence, access, length,
// resources and key, then executes and acknowledges the request. The receiver executes SENDs and WRITEs.
type responder struct {
	qp  *QP
	msn uint32 // messages completed

	// refused is set once a NAK for epsn has been sent. All later packets are dropped silently until epsn comes
	// again.
	refused bool
	// afterResponse says that the request before epsn has a response of its own, as a READ has. Only that may bear its PSN.
	afterResponse bool
	repeated      repeatedSince
	flushes       *flushUnderWay // nil: none is

	reply     reply
	responses responses
	reorder   reorderBuffer
	peerPorts *[wire.MaxHelloPorts]uint16 // the ports that the peer says it sends from; nil if it has not
	gapTimer  time.Duration               // when the missing packets before the held ones count as lost; Never if they do not
}

// repeatedSince says which kinds of requests the peer has repeated since the latest answer.
type repeatedSince struct{ request, read bool } // read: a request with a response

func (s *responder) reset() { *s = responder{qp: s.qp, gapTimer: Never} }

// resize takes over attributes that Modify set.
func (s *responder) resize() { s.responses.resize(s.qp.attr.MaxDestRDAtomic) }

// handle takes a request packet.
func (s *responder) handle(p *wire.Packet) {
	q := s.qp
	switch d := p.PSN.Diff(q.receiver.epsn); {
	case d >= 0 && s.flushes != nil:
		s.waits(p)
		return
	case d > 0 && s.holdsOutOfOrder():
		if !s.holdOutOfOrder(p) {
			q.counters.OutOfOrder++
			if s.reorder.n == 0 && !s.reorder.peerSACKs { // then no packet waits that could show the gap
				s.outOfOrder(p.PSN)
			}
		}
		return
	case d > 0:
		q.counters.OutOfOrder++
		s.outOfOrder(p.PSN)
		return
	case d < 0:
		q.counters.Duplicates++
		s.repeated.request = true
		s.duplicate(p)
		return
	}
	q.receiver.established() // only now that the PSN fits: a packet that anybody can send proves nothing
	r := s.execute(p)
	q.run.end()
	if r == nil && s.reorder.n > 0 {
		r = s.executeHeld()
	}
	if r == recalled || r == later {
		return
	}
	if r != nil {
		s.reject(r)
		return
	}
	s.refused = false
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

// reject answers a request that cannot be executed. All refusals but RNR end the connection.
func (s *responder) reject(r *refusal) {
	q := s.qp
	s.refused = true
	q.counters.refused(r)
	if r.rnr {
		s.reply = reply{kind: rnrReply, syndrome: wire.SyndromeRNR(q.attr.MinRNRTimer), psn: q.receiver.epsn}
		return
	}
	if !r.silent {
		s.reply = reply{kind: fatalReply, syndrome: wire.SyndromeNAK(r.nak), psn: q.receiver.epsn}
	}
	q.receiver.fail(r)
}

// execute executes a request with the expected PSN. Nothing has changed when it returns a refusal with rnr.
func (s *responder) execute(p *wire.Packet) *refusal {
	in := &s.qp.receiver
	if r := in.checkSequence(p); r != nil {
		return r
	}
	if s.qp.cfg.XRC != nil {
		if r := in.name(p); r != nil {
			return r
		}
	}
	var r *refusal
	switch {
	case p.Opcode.IsSend():
		r = in.send(p)
	case p.Opcode.IsWrite():
		r = in.write(p)
	case p.Opcode.IsRead():
		return s.read(p)
	case p.Opcode == wire.RCCompareSwap || p.Opcode == wire.RCFetchAdd:
		return s.atomic(p)
	case p.Opcode == wire.RCAtomicWrite:
		return s.atomicWrite(p)
	case p.Opcode == wire.RCFlush:
		return s.flush(p)
	default:
		return invalidRequest(verbs.ErrMalformed, "operation %v is not supported", s.qp.opcode(p))
	}
	if r == nil {
		s.executed(p.Opcode.EndsMessage(), p.AckReq)
	}
	return r
}

func (s *responder) read(p *wire.Packet) *refusal {
	q := s.qp
	span, r := q.receiver.open(p, verbs.AccessRemoteRead)
	if r != nil {
		return r
	}
	span.Release() // the data are read when they are sent
	if s.responses.full() {
		return s.tooMany()
	}
	e := s.readEntry(p)
	s.responses.add(e)
	q.work.Reads++
	s.executedWithResponse(int(e.packets)) // IBTA C9-148: the MSN counts the READ now
	return nil
}

func (s *responder) readEntry(p *wire.Packet) response {
	return response{
		psn: p.PSN, packets: uint32(packetsFor(p.RETH.Length, s.qp.mtu)),
		va: p.RETH.VA, rkey: verbs.RKey(p.RETH.RKey), length: p.RETH.Length, pd: s.xrcDomain(),
	}
}

func (s *responder) atomic(p *wire.Packet) *refusal {
	q := s.qp
	if q.attr.Access&verbs.AccessRemoteAtomic == 0 {
		return notAllowed(q.opcode(p), verbs.AccessRemoteAtomic)
	}
	a := &p.AtomicETH
	if a.VA%atomicLength != 0 {
		return invalidRequest(verbs.ErrMalformed, "%v at va %#x, which is not divisible by 8", q.opcode(p), a.VA)
	}
	if s.responses.full() {
		return s.tooMany()
	}
	span, err := q.cfg.PD.Open(verbs.RKey(a.RKey), q.cfg.QPN, a.VA, atomicLength, verbs.AccessRemoteAtomic)
	if err != nil {
		return accessError(err)
	}
	var orig uint64
	if p.Opcode == wire.RCCompareSwap {
		orig, err = span.CompareSwap(a.Compare, a.SwapAdd)
	} else {
		orig, err = span.FetchAdd(a.SwapAdd)
	}
	span.Release()
	switch {
	case errors.Is(err, mem.ErrFault):
		return localError(err)
	case err != nil:
		return accessError(err)
	}
	q.work.Atomics++
	s.responses.add(response{kind: atomicResponse, psn: p.PSN, packets: 1, orig: orig})
	s.executedWithResponse(1)
	return nil
}

// pass moves on by the n PSNs of one packet. A held packet with a later PSN of these is no request of the peer, and
// must not stand for one that comes later.
func (s *responder) pass(n int) {
	in := &s.qp.receiver
	if n > 1 && s.reorder.n > 0 {
		s.reorder.forget(in.epsn.Add(1), n-1)
	}
	in.pass(n)
}

// executedWithResponse moves on behind a request with a response, which has packets PSNs. The response acknowledges all
// requests before it, so an ACK that is due is dropped.
func (s *responder) executedWithResponse(packets int) {
	s.pass(packets)
	s.msn = (s.msn + 1) & msnMask
	s.afterResponse = true
	if s.reply.kind == ackReply {
		s.reply = reply{}
	}
}

// executed moves on behind a SEND or WRITE packet, which may end its message and ask for an acknowledgement.
func (s *responder) executed(ends, asks bool) {
	s.pass(s.qp.run.length())
	s.afterResponse = false
	if ends {
		s.msn = (s.msn + 1) & msnMask
	}
	if asks {
		s.acknowledge(s.qp.receiver.epsn.Add(-1))
	}
}

// acknowledge makes an ACK of a SEND or WRITE packet due, unless a NAK is due, which acknowledges the packet as well.
func (s *responder) acknowledge(psn wire.PSN) {
	switch r := &s.reply; {
	case r.kind == noReply:
		*r = reply{kind: ackReply, psn: psn, msn: s.msn}
	case r.kind == ackReply && r.psn.Less(psn):
		r.psn, r.msn = psn, s.msn
	}
}

// abandon drops the answers that are due, but for a deferred ACK: without the deferral it would have left already,
// and the peer must not take executed requests for lost.
func (s *responder) abandon() {
	s.responses.clear()
	if s.reply.deferred == 0 {
		s.reply = reply{}
	}
}

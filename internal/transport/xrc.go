package transport

import (
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The extended reliable connection of annex A14. An initiator (QPTypeXRCSend) is the requester of a reliable connection,
// and a target (QPTypeXRCRecv) its responder. Each request names an SRQ of the target's XRC domain: the message takes
// its receive there, and the memory is that of the SRQ's protection domain. Both ends keep to the specification: they say
// no hello, so a loss has the initiator go back.
//
// The code of RC works with the opcodes of RC. They are those of XRC on the wire alone: QP.headers, takesXRC.

// XRC finds the SRQs of a target's domain. Its caller holds the QP.
type XRC interface {
	// Name has the QP's receives come from an SRQ from now on, and returns the SRQ's protection domain. It returns nil,
	// and changes nothing, if the domain has no SRQ of that number.
	Name(srqn uint32) *mem.PD
}

// takesXRC reports whether a packet is one that an XRC QP takes, and gives it the opcode of RC: an initiator takes
// responses, a target requests.
func (q *QP) takesXRC(p *wire.Packet) bool {
	if p.Opcode == wire.CNP {
		return true
	}
	if p.Opcode.Service() != wire.ServiceXRC || p.Opcode.IsRequest() != (q.cfg.Type == verbs.QPTypeXRCRecv) {
		return false
	}
	p.Opcode -= wire.XRC
	return true
}

// name takes note of the SRQ that a request names, which is next.
func (s *receiver) name(p *wire.Packet) *refusal {
	n := p.XRCETH.SRQN
	if !p.Opcode.StartsMessage() && n != s.msg.srqn {
		return invalidRequest(verbs.ErrMalformed, "%v to SRQ %v inside a message to SRQ %v", s.qp.opcode(p), verbs.SRQN(n), verbs.SRQN(s.msg.srqn))
	}
	if !s.namesAgain(p) {
		return invalidRequest(verbs.ErrNotFound, "%v to SRQ %v: the XRC domain of the QP has no such SRQ", s.qp.opcode(p), verbs.SRQN(n))
	}
	return nil
}

// namesAgain takes note of the SRQ that a request names, and reports whether there is one.
func (s *receiver) namesAgain(p *wire.Packet) bool {
	pd := s.qp.cfg.XRC.Name(p.XRCETH.SRQN)
	if pd != nil {
		s.qp.cfg.PD = pd
	}
	return pd != nil
}

// xrcDomain returns the protection domain of the SRQ that the latest request named, or nil if no requests of the QP
// name one.
func (s *responder) xrcDomain() *mem.PD {
	if s.qp.cfg.XRC == nil {
		return nil
	}
	return s.qp.cfg.PD
}

// domain returns the protection domain of the READ e.
func (e *response) domain(q *QP) *mem.PD {
	if e.pd != nil {
		return e.pd
	}
	return q.cfg.PD
}

package transport

import (
	"encoding/binary"
	"errors"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// The memory placement extensions of annex A19: FLUSH and ATOMIC WRITE, at the responder. Both are answered like a
// READ of no bytes.

// flushUnderWay is a FLUSH whose data are on the way to a file. The requests behind it wait: they must not be executed
// before it, and their peer repeats those for which there is no room.
type flushUnderWay struct {
	flush   *Flushing
	psn     wire.PSN // of the FLUSH
	dropped bool     // packets behind it were dropped, the last one with the PSN last
	last    wire.PSN
}

// Flushing is a FLUSH to storage that the caller of the QP is to carry out: see QP.TakeFlush.
type Flushing struct{ span mem.Span }

// Sync stores the data in their file. It may take as long as a disk does, so it is called without the QP's lock.
func (f *Flushing) Sync() error {
	err := f.span.Sync()
	f.span.Release()
	return err
}

// TakeFlush returns a FLUSH to storage that has come, once, or nil. The caller calls its Sync, in any goroutine, and then Flushed.
func (q *QP) TakeFlush() *Flushing {
	if !q.flushDue {
		return nil
	}
	q.flushDue = false
	return q.service.(*rc).responder.flushes.flush
}

// askFlush has the caller carry out the FLUSH to storage that is under way.
func (q *QP) askFlush() { q.flushDue = true }

// Flushed tells the QP that Sync has returned err. A FLUSH of a QP that has been reset since changes nothing.
func (q *QP) Flushed(f *Flushing, err error) {
	r, ok := q.service.(*rc)
	if !ok || r.responder.flushes == nil || r.responder.flushes.flush != f {
		return
	}
	r.responder.flushed(err)
}

// flushAccess returns the rights that a FLUSH needs.
func flushAccess(p verbs.FlushPlacement) (need verbs.Access) {
	if p&verbs.FlushGlobal != 0 {
		need |= verbs.AccessFlushGlobal
	}
	if p&verbs.FlushPersistent != 0 {
		need |= verbs.AccessFlushPersistent
	}
	return need
}

// flush executes a FLUSH. Data are visible as soon as they are placed, so FLUSH_GLOBAL is done at once. Data go to their
// file without the QP's lock: until then the QP waits.
func (s *responder) flush(p *wire.Packet) *refusal {
	q := s.qp
	placement, selectivity := verbs.FlushPlacement(p.FETH.Placement), verbs.FlushSelectivity(p.FETH.Selectivity)
	need := flushAccess(placement)
	switch {
	case need == 0 || placement&^(verbs.FlushGlobal|verbs.FlushPersistent) != 0 || selectivity > verbs.FlushMR:
		return invalidRequest(verbs.ErrMalformed, "%v with placement %#x and selectivity %d", q.opcode(p), p.FETH.Placement, p.FETH.Selectivity)
	case q.attr.Access&need != need:
		return notAllowed(q.opcode(p), need&^q.attr.Access)
	case selectivity == verbs.FlushRange && p.RETH.Length > maxMessage:
		return invalidRequest(verbs.ErrMalformed, "%v of %d bytes: at most 2^31", q.opcode(p), p.RETH.Length)
	case s.responses.full() && s.reorder.peerSACKs:
		return s.tooMany()
	case s.responses.full():
		return later // Linux counts no FLUSH among the READs that a peer takes at a time
	}
	var span mem.Span
	var err error
	if selectivity == verbs.FlushMR {
		span, err = q.cfg.PD.OpenWhole(verbs.RKey(p.RETH.RKey), need)
	} else {
		span, err = q.cfg.PD.Open(verbs.RKey(p.RETH.RKey), q.cfg.QPN, p.RETH.VA, uint64(p.RETH.Length), need)
	}
	if err != nil {
		return accessError(err)
	}
	if placement&verbs.FlushPersistent == 0 {
		span.Release()
		s.placed(p.PSN)
		q.work.Flushes++
		return nil
	}
	s.flushes = &flushUnderWay{flush: &Flushing{span}, psn: p.PSN}
	q.askFlush()
	s.sackDue(p.PSN, false)
	return later
}

// flushed goes on behind a FLUSH to storage.
func (s *responder) flushed(err error) {
	q, f := s.qp, s.flushes
	s.flushes = nil
	if !q.receives() {
		return
	}
	if err != nil {
		s.reject(localError(err))
		return
	}
	q.work.Flushes++
	s.placed(f.psn)
	s.refused = false
	if s.reorder.n > 0 {
		if r := s.executeHeld(); r == later {
			return
		} else if r != nil {
			s.reject(r)
			return
		}
	}
	if f.dropped && q.receiver.epsn.LessEq(f.last) {
		s.outOfOrder(f.last)
	}
}

// waits takes a packet that is not before a FLUSH under way: it holds or drops the packet.
func (s *responder) waits(p *wire.Packet) {
	if p.PSN == s.flushes.psn {
		s.qp.counters.Duplicates++
		s.sackDue(p.PSN, false)
		return
	}
	if s.holdsOutOfOrder() && s.holdOutOfOrder(p) {
		return
	}
	s.qp.counters.OutOfOrder++
	if f := s.flushes; !f.dropped || f.last.Less(p.PSN) {
		f.dropped, f.last = true, p.PSN
	}
}

// atomicWrite executes an ATOMIC WRITE: its 8 bytes appear together, after all earlier requests.
func (s *responder) atomicWrite(p *wire.Packet) *refusal {
	q := s.qp
	switch {
	case q.attr.Access&verbs.AccessRemoteWrite == 0:
		return notAllowed(p.Opcode, verbs.AccessRemoteWrite)
	case p.RETH.Length != atomicLength || len(p.Payload) != atomicLength:
		return invalidRequest(verbs.ErrMalformed, "%v with %d bytes of %d: it has 8", p.Opcode, len(p.Payload), p.RETH.Length)
	case p.RETH.VA%atomicLength != 0:
		return invalidRequest(verbs.ErrMalformed, "%v at va %#x, which is not divisible by 8", p.Opcode, p.RETH.VA)
	case s.responses.full():
		return s.tooMany()
	}
	span, err := q.cfg.PD.Open(verbs.RKey(p.RETH.RKey), q.cfg.QPN, p.RETH.VA, atomicLength, verbs.AccessRemoteWrite)
	if err != nil {
		return accessError(err)
	}
	err = span.Store64(binary.NativeEndian.Uint64(p.Payload))
	span.Release()
	switch {
	case errors.Is(err, mem.ErrFault):
		return localError(err)
	case err != nil:
		return accessError(err)
	}
	q.work.AtomicWrites++
	s.placed(p.PSN)
	return nil
}

// placed answers a FLUSH or an ATOMIC WRITE, and moves on behind it.
func (s *responder) placed(psn wire.PSN) {
	s.responses.add(response{kind: emptyResponse, psn: psn, packets: 1})
	s.executedWithResponse(1)
}

// tooMany refuses a request because too many before it are not answered.
func (s *responder) tooMany() *refusal {
	return invalidRequest(verbs.ErrLimit, "more READs, atomics and ATOMIC WRITEs at a time than MAX_DEST_RD_ATOMIC, %d", s.qp.attr.MaxDestRDAtomic)
}

// later says that a request is not executed now, and changes nothing.
var later = &refusal{silent: true}

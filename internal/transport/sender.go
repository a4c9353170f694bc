package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/verbs"
)

// sender is the sending side of the services without acknowledgements, UC and UD. A work request is complete when its
// last packet is sent (IBTA C9-180), so only the oldest one can be under way.
type sender struct {
	qp   *QP
	sent uint64 // packets of the oldest work request
}

func (s *sender) reset() { s.sent = 0 }

// next returns the work request that has the next packet. It first executes the local operations before that one. It
// returns nil if nothing may go, or the turn is over.
func (s *sender) next() *sendWQE {
	q := s.qp
	for s.pending() {
		w := q.sq.at(q.sq.head)
		if !w.isLocal() {
			if q.spent() {
				return nil
			}
			return w
		}
		if f := q.executeLocal(w); f != nil {
			s.fail(f)
			return nil
		}
		s.done()
	}
	return nil
}

// wrote takes note that a packet of w was written, or failed. It returns the packet's length.
func (s *sender) wrote(w *sendWQE, n int, f *fault) int {
	if f != nil {
		s.fail(f)
		return 0
	}
	s.qp.spend(1)
	if s.sent++; s.sent == w.packets {
		s.done()
	}
	return n
}

func (s *sender) idle() bool { return s.qp.sq.head == s.qp.sq.tail }

// underway lets short messages wait for others. Long ones gain little, and only the receiver's speed bounds how many
// may come at once without loss.
func (s *sender) underway(limit uint64) bool {
	sq := &s.qp.sq
	return sq.head == sq.tail || sq.nextSeq-sq.at(sq.head).seq < limit && sq.at(sq.tail-1).length <= shortMessage
}

// pending reports whether the oldest work request may go on.
func (s *sender) pending() bool {
	q := s.qp
	if q.sq.head == q.sq.tail {
		return false
	}
	// While the queue drains, a message that was begun is finished.
	return q.attr.State == verbs.QPStateRTS || q.attr.State == verbs.QPStateSQD && s.sent > 0
}

// done completes the oldest work request.
func (s *sender) done() {
	s.sent = 0
	s.qp.completeSend(verbs.WCSuccess, nil)
	s.qp.reportDrained()
}

// fail completes the oldest work request with an error and takes the send queue alone to the error state. The peer
// never sees the end of a message that was begun, and drops it.
func (s *sender) fail(f *fault) {
	q := s.qp
	s.sent = 0
	q.attr.State = verbs.QPStateSQE
	q.completeSend(f.status, f.cause)
	q.flushSend()
}

// These methods are the same for UC and UD, and simple without acknowledgements.

func (s *sender) startReceiving()                 {}
func (s *sender) startSending()                   {}
func (s *sender) attributesChanged(time.Duration) {}
func (s *sender) nextTimeout() time.Duration      { return Never }
func (s *sender) handleTimeout(time.Duration)     {}
func (s *sender) drained() bool                   { return s.sent == 0 }
func (s *sender) abandon()                        {}
func (s *sender) stop()                           {}

// receives reports whether a QP of UC or UD takes packets in its state.
func (q *QP) receives() bool {
	switch q.attr.State {
	case verbs.QPStateRTR, verbs.QPStateRTS, verbs.QPStateSQD, verbs.QPStateSQE:
		return true
	}
	return false
}

// executeLocal executes a local operation.
func (q *QP) executeLocal(w *sendWQE) *fault {
	var err error
	if w.op == verbs.OpBindMW {
		err = mem.Bind(&w.cold.bind, q.cfg.QPN)
	} else {
		err = q.cfg.PD.Invalidate(w.invalidate, q.cfg.QPN)
	}
	if err != nil {
		return &fault{verbs.WCMWBindErr, err}
	}
	return nil
}

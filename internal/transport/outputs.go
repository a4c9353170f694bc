package transport

import (
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// outputs are the results that a QP keeps until its caller takes them.
type outputs struct {
	done        []queue.CQE
	events      []Event
	flushDue    bool // TakeFlush has one
	established bool
	// drainReported says, in SQD, that the event of the drained send queue was raised.
	drainReported bool
}

// Event is an asynchronous event of the QP. Cause is the error, if there was one.
type Event struct {
	Type  verbs.EventType
	Cause error
}

// keepCompletions is up to how many completions the memory for them is kept. A QP that was busy once should not hold
// memory for ever.
const keepCompletions = 256

// HasNews reports whether a caller that has seen a state has something to take: completions, events, or another
// state. In the error state it always says so.
func (q *QP) HasNews(seen verbs.QPState) bool {
	return len(q.done) > 0 || len(q.events) > 0 || q.flushDue || q.attr.State != seen || seen == verbs.QPStateErr
}

// Completions returns the completions that were made since the last call, in their order: those of the send queue
// and, with the bit of verbs.WCRecv in their opcode, those of receives. The slice holds until the next call of any
// method. If a completion has an error, State already is the state that the error led to.
func (q *QP) Completions() []queue.CQE {
	done := q.done
	if len(done) > keepCompletions {
		q.done = nil
	} else {
		q.done = done[:0]
	}
	return done
}

// Events returns the asynchronous events that were raised since the last call, in their order.
func (q *QP) Events() []Event {
	events := q.events
	q.events = nil
	return events
}

// Established reports whether a request of the peer has come since RTR.
func (q *QP) Established() bool { return q.established }

func (q *QP) raise(t verbs.EventType, cause error) { q.events = append(q.events, Event{t, cause}) }

// completeSend takes the oldest work request off the send queue and makes its completion. Unsignaled successes make
// none. Their places are freed with the next completion's.
func (q *QP) completeSend(status verbs.WCStatus, cause error) {
	w := q.sq.at(q.sq.head)
	q.sq.head++
	q.work.sendDone(w.op, status)
	if status == verbs.WCSuccess && w.flags&verbs.SendSignaled == 0 {
		return
	}
	q.done = append(q.done, queue.CQE{}) // and filled in its place: see QP.header
	c := &q.done[len(q.done)-1]
	c.WC.ID, c.WC.Status, c.WC.Op, c.WC.QPN, c.WC.QP, c.WC.Cause = w.id, status, queue.SendOpcode(w.op), q.cfg.QPN, q.cfg.User, cause
	c.Slots, c.Freed = q.sq.freed, q.sq.head
	if (w.op == verbs.OpRDMARead || w.isAtomic()) && status == verbs.WCSuccess {
		c.WC.ByteLen = w.length
	}
}

// completeRecv makes the completion of a receive. The caller fills in the other fields, before anything else is
// completed.
func (q *QP) completeRecv(r *queue.Recv, status verbs.WCStatus, op verbs.WCOpcode, solicited bool) *verbs.WC {
	q.work.recvDone(status)
	q.done = append(q.done, queue.CQE{}) // and filled in its place: see QP.header
	c := &q.done[len(q.done)-1]
	c.WC.ID, c.WC.Status, c.WC.Op, c.WC.QPN, c.WC.QP = r.ID, status, op, q.cfg.QPN, q.cfg.User
	c.Slots, c.Freed = q.cfg.Receives.Complete(r)
	c.Solicited = solicited
	return &c.WC
}

// IsQuiet reports whether an RC QP may send, has room for a work request, and nothing is posted or under way. A work
// request that is executed now is executed in its order.
func (q *QP) IsQuiet() bool {
	return q.sq.head == q.sq.tail && q.attr.State == verbs.QPStateRTS && q.cfg.Type == verbs.QPTypeRC && q.sq.full() == nil
}

// MayRead reports whether MAX_QP_RD_ATOMIC allows READs and atomics. If not, they fail when their turn comes.
func (q *QP) MayRead() bool { return q.attr.MaxRDAtomic > 0 }

// Complete makes the completion of a work request of length bytes, which the caller has executed itself. The QP is
// quiet. The peer does not learn of the work request, so it takes no PSN. With err, an error of memory at this end,
// the QP fails.
func (q *QP) Complete(wr *verbs.SendWR, length uint32, err error) {
	w := q.sq.at(q.sq.tail)
	w.id, w.op, w.flags, w.length = wr.ID, wr.Op, wr.Flags, length
	q.sq.tail++
	q.posted(w)
	q.service.(*rc).requester.skipPosted()
	if err != nil {
		q.fail(&fault{verbs.WCLocProtErr, err})
		return
	}
	q.completeSend(verbs.WCSuccess, nil)
}

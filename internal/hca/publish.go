package hca

import (
	"fmt"

	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// publish tells the program what the transport has done: first the state, so that who polls a failed
// completion does not find the QP in RTS; then completions, then events. The caller holds q.mu, and
// calls publish after every call of the transport that may have done something.
func (q *qp) publish() {
	state := q.t.State()
	if q.State() != state {
		q.state.Store(uint32(state))
	}
	if done := q.t.Completions(); len(done) > 0 {
		q.complete(done, state)
	}
	if state == verbs.QPStateErr {
		q.flushReceives()
	}
	for _, t := range q.t.Events() {
		q.raise(t)
	}
	if !q.commEst.seen && q.t.Established() {
		q.commEst.tell()
	}
}

// complete puts completions into the CQs of their queues.
func (q *qp) complete(done []queue.CQE, state verbs.QPState) {
	if state == verbs.QPStateErr {
		for i := range done {
			if wc := &done[i].WC; wc.Status == verbs.WCRetryExceeded {
				wc.Cause = q.explainLoss(wc.Cause)
			}
		}
	}
	if q.sendCQ == q.recvCQ {
		q.sendCQ.Push(done)
		return
	}
	for len(done) > 0 {
		isRecv := done[0].WC.Op&verbs.WCRecv != 0
		n := 1
		for n < len(done) && (done[n].WC.Op&verbs.WCRecv != 0) == isRecv {
			n++
		}
		if isRecv {
			q.recvCQ.Push(done[:n])
		} else {
			q.sendCQ.Push(done[:n])
		}
		done = done[n:]
	}
}

// flushReceives completes all posted receives of a QP that is in error with WCFlushErr. Those of an SRQ
// are everybody's: an event says that this QP takes no more.
func (q *qp) flushReceives() {
	if q.srq != nil {
		if !q.lastWQE {
			q.lastWQE = true
			q.raise(verbs.EventQPLastWQEReached)
		}
		return
	}
	var flushed []queue.CQE
	for w := q.rq.Take(); w != nil; w = q.rq.Take() {
		e := queue.CQE{WC: verbs.WC{ID: w.ID, Status: verbs.WCFlushErr, Op: verbs.WCRecv, QPN: q.QPN()}, Solicited: true}
		e.Slots, e.Freed = q.rq.Complete(w)
		flushed = append(flushed, e)
	}
	if len(flushed) > 0 {
		q.recvCQ.Push(flushed)
	}
}

// explainLoss adds to the cause of a timeout what the link knows.
func (q *qp) explainLoss(cause error) error {
	if q.out.eng == nil {
		return cause
	}
	if s := q.out.eng.link.Stats(); s.SendErrors > 0 {
		return fmt.Errorf("%w; %d datagrams could not be sent, the latest: %w", cause, s.SendErrors, s.LastSendError)
	}
	return cause
}

// raise raises an asynchronous event of the QP.
func (q *qp) raise(t verbs.EventType) {
	q.dev.events.Add(verbs.AsyncEvent{Type: t, QP: q.user})
}

// commEst tells a connection manager, once, that the peer's first request since RTR has come.
type commEst struct {
	notify func() // or nil
	seen   bool   // Established was seen, and notify called if there was one
}

// tell calls notify without q.mu, which the caller holds.
func (c *commEst) tell() {
	c.seen = true
	if f := c.notify; f != nil {
		c.notify = nil
		go f()
	}
}

// NotifyCommEst implements verbs.ProviderCommEst.
func (q *qp) NotifyCommEst(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.commEst.notify = f
	if q.t.Established() {
		q.commEst.tell()
	}
}

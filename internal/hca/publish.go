package hca

import (
	"fmt"

	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/verbs"
)

// publish tells the program of the transport's news: first the state, so that a program that polls a
// failed completion never sees the QP in RTS; then completions, then events. The caller holds q.mu, and
// calls publish after every call of the transport that may have news.
func (q *qp) publish() {
	if q.t.HasNews(q.State()) || q.t.Established() != q.commEst.seen {
		q.tell()
	}
}

// tell is publish for a transport that has news.
func (q *qp) tell() {
	state := q.t.State()
	if before := q.State(); before != state {
		q.tellState(before, state)
	}
	if done := q.t.Completions(); len(done) > 0 {
		q.complete(done, state)
	}
	if state == verbs.QPStateErr {
		q.flushReceives()
		q.failing.tell(q.dev, q.t.Failure())
	}
	if f := q.t.TakeFlush(); f != nil {
		q.dev.background(func() { q.flush(f) })
	}
	for _, e := range q.t.Events() {
		q.raise(e.Type, e.Cause)
	}
	if !q.commEst.seen && q.t.Established() {
		q.commEst.tell(q.dev)
	}
}

// tellState is tell for another state.
func (q *qp) tellState(before, state verbs.QPState) {
	q.receives.Enter(state)
	q.state.Store(uint32(state))
	if q.dev.config.Journal != nil {
		q.recordState(before, state)
	}
	q.logState(before, state)
	if state == verbs.QPStateErr || state == verbs.QPStateReset {
		q.lane.recall()
		q.lane.endDirect()
	}
}

// flush carries out a FLUSH of the peer to storage, which may take as long as a disk does.
func (q *qp) flush(f *transport.Flushing) {
	err := f.Sync()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.t.Flushed(f, err)
		q.transmit(q.dev.now())
	}
}

// complete puts completions into the CQs of their queues.
func (q *qp) complete(done []queue.CQE, state verbs.QPState) {
	for i := range done {
		if done[i].WC.Op&verbs.WCRecv != 0 {
			q.gather.delivered = true
			break
		}
	}
	if state == verbs.QPStateErr {
		for i := range done {
			if wc := &done[i].WC; wc.Status == verbs.WCRetryExceeded {
				wc.Cause = q.explainLoss(wc.Cause)
			}
		}
	}
	if q.dev.config.Journal != nil {
		q.recordDone(done)
	}
	if q.target != nil {
		q.completeXRC(done)
		return
	}
	queue.PushBoth(q.sendCQ.CQ.CQ, q.recvCQ.CQ.CQ, done)
}

// completeCarriedOut is publish for work requests that this end has carried out itself, by direct access: there
// are only completions of sends, and the state has not changed. The caller holds q.mu.
func (q *qp) completeCarriedOut() {
	if done := q.t.Completions(); len(done) > 0 {
		q.sendCQ.Push(done)
	}
}

// flushReceives completes the receives of a QP that is in error.
func (q *qp) flushReceives() { q.receives.Flush(q.QPN(), q.user, &q.recvCQ.CQ) }

// explainLoss adds the faults of the network interface and of the link to the cause of a timeout.
func (q *qp) explainLoss(cause error) error {
	if q.out.eng == nil {
		return cause
	}
	if fault := q.dev.port.fault(q.out.src.Addr()); fault != "" {
		cause = fmt.Errorf("%w; %s", cause, fault)
	}
	if s := q.out.eng.link.Stats(); s.SendErrors > 0 {
		return fmt.Errorf("%w; %d datagrams could not be sent, the latest: %w", cause, s.SendErrors, s.LastSendError)
	}
	return cause
}

// raise raises an asynchronous event of the QP.
func (q *qp) raise(t verbs.EventType, cause error) {
	for _, user := range q.users() {
		q.dev.Raise(verbs.AsyncEvent{Type: t, QP: user, Cause: cause})
	}
}

// commEst tells a connection manager, once, that the peer's first request since RTR has come.
type commEst struct {
	notify func() // or nil
	seen   bool   // Established was seen, and notify called if there was one
}

// tell calls notify without q.mu, which the caller holds.
func (c *commEst) tell(d *Device) {
	c.seen = true
	if f := c.notify; f != nil {
		c.notify = nil
		d.background(f)
	}
}

// isAsked reports whether a connection manager waits for the peer's first request: this end is then the passive side of
// the connection. The connection manager answers the peer before q sends, and so resolves the neighbor.
func (q *qp) isAsked() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.commEst.notify != nil
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
		q.commEst.tell(q.dev)
	}
}

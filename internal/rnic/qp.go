package rnic

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/idtable"
	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// qp is a queue pair: an iwarp.QP with its lock, its queues and its stream.
type qp struct {
	dev            *Device
	pd             *pd
	user           *verbs.QP
	num            uint32
	sendCQ, recvCQ *cq
	receives       device.Receives

	state atomic.Uint32 // of t, for those who do not hold mu

	mu      sync.Mutex
	t       *iwarp.QP
	s       *stream // or nil, before and after a connection
	closed  bool
	notify  func(error)
	commEst func()
	seen    bool // the peer's first FPDU
	bytes   octets
	looks   uint32         // polls that looked at the stream
	idle    idleTime       // for keep-alive
	logged  iwarp.Counters // as of the last Terminate message that was logged
}

var (
	_ verbs.ProviderQP        = (*qp)(nil)
	_ verbs.ProviderEnd       = (*qp)(nil)
	_ verbs.ProviderCommEst   = (*qp)(nil)
	_ verbs.ProviderKeepAlive = (*qp)(nil)
)

// CreateQP implements verbs.ProviderPD.
func (p *pd) CreateQP(attr *verbs.ProviderQPInitAttr, user *verbs.QP) (verbs.ProviderQP, error) {
	if err := queue.HoldsQP(attr.Cap); err != nil {
		return nil, err
	}
	q := &qp{dev: p.dev, pd: p, user: user, sendCQ: attr.SendCQ.(*cq), recvCQ: attr.RecvCQ.(*cq), receives: p.NewReceives(attr)}
	err := p.dev.qps.Add(q, func(n uint32) {
		q.num = n
		q.t = iwarp.New(iwarp.Config{QPN: verbs.QPN(n), User: user, Cap: attr.Cap, SignalAll: attr.SignalAll, PD: p.PD.PD, Receives: q.receives.Source()})
	})
	switch {
	case errors.Is(err, idtable.ErrFull):
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d QPs (max_qp)", limits.MaxQP)
	case err != nil:
		return nil, err
	}
	q.sendCQ.Attach(q)
	q.recvCQ.Attach(q)
	return q, nil
}

func (q *qp) QPN() verbs.QPN       { return verbs.QPN(q.num) }
func (q *qp) State() verbs.QPState { return verbs.QPState(q.state.Load()) }

// Query implements verbs.ProviderQP.
func (q *qp) Query() (verbs.QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.t.Attr(), nil
}

// Modify implements verbs.ProviderQP.
func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.ErrClosed
	}
	if err := q.t.Modify(attr, mask); err != nil {
		return err
	}
	if q.t.State() == verbs.QPStateReset {
		q.seen, q.idle = false, idleTime{}
		q.letGo()
	}
	q.pump()
	return nil
}

// enter takes note of another state.
func (q *qp) enter(state verbs.QPState) {
	q.receives.Enter(state)
	q.state.Store(uint32(state))
}

// PostSend implements verbs.ProviderQP.
func (q *qp) PostSend(wrs []verbs.SendWR) (n int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, verbs.ErrClosed
	}
	for n < len(wrs) && err == nil {
		if err = q.t.Post(&wrs[n]); err == nil {
			n++
		}
	}
	if n > 0 {
		q.pump()
	}
	return n, err
}

// SetRecvSource implements verbs.ProviderRecvSource.
func (q *qp) SetRecvSource(s verbs.RecvSource) { q.receives.SetSource(s) }

// PostRecv implements verbs.ProviderQP.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, state, err := q.receives.Post(wrs)
	switch state {
	case verbs.QPStateReset:
		if q.isClosed() {
			err = verbs.ErrClosed
		}
	case verbs.QPStateErr:
		q.mu.Lock()
		if q.t.State() == verbs.QPStateErr { // and not RESET by now
			q.flushReceives()
		}
		q.mu.Unlock()
	}
	return n, err
}

func (q *qp) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// AttachMcast implements verbs.ProviderQP.
func (q *qp) AttachMcast(verbs.GID) error { return errMulticast }

// DetachMcast implements verbs.ProviderQP.
func (q *qp) DetachMcast(verbs.GID) error { return errMulticast }

var errMulticast = verbs.Errorf(verbs.ErrUnsupported, "iWARP has no multicast: TCP connects two ends")

// Fail takes the QP to the error state.
func (q *qp) Fail(cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.t.Fail(cause)
		q.pump()
	}
}

// Close implements verbs.ProviderQP.
func (q *qp) Close() error {
	q.dev.retired.mu.Lock()
	q.dev.qps.Remove(q.num)
	q.mu.Lock()
	q.dev.retired.sum.add(q.tally())
	q.closed = true
	q.notify, q.commEst = nil, nil
	_ = q.t.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState)
	q.letGo()
	q.enter(verbs.QPStateReset)
	q.mu.Unlock()
	q.dev.retired.mu.Unlock()
	q.sendCQ.Detach(q)
	q.recvCQ.Detach(q)
	q.dev.DropQP(q.user)
	return nil
}

// publish shows the program the protocol's results: first the state, so that a program that polls a
// failed completion never sees the QP in RTS; then completions, then events. The caller holds q.mu.
func (q *qp) publish() {
	state := q.t.State()
	if before := q.State(); before != state {
		q.enter(state)
		q.dev.Log.State(q.QPN(), before, state, q.t.Failure())
	}
	q.logTerminates()
	if done := q.t.Completions(); len(done) > 0 {
		queue.PushBoth(q.sendCQ.CQ.CQ, q.recvCQ.CQ.CQ, done)
	}
	if state == verbs.QPStateErr {
		q.flushReceives()
		if f := q.notify; f != nil {
			q.notify = nil
			cause := q.t.Failure()
			go f(cause)
		}
	}
	for _, e := range q.t.Events() {
		q.dev.Raise(verbs.AsyncEvent{Type: e.Type, QP: q.user, Cause: e.Cause})
	}
	if !q.seen && q.t.Heard() {
		q.seen = true
		if q.s != nil {
			q.s.heard()
		}
		if f := q.commEst; f != nil {
			q.commEst = nil
			go f()
		}
	}
}

// flushReceives completes the receives of a QP that is in error.
func (q *qp) flushReceives() { q.receives.Flush(q.QPN(), q.user, &q.recvCQ.CQ) }

// NotifyError implements verbs.ProviderEnd.
func (q *qp) NotifyError(f func(cause error)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.notify = f
	q.publish()
}

// Err implements verbs.ProviderEnd.
func (q *qp) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.t.Failure()
}

// NotifyCommEst implements verbs.ProviderCommEst.
func (q *qp) NotifyCommEst(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.commEst = f
	if q.seen && f != nil {
		q.commEst = nil
		go f()
	}
}

// find returns the QP with a number.
func (d *Device) find(n verbs.QPN) (*qp, error) {
	q := d.qps.Get(uint32(n))
	if q == nil {
		return nil, verbs.Errorf(verbs.ErrNotFound, "the device has no QP %v", n)
	}
	return q, nil
}

// errGone is the error of a QP that was closed before its connection was made.
var errGone = fmt.Errorf("the QP was closed meanwhile: %w", verbs.ErrClosed)

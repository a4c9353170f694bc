//go:build linux && (amd64 || arm64)

package native

import (
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// qp is a queue pair.
type qp struct {
	d        *device
	user     *verbs.QP
	r        ibv.Ref[ibv.QP]
	qpn      verbs.QPN
	typ      verbs.QPType
	scq, rcq *cq           // nil for an XRC target
	state    atomic.Uint32 // as far as is known
	sq       sendQueue
	rq       recvQueue

	mu      sync.Mutex
	port    int // 0 before INIT
	groups  []group
	commEst func()
}

// CreateQP implements verbs.ProviderPD.
func (p *pd) CreateQP(a *verbs.ProviderQPInitAttr, user *verbs.QP) (verbs.ProviderQP, error) {
	d := p.d
	q := &qp{d: d, user: user, typ: a.Type, scq: a.SendCQ.(*cq), rcq: a.RecvCQ.(*cq)}
	init := ibv.QPInitAttr{SendCQ: q.scq.r, RecvCQ: q.rcq.r, QPType: uint32(a.Type), Cap: capOf(&a.Cap)}
	if a.SRQ != nil {
		init.SRQ = a.SRQ.(*srq).r
	}
	if a.Type == verbs.QPTypeXRCSend {
		init.RecvCQ = ibv.Ref[ibv.CQ]{} // it has no receives
	}
	if d.quirks.someWRs {
		init.Cap.MaxSendWR, init.Cap.MaxRecvWR = max(init.Cap.MaxSendWR, 1), max(init.Cap.MaxRecvWR, 1)
	}
	if a.SignalAll {
		init.SQSigAll = 1
	}
	d.closing.RLock()
	defer d.closing.RUnlock()
	var err error
	var ex ibv.QPEx
	if a.Type == verbs.QPTypeRC && d.ops.ops != 0 {
		q.r, ex, err = d.lib.CreateQPEx(p.r, &init, d.ops.ops)
	} else {
		q.r, err = d.lib.CreateQP(p.r, &init)
	}
	if err != nil {
		return nil, fault(err)
	}
	q.qpn = verbs.QPN(q.r.P().QPNum)
	q.sq.mem, err = ibv.NewSendQueue(q.r, ex, int(init.Cap.MaxSendSGE), int(init.Cap.MaxInlineData))
	if err == nil && a.SRQ == nil && a.Type != verbs.QPTypeXRCSend {
		q.rq.mem, err = ibv.NewRecvQueue(q.r, int(init.Cap.MaxRecvSGE))
	}
	if err != nil {
		q.sq.free()
		_ = d.lib.DestroyQP(q.r) // the first error is the one to tell
		return nil, fault(err)
	}
	q.rq.least = d.quirks.least(true)
	a.Cap = verbs.QPCap{MaxSendWR: int(init.Cap.MaxSendWR), MaxRecvWR: int(init.Cap.MaxRecvWR), MaxSendSGE: int(init.Cap.MaxSendSGE),
		MaxRecvSGE: int(init.Cap.MaxRecvSGE), MaxInlineData: int(init.Cap.MaxInlineData)}
	d.qpns.put(uint32(q.qpn), q)
	d.qps.put(q.r, q)
	return q, nil
}

// capOf is the capacities of a QP as C has them.
func capOf(c *verbs.QPCap) ibv.QPCap {
	return ibv.QPCap{MaxSendWR: uint32(c.MaxSendWR), MaxRecvWR: uint32(c.MaxRecvWR), MaxSendSGE: uint32(c.MaxSendSGE),
		MaxRecvSGE: uint32(c.MaxRecvSGE), MaxInlineData: uint32(c.MaxInlineData)}
}

// QPN implements verbs.ProviderQP.
func (q *qp) QPN() verbs.QPN { return q.qpn }

// State implements verbs.ProviderQP. A target's is asked for: other handles of it change it, those of other processes too.
func (q *qp) State() verbs.QPState {
	known := q.known()
	if q.typ == verbs.QPTypeXRCRecv && known != verbs.QPStateClosed {
		if a, err := q.d.lib.QueryQP(q.r, uint32(verbs.MaskState)); err == nil {
			return verbs.QPState(a.QPState)
		}
	}
	return known
}

// known is the state as far as is known.
func (q *qp) known() verbs.QPState { return verbs.QPState(q.state.Load()) }

// failed notes the state that a failed completion has taken the QP to. An RC or XRC QP is in ERR behind every failure. Of others
// a failed send stops the send queue alone, and the opcode of a failed completion does not count, so the device is asked.
func (q *qp) failed(c *cq, wc *verbs.WC) {
	switch now := q.known(); {
	case now == verbs.QPStateReset, now == verbs.QPStateErr:
	case q.typ != verbs.QPTypeUC && q.typ != verbs.QPTypeUD:
		q.moved(now, verbs.QPStateErr)
	default:
		to := verbs.QPStateErr
		if q.scq != q.rcq && c == q.scq || q.scq == q.rcq && wc.Op < verbs.WCRecv {
			to = verbs.QPStateSQE
		}
		// The driver may make the completion before it changes the state, so a state that works does not count.
		if a, err := q.d.lib.QueryQP(q.r, uint32(verbs.MaskState)); err == nil && verbs.QPState(a.QPState) >= verbs.QPStateSQE {
			to = verbs.QPState(a.QPState)
		}
		q.moved(now, to)
	}
}

// served notes that the kernel has taken an iWARP QP to RTS. It does so as it connects the QP, and the peer's data may come
// before the event that tells of it. The device is not asked: siw tells the state of no QP.
func (q *qp) served() { q.moved(verbs.QPStateInit, verbs.QPStateRTS) }

// moved notes a change of the state, unless another came first.
func (q *qp) moved(from, to verbs.QPState) { q.state.CompareAndSwap(uint32(from), uint32(to)) }

// Modify implements verbs.ProviderQP.
func (q *qp) Modify(a *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	port := q.port
	if mask&verbs.MaskPort != 0 {
		port = a.Port
	}
	c := ibv.QPAttr{
		QPState: uint32(a.State), CurQPState: uint32(a.CurState), PathMTU: uint32(a.PathMTU), PathMigState: uint32(a.PathMigState),
		QKey: uint32(a.QKey), RQPSN: uint32(a.RQPSN), SQPSN: uint32(a.SQPSN), DestQPNum: uint32(a.DestQPN), QPAccessFlags: uint32(a.Access),
		PKeyIndex: uint16(a.PKeyIndex), AltPKeyIndex: uint16(a.AltPKeyIndex), MaxRDAtomic: uint8(min(a.MaxRDAtomic, maxAtATime)), MaxDestRDAtomic: uint8(min(a.MaxDestRDAtomic, maxAtATime)),
		MinRNRTimer: a.MinRNRTimer, PortNum: uint8(a.Port), Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry,
		AltPortNum: uint8(a.AltPort), AltTimeout: a.AltTimeout, RateLimit: a.RateLimit,
		Cap: capOf(&a.Cap),
	}
	if a.EnSQDAsyncNotify {
		c.EnSQDAsyncNotify = 1
	}
	if mask&verbs.MaskPKeyIndex != 0 && (a.PKeyIndex < 0 || a.PKeyIndex > maxPKeyIndex) {
		return verbs.Errorf(verbs.ErrNotFound, "P_Key index %d: the verbs have 0 to %d", a.PKeyIndex, maxPKeyIndex)
	}
	var err error
	if mask&verbs.MaskAV != 0 {
		if c.AHAttr, err = pathOf(&a.AH, pathPort(a.AH.Port, port)); err != nil {
			return err
		}
	}
	if mask&verbs.MaskAltPath != 0 {
		if c.AltAHAttr, err = pathOf(&a.AltAH, pathPort(a.AltAH.Port, a.AltPort)); err != nil {
			return err
		}
	}
	from := q.known()
	if mask&verbs.MaskState != 0 && a.State == verbs.QPStateReset {
		q.keepCompletions()
	}
	if err := q.d.lib.ModifyQP(q.r, c, uint32(mask)); err != nil {
		return fault(err)
	}
	q.port = port
	switch {
	case mask&verbs.MaskState == 0:
	case a.State == verbs.QPStateReset, a.State == verbs.QPStateErr:
		q.state.Store(uint32(a.State))
	default:
		q.moved(from, a.State)
	}
	return nil
}

// pathPort is the port of a path: its own, or the QP's.
func pathPort(own, qps int) int {
	if own != 0 {
		return own
	}
	return max(qps, 1)
}

// keepCompletions takes the QP's completions out of C's hands.
func (q *qp) keepCompletions() {
	if q.typ == verbs.QPTypeXRCRecv {
		q.d.keepXRC()
		return
	}
	q.scq.keep()
	if q.rcq != q.scq {
		q.rcq.keep()
	}
}

// allAttributes asks a query for everything.
const allAttributes = 1<<21 - 1

// Query implements verbs.ProviderQP.
func (q *qp) Query() (verbs.QPAttr, error) {
	c, err := q.d.lib.QueryQP(q.r, allAttributes)
	if err != nil {
		return verbs.QPAttr{}, fault(err)
	}
	if q.d.quirks.noState && c.QPState == uint32(verbs.QPStateReset) {
		c.QPState = q.state.Load()
	}
	return verbs.QPAttr{
		State: verbs.QPState(c.QPState), CurState: verbs.QPState(c.CurQPState), PathMTU: verbs.MTU(c.PathMTU), PathMigState: verbs.MigState(c.PathMigState),
		QKey: verbs.QKey(c.QKey), RQPSN: verbs.PSN(c.RQPSN), SQPSN: verbs.PSN(c.SQPSN), DestQPN: verbs.QPN(c.DestQPNum), Access: verbs.Access(c.QPAccessFlags),
		AH: pathFrom(&c.AHAttr), AltAH: pathFrom(&c.AltAHAttr), PKeyIndex: int(c.PKeyIndex), AltPKeyIndex: int(c.AltPKeyIndex),
		SQDraining: c.SQDraining != 0, MaxRDAtomic: int(c.MaxRDAtomic), MaxDestRDAtomic: int(c.MaxDestRDAtomic),
		MinRNRTimer: c.MinRNRTimer, Port: int(c.PortNum), Timeout: c.Timeout, RetryCnt: c.RetryCnt, RNRRetry: c.RNRRetry,
		AltPort: int(c.AltPortNum), AltTimeout: c.AltTimeout, RateLimit: c.RateLimit,
	}, nil
}

// PostRecv implements verbs.ProviderQP.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if s := q.known(); s == verbs.QPStateReset && len(wrs) > 0 {
		return 0, verbs.Errorf(verbs.ErrState, "the QP is in %v: it takes receives from INIT on", s)
	}
	if err := q.d.usable(); err != nil {
		return 0, err
	}
	n, err := q.rq.post(wrs)
	if n > 0 && q.d.quirks.flushLate && q.known() == verbs.QPStateErr {
		// It may have failed since: a flush that is not needed does no harm.
		_ = q.d.lib.ModifyQP(q.r, ibv.QPAttr{QPState: uint32(verbs.QPStateErr)}, uint32(verbs.MaskState))
	}
	return n, err
}

// NotifyCommEst implements verbs.ProviderCommEst.
func (q *qp) NotifyCommEst(f func()) {
	q.mu.Lock()
	q.commEst = f
	q.mu.Unlock()
}

// happened takes an event of the QP, and reports whether somebody has asked for it by a call.
func (q *qp) happened(t verbs.EventType) bool {
	switch t {
	case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr:
		q.moved(q.known(), verbs.QPStateErr)
	case verbs.EventCommEst:
		q.mu.Lock()
		f := q.commEst
		q.commEst = nil
		q.mu.Unlock()
		if f != nil {
			go f()
			return true
		}
	}
	return false
}

// Close implements verbs.ProviderQP.
func (q *qp) Close() error {
	q.mu.Lock()
	attached := len(q.groups)
	q.mu.Unlock()
	if attached > 0 {
		return verbs.Errorf(verbs.ErrBusy, "attached to %d multicast groups: detach it first", attached)
	}
	d := q.d
	d.qps.remove(q.r) // before C may give the address to another
	d.closing.Lock()
	defer d.closing.Unlock()
	q.sq.mu.Lock()
	defer q.sq.mu.Unlock()
	q.rq.mu.Lock()
	defer q.rq.mu.Unlock()
	q.keepCompletions()
	if err := d.destroyed(d.lib.DestroyQP(q.r)); err != nil {
		d.qps.put(q.r, q)
		return fault(err)
	}
	q.keepCompletions() // those that came in between
	if q.typ == verbs.QPTypeXRCRecv {
		d.targets.closed(&d.qpns, q)
	} else {
		d.qpns.remove(uint32(q.qpn), q)
	}
	q.state.Store(uint32(verbs.QPStateClosed))
	q.sq.close()
	q.rq.close()
	d.events.Drop(func(e verbs.AsyncEvent) bool { return e.QP == q.user })
	return nil
}

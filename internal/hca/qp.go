package hca

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// qp is a queue pair: a transport.QP with its lock, its address and its queues.
type qp struct {
	dev            *Device
	pd             *pd
	user           *verbs.QP
	typ            verbs.QPType
	num            uint32
	cap            verbs.QPCap
	sendCQ, recvCQ *cq
	rq             recvQueue
	srq            *srq          // in place of rq, or nil
	state          atomic.Uint32 // of t, for those who do not hold mu

	timer qpTimer // timers.mu guards it

	mu      sync.Mutex
	t       *transport.QP
	closed  bool
	polled  *atomic.Uint64 // send queue places freed by polling; anew after each RESET
	timerAt int64          // ns; when the timers call at the latest, never if they do not
	waiting bool           // among the engine's pending

	// The path, from RTR on.
	eng          *engine
	src, dst     netip.AddrPort
	flow         wire.Flow
	trafficClass uint8

	// The peer's first request since RTR.
	established bool
	commEst     func() // told of it once, or nil

	// UD: the way of the latest datagram, and the Q_Key of those that come.
	lastAH *ah
	qkey   verbs.QKey

	// SRQ: receives that the transport has taken and not completed.
	taken []*transport.RecvWQE

	// The way in.
	heardFrom netip.AddrPort
	inbound   wire.Flow // from heardFrom
	ids       ids
}

var (
	_ verbs.ProviderQP = (*qp)(nil)
	_ transport.Host   = (*qp)(nil)
)

// CreateQP implements verbs.ProviderPD.
func (p *pd) CreateQP(attr *verbs.ProviderQPInitAttr, user *verbs.QP) (verbs.ProviderQP, error) {
	q := p.newQP(attr, user)
	err := p.dev.qps.add(q, func(n uint32) { q.number(n, attr) })
	switch {
	case errors.Is(err, errFull):
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d QPs (max_qp)", maxQP)
	case err != nil:
		return nil, err
	}
	q.sendCQ.attach(q)
	q.recvCQ.attach(q)
	return q, nil
}

// newQP makes a QP that has no number yet.
func (p *pd) newQP(attr *verbs.ProviderQPInitAttr, user *verbs.QP) *qp {
	attr.Cap.MaxSendWR = ringSize(attr.Cap.MaxSendWR)
	attr.Cap.MaxSendSGE = max(1, attr.Cap.MaxSendSGE)
	q := &qp{
		dev: p.dev, pd: p, user: user, typ: attr.Type,
		sendCQ: attr.SendCQ.(*cq), recvCQ: attr.RecvCQ.(*cq),
		polled: new(atomic.Uint64), timerAt: never,
	}
	if attr.SRQ != nil {
		q.srq = attr.SRQ.(*srq)
	} else {
		attr.Cap.MaxRecvWR = ringSize(attr.Cap.MaxRecvWR)
		attr.Cap.MaxRecvSGE = max(1, attr.Cap.MaxRecvSGE)
	}
	q.cap, q.rq = attr.Cap, newRecvQueue(attr.Cap)
	q.timer.place = -1
	return q
}

func (q *qp) number(n uint32, attr *verbs.ProviderQPInitAttr) {
	q.num = n
	q.t = transport.New(q, transport.Config{Type: attr.Type, QPN: verbs.QPN(n), Cap: attr.Cap, SignalAll: attr.SignalAll, Turn: turnPackets})
}

// ringSize is the next power of two.
func ringSize(n int) int {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len(uint(n-1))
}

func (q *qp) QPN() verbs.QPN       { return verbs.QPN(q.num) }
func (q *qp) State() verbs.QPState { return verbs.QPState(q.state.Load()) }

// updateState publishes the transport's state. The caller holds q.mu.
func (q *qp) updateState() { q.state.Store(uint32(q.t.State())) }

// announce publishes the error state before a completion that tells of it: who has polled that
// does not find the QP in RTS.
func (q *qp) announce(wc *verbs.WC) {
	if wc.Status != verbs.WCSuccess {
		q.updateState()
	}
}

// Query implements verbs.ProviderQP.
func (q *qp) Query() (verbs.QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.t.Attr(), nil
}

// Counters returns what went otherwise than planned.
func (q *qp) Counters() transport.Counters {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.t.Counters()
}

// Modify implements verbs.ProviderQP.
func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	from := q.t.State()
	to, err := verbs.CheckModify(q.typ, from, attr, mask)
	if err != nil {
		return err
	}
	if mask&verbs.MaskPKeyIndex != 0 && attr.PKeyIndex != 0 {
		return verbs.Errorf(verbs.ErrInvalid, "PKEY_INDEX %d: the table has one entry, 0", attr.PKeyIndex)
	}
	if q.num == gsiQPN && mask&verbs.MaskQKey != 0 && attr.QKey != verbs.GSIQKey {
		return verbs.Errorf(verbs.ErrInvalid, "QKEY %v: that of QP1 is always %v", attr.QKey, verbs.GSIQKey)
	}
	if mask&verbs.MaskAltPath != 0 {
		return verbs.Errorf(verbs.ErrUnsupported, "ALT_PATH: RoCE has no automatic path migration")
	}
	if mask&verbs.MaskPathMTU != 0 {
		if port := q.dev.port.query(); attr.PathMTU > port.ActiveMTU {
			return verbs.Errorf(verbs.ErrInvalid, "PATH_MTU %v is above the port's active MTU, %v: "+
				"raise the MTU of network interface %s or use a smaller path MTU", attr.PathMTU, port.ActiveMTU, q.dev.netdev.Name())
		}
	}
	var p path
	if mask&verbs.MaskAV != 0 {
		if p, err = q.dev.resolve(&attr.AH, false); err != nil {
			return err
		}
	}
	if q.typ == verbs.QPTypeUD && to == verbs.QPStateRTR {
		if err := q.listen(); err != nil {
			return err
		}
	}
	now := q.dev.now()
	if err := q.t.Modify(now, attr, mask); err != nil {
		return err
	}
	if mask&verbs.MaskAV != 0 {
		q.setPath(p)
	}
	if mask&verbs.MaskQKey != 0 {
		q.qkey = attr.QKey
	}
	if to == verbs.QPStateReset {
		q.giveReceivesBack()
		q.rq.reset()
		q.polled = new(atomic.Uint64)
		q.clearPath()
		q.established = false
	}
	q.updateState()
	q.transmit(now)
	return nil
}

// path is where an address handle leads.
type path struct {
	eng          *engine
	dst          netip.AddrPort
	trafficClass uint8
}

// resolve finds the way to a peer or, if that is allowed, to a multicast group.
func (d *Device) resolve(ah *verbs.AHAttr, multicast bool) (path, error) {
	local, err := d.port.addr(ah.SGIDIndex)
	if err != nil {
		return path{}, err
	}
	peer := ah.DGID.Addr()
	if peer.Is4() != local.Is4() {
		return path{}, verbs.Errorf(verbs.ErrInvalid, "AV: the peer's GID %v and ours, %v at index %d, are of different IP versions: "+
			"choose another GID index", ah.DGID, verbs.GIDFromAddr(local), ah.SGIDIndex)
	}
	if peer.IsUnspecified() || peer.IsMulticast() && !multicast {
		return path{}, verbs.Errorf(verbs.ErrInvalid, "AV: the peer's GID %v is no single host's address", ah.DGID)
	}
	e, err := d.engine(local)
	if err != nil {
		return path{}, err
	}
	return path{eng: e, dst: netip.AddrPortFrom(peer, link.Port), trafficClass: ah.TrafficClass}, nil
}

func (q *qp) setPath(p path) {
	if q.eng != nil && q.eng != p.eng {
		q.clearPath()
	}
	q.route(p)
	q.heardFrom, q.ids = netip.AddrPort{}, ids{}
}

// route makes what q sends go by p.
func (q *qp) route(p path) {
	q.eng, q.dst, q.trafficClass = p.eng, p.dst, p.trafficClass
	q.src = p.eng.link.Source(q.num)
	q.flow = wire.NewFlow(q.src, q.dst)
}

func (q *qp) clearPath() {
	if q.eng == nil {
		return
	}
	q.eng.timers.remove(q)
	q.timerAt = never
	q.eng, q.lastAH = nil, nil
}

// PostSend implements verbs.ProviderQP.
func (q *qp) PostSend(wrs []verbs.SendWR) (n int, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, verbs.ErrClosed
	}
	q.t.Polled(q.polled.Load())
	for n = range wrs {
		if q.typ == verbs.QPTypeUD {
			if err = q.checkDatagram(&wrs[n]); err != nil {
				break
			}
		}
		if err = q.t.Post(&wrs[n]); err != nil {
			break
		}
	}
	if err == nil {
		n = len(wrs)
	}
	if n > 0 {
		q.transmit(q.dev.now())
	}
	return n, err
}

// checkDatagram refuses a datagram that the port's MTU does not take.
func (q *qp) checkDatagram(wr *verbs.SendWR) error {
	n := len(wr.InlineData)
	if wr.InlineData == nil {
		for i := range wr.SGList {
			n += int(wr.SGList[i].Length)
		}
	}
	if mtu := q.dev.port.query().ActiveMTU; n > mtu.Bytes() {
		return verbs.Errorf(verbs.ErrLimit, "a datagram of %d bytes: the port's active MTU is %d, and UD messages are single packets; "+
			"send less, use RC, or raise the MTU of network interface %s", n, mtu.Bytes(), q.dev.netdev.Name())
	}
	return nil
}

// PostRecv implements verbs.ProviderQP.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if q.srq != nil {
		return 0, verbs.Errorf(verbs.ErrInvalid, "the QP takes its receives from an SRQ: post them there")
	}
	switch q.State() {
	case verbs.QPStateReset:
		if q.isClosed() {
			return 0, verbs.ErrClosed
		}
		return 0, verbs.Errorf(verbs.ErrState, "the QP is in QPS_RESET: receives can be posted from INIT on") // IBTA C10-97.2.1
	}
	n, err := q.rq.post(wrs)
	if q.State() == verbs.QPStateErr {
		q.mu.Lock()
		if q.t.State() == verbs.QPStateErr { // and not RESET by now
			q.FlushRecv()
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

// fail takes the QP to the error state.
func (q *qp) fail() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.t.Fail()
		q.updateState()
	}
}

// Close implements verbs.ProviderQP.
func (q *qp) Close() error {
	if q.dev.groups.attached(q) {
		return verbs.Errorf(verbs.ErrBusy, "it is attached to a multicast group: detach it first") // IBTA o10-2.2.3
	}
	if q.num == gsiQPN {
		q.dev.gsi.close()
	} else {
		q.dev.qps.remove(q.num)
	}
	q.mu.Lock()
	q.closed = true
	q.commEst = nil
	q.clearPath()
	q.giveReceivesBack()
	q.t.Modify(0, &verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState)
	q.updateState()
	q.mu.Unlock()
	q.sendCQ.detach(q)
	q.recvCQ.detach(q)
	q.dev.events.drop(func(e verbs.AsyncEvent) bool { return e.QP == q.user })
	return nil
}

// NextRecv implements transport.Host.
func (q *qp) NextRecv() *transport.RecvWQE {
	if q.srq == nil {
		return q.rq.take()
	}
	w := q.srq.take()
	if w != nil {
		q.taken = append(q.taken, w)
	}
	return w
}

// giveReceivesBack returns to the SRQ what a QP that goes to RESET has taken of it.
func (q *qp) giveReceivesBack() {
	for _, w := range q.taken {
		q.srq.putBack(w)
	}
	q.taken = q.taken[:0]
}

// RecvCredits implements transport.Host.
func (q *qp) RecvCredits() int {
	if q.srq != nil {
		return -1
	}
	return q.rq.waiting()
}

// CompleteRecv implements transport.Host.
func (q *qp) CompleteRecv(w *transport.RecvWQE, wc verbs.WC, solicited bool) {
	q.announce(&wc)
	if q.srq == nil {
		q.recvCQ.push(wc, q.rq.freed, w.Index+1, solicited)
		return
	}
	q.taken = slices.DeleteFunc(q.taken, func(t *transport.RecvWQE) bool { return t == w })
	q.srq.release(w)
	q.recvCQ.push(wc, nil, 0, solicited)
}

// FlushRecv implements transport.Host. It publishes the error state first: a receive that is
// posted too late for the flush is then flushed by PostRecv.
func (q *qp) FlushRecv() {
	q.state.Store(uint32(verbs.QPStateErr))
	if q.srq != nil {
		// The receives of an SRQ are everybody's. The event says that this QP takes no more.
		q.Event(verbs.EventQPLastWQEReached)
		return
	}
	for w := q.rq.take(); w != nil; w = q.rq.take() {
		q.CompleteRecv(w, verbs.WC{ID: w.ID, Status: verbs.WCFlushErr, Op: verbs.WCRecv, QPN: q.QPN()}, true)
	}
}

// CompleteSend implements transport.Host.
func (q *qp) CompleteSend(wc verbs.WC, freed uint64) {
	if wc.Status == verbs.WCRetryExceeded {
		wc.Cause = q.explainLoss(wc.Cause)
	}
	q.announce(&wc)
	q.sendCQ.push(wc, q.polled, freed, false)
}

// explainLoss adds to the cause of a timeout what the link knows.
func (q *qp) explainLoss(cause error) error {
	if q.eng == nil {
		return cause
	}
	if s := q.eng.link.Stats(); s.SendErrors > 0 {
		return fmt.Errorf("%w; %d datagrams could not be sent, the latest: %w", cause, s.SendErrors, s.LastSendError)
	}
	return cause
}

// Event implements transport.Host.
func (q *qp) Event(t verbs.EventType) {
	q.dev.events.add(verbs.AsyncEvent{Type: t, QP: q.user})
}

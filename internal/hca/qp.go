package hca

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/device"
	"github.com/adverb-rdma/adverb/internal/idtable"
	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/peer"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/verbs"
)

// qp is a queue pair: a transport.QP with its lock, its queues and its way through the network.
type qp struct {
	dev   *Device
	shard *shard
	pd    *pd
	user  *verbs.QP
	typ   verbs.QPType
	num   uint32

	sendCQ, recvCQ *cq
	receives       device.Receives
	target         *xrcDomain    // of an XRC target
	state          atomic.Uint32 // of t, for those who do not hold mu: see publish

	mu        sync.Mutex
	closed    bool
	migrating bool // on InfiniBand: path migration is REARM or ARMED
	t         *transport.QP
	schedule
	gather  gather
	out     outbound
	peer    peer.Peer
	commEst commEst
	failing failing
	traffic traffic
	lane    lane
	protection
}

// schedule says when the engine serves a QP next. The QP's lock guards it, but for timer.
type schedule struct {
	timer   qpTimer // the place among the timers; timers.mu guards it
	timerAt int64   // ns; when the timers call at the latest, never if they do not
	queued  bool    // for another turn
}

func newSchedule() schedule { return schedule{timer: qpTimer{place: -1}, timerAt: never} }

var (
	_ verbs.ProviderQP      = (*qp)(nil)
	_ verbs.ProviderCommEst = (*qp)(nil)
	_ verbs.ProviderEnd     = (*qp)(nil)

	_ verbs.ProviderKeepAlive  = (*qp)(nil)
	_ verbs.ProviderSelective  = (*qp)(nil)
	_ verbs.ProviderCongestion = (*qp)(nil)
	_ verbs.ProviderRouting    = (*qp)(nil)
	_ verbs.ProviderCarrier    = (*qp)(nil)
)

// CreateQP implements verbs.ProviderPD.
func (p *pd) CreateQP(attr *verbs.ProviderQPInitAttr, user *verbs.QP) (verbs.ProviderQP, error) {
	if err := queue.HoldsQP(attr.Cap); err != nil {
		return nil, err
	}
	if !limits.Take(&p.dev.qpCount, limits.MaxQP) {
		return nil, numberError(idtable.ErrFull)
	}
	q := p.newQP(attr, user)
	if err := q.shard.qps.Add(q, func(n uint32) { q.number(n, attr) }); err != nil {
		p.dev.qpCount.Add(-1)
		return nil, numberError(err)
	}
	q.sendCQ.attach(q)
	q.recvCQ.attach(q)
	return q, nil
}

// numberError says why there is no QPN.
func numberError(err error) error {
	switch {
	case errors.Is(err, idtable.ErrFull):
		return verbs.Errorf(verbs.ErrLimit, "the device has its %d QPs (max_qp)", limits.MaxQP)
	case errors.Is(err, idtable.ErrNoBlock):
		return verbs.Errorf(verbs.ErrLimit, "all blocks of 4096 QPNs of this host have owners (as root, ss -xap shows whose: "+
			"their sockets are @adverb/qpn/…): end some programs, or use a network namespace of your own")
	}
	return err
}

// newQP makes a QP that has no number yet.
func (p *pd) newQP(attr *verbs.ProviderQPInitAttr, user *verbs.QP) *qp {
	q := &qp{dev: p.dev, pd: p, user: user, typ: attr.Type, receives: p.NewReceives(attr), schedule: newSchedule()}
	q.sendCQ, q.recvCQ = attr.SendCQ.(*cq), attr.RecvCQ.(*cq)
	q.shard = p.dev.shardFor(q.typ, q.sendCQ, q.recvCQ)
	return q
}

// heldBuffers are the buffers of packets that came ahead of missing ones.
var heldBuffers = sync.Pool{New: func() any { return new([transport.MaxDatagram]byte) }}

func (q *qp) number(n uint32, attr *verbs.ProviderQPInitAttr) {
	q.num = n
	c := transport.Config{
		Type: attr.Type, QPN: verbs.QPN(n), Cap: attr.Cap, SignalAll: attr.SignalAll, Turn: turnPackets, User: q.user,
		PD: q.pd.PD.PD, Receives: q.receives.Source(), Buffers: &heldBuffers, Standard: q.dev.config.Standard,
		Shown: len(q.dev.config.Middleware) > 0, Control: q.dev.config.Congestion, Routing: q.dev.config.Routing,
		LineRate: q.dev.port.bytesPerSecond(),
	}
	if x := q.receives.XRC(); x != nil {
		c.XRC = x
	}
	q.t = transport.New(c)
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
	var p path
	if mask&verbs.MaskAV != 0 {
		var err error
		if p, err = q.dev.resolve(q.shard, &attr.AH, false); err != nil {
			return err
		}
		if q.typ == verbs.QPTypeUC && !q.isAsked() {
			q.dev.meet(p)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.ErrClosed
	}
	q.endWait()
	to := q.t.State()
	if mask&verbs.MaskState != 0 {
		to = attr.State
	}
	if mask&verbs.MaskPKeyIndex != 0 && attr.PKeyIndex != 0 {
		if err := q.dev.port.checkPKey(attr.PKeyIndex); err != nil {
			return err
		}
	}
	if q.num == gsiQPN && mask&verbs.MaskQKey != 0 && attr.QKey != verbs.GSIQKey {
		return verbs.Errorf(verbs.ErrInvalid, "QKEY %v: that of QP1 is always %v", attr.QKey, verbs.GSIQKey)
	}
	var alternate *path
	if mask&verbs.MaskAltPath != 0 {
		var err error
		if alternate, err = q.dev.loadAlternate(q.shard, attr); err != nil {
			return err
		}
	}
	migrates := false
	if mask&verbs.MaskPathMigState != 0 {
		if err := q.checkMigState(attr, alternate != nil); err != nil {
			return err
		}
		if migrates = attr.PathMigState == verbs.MigMigrated && q.t.Attr().PathMigState == verbs.MigArmed; migrates {
			mask &^= verbs.MaskPathMigState // Migrate sets it
		}
	}
	if mask&verbs.MaskPathMTU != 0 {
		if port := q.dev.port.query(); attr.PathMTU > port.ActiveMTU {
			return verbs.Errorf(verbs.ErrInvalid, "PATH_MTU %v is above the port's active MTU, %v: "+
				"raise the MTU of network interface %s or use a smaller path MTU", attr.PathMTU, port.ActiveMTU, q.dev.Netdev.Name())
		}
	}
	if mask&verbs.MaskPathMTU != 0 {
		if err := q.checkSecuredMTU(attr.PathMTU); err != nil {
			return err
		}
	}
	if q.typ == verbs.QPTypeUD && to == verbs.QPStateRTR {
		if err := q.listen(); err != nil {
			return err
		}
	}
	now := q.dev.now()
	q.lane.endDirect() // access was granted by the attributes as they were
	if err := q.t.Modify(now, attr, mask); err != nil {
		return err
	}
	if mask&verbs.MaskAV != 0 {
		q.setPath(p)
	}
	if alternate != nil {
		q.out.ib.alt = alternate
	}
	if mask&verbs.MaskPathMigState != 0 {
		if q.migrating = attr.PathMigState == verbs.MigRearm; q.migrating {
			q.out.ib.refused = false
		}
	}
	if migrates {
		q.t.Migrate(now)
		q.takeAlternate()
	}
	if to == verbs.QPStateRTR {
		q.beginSecurity()
	}
	if to == verbs.QPStateReset {
		q.forgetSecurity()
		q.clearPath()
		q.commEst.seen, q.migrating = false, false
	}
	q.transmit(now)
	return nil
}

// PostSend implements verbs.ProviderQP.
func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	q.mu.Lock()
	n, err := q.postSend(wrs)
	q.mu.Unlock()
	if q.typ == verbs.QPTypeUD {
		q.hearOwn(wrs[:n])
	}
	return n, err
}

// postSend is PostSend for a caller that holds q.mu.
func (q *qp) postSend(wrs []verbs.SendWR) (n int, err error) {
	if q.closed {
		return 0, verbs.ErrClosed
	}
	posted, carried := 0, false
	for n < len(wrs) {
		if q.typ == verbs.QPTypeUD {
			if err = q.checkDatagram(&wrs[n]); err != nil {
				break
			}
		}
		if q.lane.out != nil && q.typ == verbs.QPTypeRC {
			if transport.IsFast(wrs[n].Op) {
				if fast := q.postFast(wrs[n:]); fast > 0 {
					n += fast
					continue
				}
			} else if q.carryOut(&wrs[n]) {
				carried = true
				n++
				continue
			}
		}
		if err = q.t.Post(&wrs[n]); err != nil {
			break
		}
		if q.dev.config.Journal != nil {
			q.recordSend(&wrs[n])
		}
		posted++
		n++
	}
	if carried {
		q.completeCarriedOut()
	}
	if posted > 0 && transport.Answers(wrs[0].Op) {
		q.gather.answers = true
	}
	switch {
	case posted == 0:
	case q.t.Corks() && q.out.eng != nil: // the packets wait for the next acknowledgement, which comes soon
	case q.mayGather():
		q.wait()
	default:
		q.transmit(q.dev.now())
		if e := q.out.eng; e != nil && q.lane.out == nil && !e.polls.suffices() {
			e.posts.Add(1)
		}
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
			"send less, use RC, or raise the MTU of network interface %s", n, mtu.Bytes(), q.dev.Netdev.Name())
	}
	return nil
}

// SetRecvSource implements verbs.ProviderRecvSource.
func (q *qp) SetRecvSource(s verbs.RecvSource) { q.receives.SetSource(s) }

// PostRecv implements verbs.ProviderQP.
func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, state, err := q.receives.Post(wrs)
	if q.dev.config.Journal != nil {
		q.recordReceives(wrs[:n])
	}
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

// Fail takes the QP to the error state.
func (q *qp) Fail(cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.t.Fail(cause)
		q.publish()
	}
}

// Close implements verbs.ProviderQP. Windows that the QP has bound are no obstacle: IBTA o10-2.2.5.
func (q *qp) Close() error {
	if q.dev.groups.attached(q) {
		return verbs.Errorf(verbs.ErrBusy, "it is attached to a multicast group: detach it first") // IBTA o10-2.2.3
	}
	q.dev.retired.mu.Lock()
	defer q.dev.retired.mu.Unlock()
	if q.num == gsiQPN {
		q.dev.gsi.close()
	} else {
		q.shard.qps.Remove(q.num)
		q.dev.qpCount.Add(-1)
	}
	q.mu.Lock()
	q.endWait()
	q.dev.retire(q)
	q.closed = true
	q.commEst, q.failing = commEst{seen: true}, failing{}
	q.forgetSecurity()
	q.clearPath()
	q.t.Modify(0, &verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState)
	q.publish()
	q.mu.Unlock()
	if q.typ == verbs.QPTypeUD {
		q.dev.groups.detachAll(q)
	}
	q.sendCQ.detach(q)
	q.recvCQ.detach(q)
	q.dev.DropQP(q.user)
	return nil
}

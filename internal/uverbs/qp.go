//go:build linux

package uverbs

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// qp is a queue pair of the program's.
type qp struct {
	c    *Context
	v    *verbs.QP
	user uint64 // the program's name for it
	cap  verbs.QPCap
	rq   *receives // nil with an SRQ
	sqMu sync.Mutex
	sq   *ring // nil once the QP is destroyed

	sendCQ *cq

	mu       sync.Mutex // one doorbell at a time
	post     *poster
	unposted uint64 // work requests since RESET that verbs did not take; sqMu guards it
}

// maxInline is the most inline data that an element of a send queue has room for. Linux's rxe has about as much.
const maxInline = 480

// newQP makes a QP.
func (c *Context) newQP(in *uapi.ExCreateQP) (*qp, error) {
	typ := verbs.QPType(in.QPType)
	switch {
	case typ != verbs.QPTypeRC && typ != verbs.QPTypeUC && typ != verbs.QPTypeUD:
		return nil, unix.EOPNOTSUPP
	case in.CreateFlags != 0 || in.CompMask != 0:
		return nil, unix.EOPNOTSUPP
	case int64(in.MaxSendWR) > int64(c.attr.MaxQPWR) || int64(in.MaxRecvWR) > int64(c.attr.MaxQPWR) && in.IsSRQ == 0,
		int64(in.MaxSendSGE) > int64(c.attr.MaxSGE) || int64(in.MaxRecvSGE) > int64(c.attr.MaxSGE) && in.IsSRQ == 0,
		in.MaxInlineData > maxInline:
		return nil, unix.EINVAL
	}
	pd, err := c.pds.get(in.PDHandle)
	if err != nil {
		return nil, err
	}
	send, err := c.cqs.get(in.SendCQHandle)
	if err != nil {
		return nil, err
	}
	recv, err := c.cqs.get(in.RecvCQHandle)
	if err != nil {
		return nil, err
	}
	q := &qp{c: c, user: in.UserHandle, sendCQ: send, cap: verbs.QPCap{MaxSendWR: int(in.MaxSendWR), MaxRecvWR: int(in.MaxRecvWR),
		MaxSendSGE: int(in.MaxSendSGE), MaxRecvSGE: int(in.MaxRecvSGE), MaxInlineData: int(in.MaxInlineData)}}
	init := verbs.QPInitAttr{Type: typ, SendCQ: send.v, RecvCQ: recv.v, SignalAll: in.SQSigAll != 0, Context: q, Cap: q.cap}
	if in.IsSRQ != 0 {
		s, err := c.srqs.get(in.SRQHandle)
		if err != nil {
			return nil, err
		}
		init.SRQ, init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = s.v, 0, 0
	}
	q.grantInline()
	init.Cap.MaxInlineData = q.cap.MaxInlineData
	if err := q.makeRings(&init); err != nil {
		return nil, err
	}
	if q.v, err = pd.CreateQP(init); err != nil {
		q.drop()
		return nil, err
	}
	if q.rq != nil {
		p, ok := q.v.Provider().(verbs.ProviderRecvSource)
		if !ok {
			_ = q.v.Close()
			q.drop()
			return nil, unix.EOPNOTSUPP
		}
		p.SetRecvSource(q.rq)
	}
	q.post = newPoster(q)
	return q, nil
}

// grantInline raises the QP's limit of inline data to the room that an element of its send queue has anyway, where SGEs
// may stand instead. rxe grants as much, and rdma_xclient posts inline data without having asked for a limit.
func (q *qp) grantInline() {
	q.cap.MaxInlineData = max(q.cap.MaxInlineData, min(uapi.SGESize*q.cap.MaxSendSGE, maxInline))
}

// makeRings makes the rings. A work queue of verbs has as many places as its ring, so that the ring alone says whether the
// queue is full.
func (q *qp) makeRings(init *verbs.QPInitAttr) (err error) {
	data := max(uapi.SGESize*max(1, q.cap.MaxSendSGE), q.cap.MaxInlineData)
	if q.sq, err = newRing(q.c.area, q.cap.MaxSendWR, uapi.SendWQESize+data); err != nil {
		return err
	}
	init.Cap.MaxSendWR = q.sq.cap()
	if init.SRQ != nil {
		return nil
	}
	if q.rq, err = newReceives(q.c.area, q.cap.MaxRecvWR, q.cap.MaxRecvSGE); err != nil {
		q.drop()
		return err
	}
	init.Cap.MaxRecvWR = q.rq.ring.cap()
	return nil
}

func (q *qp) drop() {
	q.sqMu.Lock()
	if q.sq != nil {
		q.sq.drop()
		q.sq = nil
	}
	q.sqMu.Unlock()
	if q.rq != nil {
		q.rq.drop()
	}
}

// reset empties the send queue.
func (q *qp) reset() {
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	q.sq.reset()
	q.unposted = 0
}

// refuse counts a work request that verbs did not take.
func (q *qp) refuse() {
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	q.unposted++
}

// free shows the program that places of the send queue may be used again: those of the first n work requests since RESET.
func (q *qp) free(n uint64) {
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	if q.sq != nil {
		q.sq.free(n + q.unposted)
	}
}

func (c *Context) createQP(k *call) error {
	var in uapi.CreateQP
	if err := k.in(&in); err != nil {
		return err
	}
	ex := uapi.ExCreateQP{UserHandle: in.UserHandle, PDHandle: in.PDHandle, SendCQHandle: in.SendCQHandle, RecvCQHandle: in.RecvCQHandle,
		SRQHandle: in.SRQHandle, MaxSendWR: in.MaxSendWR, MaxRecvWR: in.MaxRecvWR, MaxSendSGE: in.MaxSendSGE, MaxRecvSGE: in.MaxRecvSGE,
		MaxInlineData: in.MaxInlineData, SQSigAll: in.SQSigAll, QPType: in.QPType, IsSRQ: in.IsSRQ}
	return c.addQP(k, &ex, func(r uapi.CreateQPResp) any { return r })
}

func (c *Context) exCreateQP(k *call) error {
	var in uapi.ExCreateQP
	if err := k.inPrefix(uapi.ExCreateQPLeast, &in); err != nil {
		return err
	}
	return c.addQP(k, &in, func(r uapi.CreateQPResp) any { return uapi.ExCreateQPResp{Base: r, ResponseLength: 40} })
}

func (c *Context) addQP(k *call, in *uapi.ExCreateQP, resp func(uapi.CreateQPResp) any) error {
	if err := k.needs(resp(uapi.CreateQPResp{}), uapi.RxeCreateQPResp{}); err != nil {
		return err
	}
	q, err := c.newQP(in)
	if err != nil {
		return err
	}
	h := c.handle()
	r := uapi.CreateQPResp{QPHandle: h, QPN: uint32(q.v.QPN()), MaxSendWR: in.MaxSendWR, MaxRecvWR: in.MaxRecvWR,
		MaxSendSGE: in.MaxSendSGE, MaxRecvSGE: in.MaxRecvSGE, MaxInlineData: uint32(q.cap.MaxInlineData)}
	driver := uapi.RxeCreateQPResp{SQMI: q.sq.info()}
	if q.rq != nil {
		driver.RQMI = q.rq.ring.info()
	}
	if err := k.out(resp(r), driver); err != nil {
		_ = q.v.Close()
		q.drop()
		return err
	}
	c.qps[h] = q
	return nil
}

func (c *Context) destroyQP(k *call) error {
	var in uapi.DestroyQP
	if err := k.in(&in); err != nil {
		return err
	}
	if err := k.needs(uapi.DestroyQPResp{}, nil); err != nil {
		return err
	}
	q, err := c.qps.get(in.QPHandle)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.v.Close(); err != nil {
		return err
	}
	delete(c.qps, in.QPHandle)
	q.drop()
	return k.out(uapi.DestroyQPResp{EventsReported: c.async.forget(q.user)}, nil)
}

func (c *Context) modifyQP(k *call) error {
	var in uapi.ModifyQP
	if err := k.in(&in); err != nil {
		return err
	}
	return c.modify(&in, 0)
}

func (c *Context) exModifyQP(k *call) error {
	var in uapi.ExModifyQP
	if err := k.inPrefix(112, &in); err != nil {
		return err
	}
	if err := c.modify(&in.Base, in.RateLimit); err != nil {
		return err
	}
	if k.cmd.Out.Length == 0 {
		return nil
	}
	return k.out(uapi.ExModifyQPResp{ResponseLength: 8}, nil)
}

// modify carries out MODIFY_QP. Values and masks are those of verbs.
func (c *Context) modify(in *uapi.ModifyQP, rate uint32) error {
	q, err := c.qps.get(in.QPHandle)
	if err != nil {
		return err
	}
	a := &verbs.QPAttr{State: verbs.QPState(in.QPState), CurState: verbs.QPState(in.CurQPState), PathMTU: verbs.MTU(in.PathMTU),
		PathMigState: verbs.MigState(in.PathMigState), QKey: verbs.QKey(in.QKey), RQPSN: verbs.PSN(in.RQPSN), SQPSN: verbs.PSN(in.SQPSN),
		DestQPN: verbs.QPN(in.DestQPNum), Access: verbs.Access(in.QPAccessFlags &^ optionalAccess), AH: destAttr(&in.Dest), AltAH: destAttr(&in.AltDest),
		PKeyIndex: int(in.PKeyIndex), AltPKeyIndex: int(in.AltPKeyIndex), EnSQDAsyncNotify: in.EnSQDAsyncNotify != 0,
		MaxRDAtomic: int(in.MaxRdAtomic), MaxDestRDAtomic: int(in.MaxDestRdAtomic), MinRNRTimer: in.MinRNRTimer, Port: int(in.PortNum),
		Timeout: in.Timeout, RetryCnt: in.RetryCnt, RNRRetry: in.RNRRetry, AltPort: int(in.AltPortNum), AltTimeout: in.AltTimeout, RateLimit: rate}
	q.mu.Lock()
	defer q.mu.Unlock()
	mask := verbs.QPAttrMask(in.AttrMask)
	if err := q.v.Modify(a, mask); err != nil {
		return err
	}
	if mask&verbs.MaskState != 0 {
		switch a.State {
		case verbs.QPStateReset:
			q.reset()
			if q.rq != nil {
				q.rq.ring.reset()
			}
		case verbs.QPStateErr:
			q.flush()
		}
	}
	return nil
}

// destAttr returns a path as verbs has it.
func destAttr(d *uapi.QPDest) verbs.AHAttr {
	return ahAttr(&uapi.AHAttr{DLID: d.DLID, SL: d.SL, SrcPathBits: d.SrcPathBits, StaticRate: d.StaticRate, IsGlobal: d.IsGlobal, PortNum: d.PortNum,
		GRH: uapi.GlobalRoute{DGID: d.DGID, FlowLabel: d.FlowLabel, SGIDIndex: d.SGIDIndex, HopLimit: d.HopLimit, TrafficClass: d.TrafficClass}})
}

// dest returns a path as the program has it.
func dest(a *verbs.AHAttr) uapi.QPDest {
	d := uapi.QPDest{DLID: a.DLID, SL: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: uint8(a.StaticRate), PortNum: uint8(a.Port)}
	if a.IsGlobal() {
		d.IsGlobal, d.DGID, d.FlowLabel, d.SGIDIndex, d.HopLimit, d.TrafficClass = 1, a.DGID, a.FlowLabel, uint8(a.SGIDIndex), a.HopLimit, a.TrafficClass
	}
	return d
}

func (c *Context) queryQP(k *call) error {
	var in uapi.QueryQP
	if err := k.in(&in); err != nil {
		return err
	}
	if err := k.needs(uapi.QueryQPResp{}, nil); err != nil {
		return err
	}
	q, err := c.qps.get(in.QPHandle)
	if err != nil {
		return err
	}
	a, init, err := q.v.Query()
	if err != nil {
		return err
	}
	bit := func(b bool) uint8 {
		if b {
			return 1
		}
		return 0
	}
	recvs := uint32(0)
	if q.rq != nil {
		recvs = uint32(q.rq.ring.cap())
	}
	return k.out(uapi.QueryQPResp{Dest: dest(&a.AH), AltDest: dest(&a.AltAH), // as many work requests as the rings hold
		MaxSendWR: uint32(q.sq.cap()), MaxRecvWR: recvs, MaxSendSGE: uint32(q.cap.MaxSendSGE),
		MaxRecvSGE: uint32(q.cap.MaxRecvSGE), MaxInlineData: uint32(q.cap.MaxInlineData),
		QKey: uint32(a.QKey), RQPSN: uint32(a.RQPSN), SQPSN: uint32(a.SQPSN), DestQPNum: uint32(a.DestQPN), QPAccessFlags: uint32(a.Access),
		PKeyIndex: uint16(a.PKeyIndex), AltPKeyIndex: uint16(a.AltPKeyIndex), QPState: uint8(a.State), CurQPState: uint8(a.CurState),
		PathMTU: uint8(a.PathMTU), PathMigState: uint8(a.PathMigState), SQDraining: bit(a.SQDraining), MaxRdAtomic: uint8(a.MaxRDAtomic),
		MaxDestRdAtomic: uint8(a.MaxDestRDAtomic), MinRNRTimer: a.MinRNRTimer, PortNum: uint8(a.Port), Timeout: a.Timeout, RetryCnt: a.RetryCnt,
		RNRRetry: a.RNRRetry, AltPortNum: uint8(a.AltPort), AltTimeout: a.AltTimeout, SQSigAll: bit(init.SignalAll)}, nil)
}

func (c *Context) attachMcast(k *call) error { return c.mcast(k, (*verbs.QP).AttachMcast) }
func (c *Context) detachMcast(k *call) error { return c.mcast(k, (*verbs.QP).DetachMcast) }

func (c *Context) mcast(k *call, do func(*verbs.QP, verbs.GID) error) error {
	var in uapi.AttachMcast
	if err := k.in(&in); err != nil {
		return err
	}
	q, err := c.qps.get(in.QPHandle)
	if err != nil {
		return err
	}
	return do(q.v, in.GID)
}

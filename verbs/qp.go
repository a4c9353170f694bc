package verbs

import (
	"errors"
	"fmt"
)

// Sizes that the specification fixes.
const (
	MaxMessageSize = 1 << 31   // bytes of a message
	MaxSGELength   = 1<<32 - 1 // bytes of an SGE
	atomicSize     = 8
)

// QP is a queue pair (struct ibv_qp).
type QP struct {
	object
	pd             *PD
	p              ProviderQP
	typ            QPType
	cap            QPCap
	sendCQ, recvCQ *CQ
	srq            *SRQ
	signalAll      bool
}

// CreateQP creates a queue pair in the state RESET (ibv_create_qp). Modify, or Init, RTR and
// RTS, bring it into service.
func (pd *PD) CreateQP(attr QPInitAttr) (*QP, error) {
	if attr.Type == 0 {
		attr.Type = QPTypeRC
	}
	return pd.createQP("create qp in", attr, pd.p.CreateQP)
}

// createQP makes a QP by one of the provider's functions.
func (pd *PD) createQP(verb string, attr QPInitAttr, create func(*ProviderQPInitAttr, *QP) (ProviderQP, error)) (*QP, error) {
	if err := attr.check(pd.dev); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	qp := &QP{pd: pd, typ: attr.Type, sendCQ: attr.SendCQ, recvCQ: attr.RecvCQ, srq: attr.SRQ, signalAll: attr.SignalAll}
	qp.name = "new qp"
	parents := []*object{&pd.object, &attr.SendCQ.object, &attr.RecvCQ.object}
	var psrq ProviderSRQ
	if attr.SRQ != nil {
		parents = append(parents, &attr.SRQ.object)
		psrq = attr.SRQ.p
		attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = 0, 0
	}
	if err := qp.attach(verb, parents...); err != nil {
		return nil, err
	}
	pattr := ProviderQPInitAttr{
		Type: attr.Type, SendCQ: attr.SendCQ.p, RecvCQ: attr.RecvCQ.p, SRQ: psrq, Cap: attr.Cap, SignalAll: attr.SignalAll,
	}
	p, err := create(&pattr, qp)
	if err != nil {
		qp.detach()
		return nil, wrap(verb, pd.name, err)
	}
	qp.p, qp.cap = p, pattr.Cap
	qp.setName(fmt.Sprintf("qp %v", p.QPN()))
	return qp, nil
}

func (a *QPInitAttr) check(d *Device) error {
	if a.SendCQ == nil || a.RecvCQ == nil {
		return invalidf("SendCQ and RecvCQ are both needed; they may be the same CQ")
	}
	if a.SendCQ.dev != d || a.RecvCQ.dev != d {
		return invalidf("the CQs belong to another device than the PD, %s", d.name)
	}
	if a.SRQ != nil && a.SRQ.pd.dev != d {
		return invalidf("the SRQ belongs to another device than the PD, %s", d.name)
	}
	if _, ok := transitions[a.Type]; !ok {
		return Errorf(ErrUnsupported, "type %v", a.Type)
	}
	limits := []struct {
		name       string
		value, max int
	}{
		{"max_send_wr", a.Cap.MaxSendWR, d.attr.MaxQPWR},
		{"max_recv_wr", a.Cap.MaxRecvWR, d.attr.MaxQPWR},
		{"max_send_sge", a.Cap.MaxSendSGE, d.attr.MaxSGE},
		{"max_recv_sge", a.Cap.MaxRecvSGE, d.attr.MaxSGE},
		{"max_inline_data", a.Cap.MaxInlineData, d.attr.MaxInline},
	}
	for _, l := range limits {
		if l.value < 0 || l.value > l.max {
			return Errorf(ErrLimit, "%s %d: the device allows 0 to %d", l.name, l.value, l.max)
		}
	}
	return nil
}

// PD returns the protection domain of the QP.
func (qp *QP) PD() *PD { return qp.pd }

// QPN returns the QP's number.
func (qp *QP) QPN() QPN { return qp.p.QPN() }

// Type returns the QP's transport service.
func (qp *QP) Type() QPType { return qp.typ }

// SendCQ returns the CQ of send work requests.
func (qp *QP) SendCQ() *CQ { return qp.sendCQ }

// RecvCQ returns the CQ of receives.
func (qp *QP) RecvCQ() *CQ { return qp.recvCQ }

// Provider returns the provider's side of the QP.
func (qp *QP) Provider() ProviderQP { return qp.p }

// State returns the QP's state. A failed work request takes it to QPStateErr at any time.
func (qp *QP) State() QPState { return qp.p.State() }

// Query returns the QP's attributes (ibv_query_qp).
func (qp *QP) Query() (QPAttr, QPInitAttr, error) {
	if err := qp.check("query"); err != nil {
		return QPAttr{}, QPInitAttr{}, err
	}
	a, err := qp.p.Query()
	a.Cap = qp.cap
	return a, QPInitAttr{Type: qp.typ, SendCQ: qp.sendCQ, RecvCQ: qp.recvCQ, SRQ: qp.srq, Cap: qp.cap, SignalAll: qp.signalAll}, wrap("query", qp.name, err)
}

// Modify changes the attributes that mask names (ibv_modify_qp). The error of a change of state
// lists the attributes that are missing and those that do not belong to it.
func (qp *QP) Modify(attr *QPAttr, mask QPAttrMask) error {
	if err := qp.check("modify"); err != nil {
		return err
	}
	if err := attr.check(mask, &qp.pd.dev.attr); err != nil {
		return wrap("modify", qp.name, err)
	}
	if _, err := CheckModify(qp.typ, qp.p.State(), attr, mask); err != nil {
		return wrap("modify", qp.name, err)
	}
	return wrap("modify", qp.name, qp.p.Modify(attr, mask))
}

// Init takes the QP from RESET to INIT. access says what the peer may do through this QP, on
// top of what each MR allows.
func (qp *QP) Init(port int, access Access) error {
	return qp.Modify(&QPAttr{State: QPStateInit, Port: port, Access: access},
		MaskState|MaskPKeyIndex|MaskPort|MaskAccessFlags)
}

// RTR takes a connected QP from INIT to RTR, connected to peer.
func (qp *QP) RTR(peer Peer, path Path) error {
	if path.MTU == 0 {
		cur, err := qp.p.Query()
		if err != nil {
			return wrap("modify", qp.name, err)
		}
		port, err := qp.pd.dev.QueryPort(max(cur.Port, 1))
		if err != nil {
			return err
		}
		path.MTU = port.ActiveMTU
	}
	if path.HopLimit == 0 {
		path.HopLimit = defaultHopLimit
	}
	if path.MaxDestRDAtomic == 0 {
		path.MaxDestRDAtomic = qp.pd.dev.attr.MaxQPRdAtom
	}
	if path.MinRNRTimer == 0 {
		path.MinRNRTimer = defaultMinRNRTimer
	}
	mask := MaskState | rtrRC
	if qp.typ == QPTypeUC {
		mask = MaskState | rtrUC
	}
	return qp.Modify(&QPAttr{
		State:           QPStateRTR,
		AH:              AHAttr{DGID: peer.GID, SGIDIndex: path.SGIDIndex, HopLimit: path.HopLimit, TrafficClass: path.TrafficClass},
		PathMTU:         path.MTU,
		DestQPN:         peer.QPN,
		RQPSN:           peer.PSN,
		MaxDestRDAtomic: path.MaxDestRDAtomic,
		MinRNRTimer:     path.MinRNRTimer,
	}, mask)
}

// RTS takes the QP from RTR to RTS. psn is the first PSN that it sends.
func (qp *QP) RTS(psn PSN, r Retry) error {
	mask := MaskState | MaskSQPSN
	if qp.typ == QPTypeRC {
		mask |= rtsRC
	}
	return qp.Modify(&QPAttr{
		State: QPStateRTS, SQPSN: psn, Timeout: r.Timeout, RetryCnt: r.Count, RNRRetry: r.RNRCount, MaxRDAtomic: r.MaxRDAtomic,
	}, mask)
}

// PostSend posts wrs in order (ibv_post_send). If n < len(wrs), err says why wrs[n] (bad_wr) was
// refused, and wrs[:n] are posted. It allocates nothing.
//
// A work request's place in the queue is free again when its completion, or that of a later
// one, has been polled. Unsignaled work requests make no completion, so a program must
// signal one at least every MaxSendWR and poll for it.
func (qp *QP) PostSend(wrs []SendWR) (n int, err error) {
	for i := range wrs {
		if err := qp.checkSend(&wrs[i]); err != nil {
			if n, perr := qp.p.PostSend(wrs[:i]); perr != nil {
				return n, qp.postError("post send to", n, perr)
			}
			return i, wrap("post send to", qp.name, fmt.Errorf("work request %d of the list: %w", i, err))
		}
	}
	n, err = qp.p.PostSend(wrs)
	if err != nil {
		err = qp.postError("post send to", n, err)
	}
	return n, err
}

// PostRecv posts wrs in order (ibv_post_recv), as PostSend does.
func (qp *QP) PostRecv(wrs []RecvWR) (n int, err error) {
	for i := range wrs {
		if len(wrs[i].SGList) > qp.cap.MaxRecvSGE {
			if n, perr := qp.p.PostRecv(wrs[:i]); perr != nil {
				return n, qp.postError("post receive to", n, perr)
			}
			return i, wrap("post receive to", qp.name, Errorf(ErrLimit,
				"work request %d of the list: %d SGEs: the QP was created for %d (max_recv_sge)", i, len(wrs[i].SGList), qp.cap.MaxRecvSGE))
		}
	}
	n, err = qp.p.PostRecv(wrs)
	if err != nil {
		err = qp.postError("post receive to", n, err)
	}
	return n, err
}

func (qp *QP) postError(verb string, n int, err error) error {
	if errors.Is(err, ErrClosed) {
		return wrap(verb, qp.name, err)
	}
	return wrap(verb, qp.name, fmt.Errorf("work request %d of the list: %w", n, err))
}

// sendOps says which operations each QP type takes.
var sendOps = [...]uint32{
	QPTypeRC: 1<<OpRDMAWrite | 1<<OpRDMAWriteWithImm | 1<<OpSend | 1<<OpSendWithImm | 1<<OpRDMARead |
		1<<OpAtomicCmpSwap | 1<<OpAtomicFetchAdd | 1<<OpSendWithInv | 1<<OpLocalInv | 1<<OpBindMW,
	QPTypeUC: 1<<OpRDMAWrite | 1<<OpRDMAWriteWithImm | 1<<OpSend | 1<<OpSendWithImm | 1<<OpLocalInv | 1<<OpBindMW,
	QPTypeUD: 1<<OpSend | 1<<OpSendWithImm,
}

const knownSendFlags = SendFence | SendSignaled | SendSolicited | SendInline

// checkSend reports what is wrong with a work request whatever the QP's state.
func (qp *QP) checkSend(wr *SendWR) error {
	if sendOps[qp.typ]>>wr.Op&1 == 0 {
		return Errorf(ErrUnsupported, "%v is no operation of a %v QP", wr.Op, qp.typ)
	}
	if wr.Flags&^knownSendFlags != 0 {
		return invalidf("unknown send flags %v", wr.Flags&^knownSendFlags)
	}
	if len(wr.SGList) > qp.cap.MaxSendSGE {
		return Errorf(ErrLimit, "%d SGEs: the QP was created for %d (max_send_sge)", len(wr.SGList), qp.cap.MaxSendSGE)
	}
	if wr.InlineData != nil && wr.Flags&SendInline == 0 {
		return invalidf("InlineData without SendInline")
	}
	length := uint64(len(wr.InlineData))
	if wr.InlineData == nil {
		for i := range wr.SGList {
			length += uint64(wr.SGList[i].Length)
		}
	}
	if length > MaxMessageSize {
		return Errorf(ErrLimit, "a message of %d bytes: at most 2^31", length)
	}
	switch wr.Op {
	case OpAtomicCmpSwap, OpAtomicFetchAdd:
		if length != atomicSize {
			return invalidf("an atomic returns 8 bytes, and SGList has room for %d", length)
		}
		if wr.Remote.VA%atomicSize != 0 {
			return invalidf("an atomic's remote address must be divisible by 8: %#x is not", wr.Remote.VA)
		}
		fallthrough
	case OpRDMARead:
		if wr.Flags&SendInline != 0 {
			return invalidf("%v takes no inline data: it fills SGList", wr.Op)
		}
	}
	switch {
	case qp.typ == QPTypeUD:
		if err := qp.checkDatagram(wr, length); err != nil {
			return err
		}
	case wr.Op == OpBindMW:
		return wr.Bind.check(qp, MWType2)
	}
	if wr.Flags&SendInline != 0 && length > uint64(qp.cap.MaxInlineData) {
		return Errorf(ErrLimit, "%d bytes of inline data: the QP was created for %d (max_inline_data)", length, qp.cap.MaxInlineData)
	}
	return nil
}

// checkDatagram reports what is wrong with a UD send.
func (qp *QP) checkDatagram(wr *SendWR, length uint64) error {
	switch {
	case wr.AH == nil:
		return invalidf("a datagram needs an address handle (AH)")
	case wr.AH.pd != qp.pd:
		return invalidf("%s is of another PD than the QP", wr.AH.name)
	case wr.RemoteQPN > max24:
		return invalidf("remote QPN %#x has more than 24 bits", uint32(wr.RemoteQPN))
	case length > uint64(MTU4096.Bytes()):
		return Errorf(ErrLimit, "a datagram of %d bytes: at most the port's active MTU, and never more than %d", length, MTU4096.Bytes())
	}
	return nil
}

// Close destroys the QP (ibv_destroy_qp). Work requests that are not done make no completion;
// completions that are already in a CQ stay there.
func (qp *QP) Close() error { return qp.close(qp.p.Close) }

package verbs

import (
	"errors"
	"fmt"
)

// Sizes that the specification fixes, in bytes.
const (
	MaxMessageSize = 1 << 31   // of a message
	MaxSGELength   = 1<<32 - 1 // of an SGE
	atomicSize     = 8
)

// QP is a queue pair (struct ibv_qp).
type QP struct {
	object
	dev            *Device
	pd             *PD // nil for an XRC target
	p              ProviderQP
	typ            QPType
	cap            QPCap
	sendCQ, recvCQ *CQ
	srq            *SRQ
	signalAll      bool
	context        any
}

// CreateQP creates a queue pair in the state RESET (ibv_create_qp). [QP.Modify] takes it to the
// states in which it works; [QP.Init], [QP.RTR] and [QP.RTS] are Modify with the usual attributes.
//
// The error is ErrInvalid if a CQ is missing or belongs to another device, ErrLimit for capacities
// beyond the device's limits, and ErrUnsupported for a type that the device does not have.
func (pd *PD) CreateQP(attr QPInitAttr) (*QP, error) {
	return pd.createQP("create qp in", attr.orType(QPTypeRC), pd.p.CreateQP)
}

// createQP makes a QP by create, which is one of the provider's methods.
func (pd *PD) createQP(verb string, attr QPInitAttr, create func(*ProviderQPInitAttr, *QP) (ProviderQP, error)) (*QP, error) {
	if attr.SRQ != nil {
		attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = 0, 0 // which do not count, whatever they are
	}
	if attr.Type == QPTypeXRCSend {
		if err := attr.checkXRC(pd.dev); err != nil {
			return nil, wrap(verb, pd.name, err)
		}
		attr.RecvCQ = attr.SendCQ // an initiator has no receives
	}
	if err := attr.check(pd.dev); err != nil {
		return nil, wrap(verb, pd.name, err)
	}
	qp := &QP{
		object: object{name: "new qp"}, dev: pd.dev, pd: pd, typ: attr.Type,
		sendCQ: attr.SendCQ, recvCQ: attr.RecvCQ, srq: attr.SRQ, signalAll: attr.SignalAll, context: attr.Context,
	}
	parents := []*object{&pd.object, &attr.SendCQ.object, &attr.RecvCQ.object}
	var psrq ProviderSRQ
	if attr.SRQ != nil {
		parents = append(parents, &attr.SRQ.object)
		psrq = attr.SRQ.p
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
	qp.provided(p, pattr.Cap)
	return qp, nil
}

// provided says that the provider has made its side of qp, with capacities.
func (qp *QP) provided(p ProviderQP, c QPCap) {
	qp.p, qp.cap = p, c
	qp.setName(fmt.Sprintf("qp %v", p.QPN()))
	qp.made(qp)
}

// orType returns the attributes with a type, unless they have one.
func (a QPInitAttr) orType(t QPType) QPInitAttr {
	if a.Type == 0 {
		a.Type = t
	}
	return a
}

// checkXRC checks what only initiators lack.
func (a *QPInitAttr) checkXRC(d *Device) error {
	switch {
	case !d.hasXRC():
		return Errorf(ErrUnsupported, "type %v: the device has no XRC (device_cap_flags)", a.Type)
	case a.SRQ != nil || a.Cap.MaxRecvWR != 0 || a.RecvCQ != nil && a.RecvCQ != a.SendCQ:
		return invalidf("type %v takes no receives: RecvCQ, SRQ and MaxRecvWR stay empty", a.Type)
	}
	return nil
}

func (a *QPInitAttr) check(d *Device) error {
	if a.SendCQ == nil || a.RecvCQ == nil {
		return invalidf("SendCQ and RecvCQ are both needed; they may be the same CQ")
	}
	if err := d.checkOpen("SendCQ", "Device.CreateCQ of PD.Device", a.SendCQ.dev); err != nil {
		return err
	}
	if err := d.checkOpen("RecvCQ", "Device.CreateCQ of PD.Device", a.RecvCQ.dev); err != nil {
		return err
	}
	if a.SRQ != nil {
		if err := d.checkOpen("SRQ", "CreateSRQ of a PD of the same Device", a.SRQ.pd.dev); err != nil {
			return err
		}
		if a.SRQ.xrcd != nil {
			return invalidf("the SRQ is an XRC SRQ: peers reach it by its number, through the QPs of its XRC domain")
		}
	}
	if err := d.info.Transport.hasType(a.Type); err != nil {
		return err
	}
	if a.Type == QPTypeXRCRecv {
		return invalidf("type %v: make it by XRCD.CreateQP", a.Type)
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
		switch {
		case l.value >= 0 && (l.value <= l.max || l.max == MaxInlineUnknown):
		case l.max == MaxInlineUnknown:
			return Errorf(ErrLimit, "%s %d: it must be 0 or more", l.name, l.value)
		default:
			return Errorf(ErrLimit, "%s %d: the device allows 0 to %d", l.name, l.value, l.max)
		}
	}
	return nil
}

// checkOpen returns an error if an object for a QP of a PD of d is of another Device, perhaps of the
// same name. remedy says how to make the object.
func (d *Device) checkOpen(what, remedy string, of *Device) error {
	switch {
	case of == d:
		return nil
	case of.name == d.name:
		return invalidf("the %s is of another Open of %s than the PD, and objects of two Opens cannot be used together: make it by %s", what, d.name, remedy)
	}
	return invalidf("the %s is of %s, and the PD of %s: make it by %s", what, of.name, d.name, remedy)
}

// PD returns the protection domain of the QP, which is nil for an XRC target.
func (qp *QP) PD() *PD { return qp.pd }

// QPN returns the QP's number.
func (qp *QP) QPN() QPN { return qp.p.QPN() }

// Type returns the QP's transport service.
func (qp *QP) Type() QPType { return qp.typ }

// SendCQ returns the CQ that takes the completions of send work requests.
func (qp *QP) SendCQ() *CQ { return qp.sendCQ }

// RecvCQ returns the CQ that takes the completions of receives.
func (qp *QP) RecvCQ() *CQ { return qp.recvCQ }

// SRQ returns the SRQ from which the QP takes its receives, or nil.
func (qp *QP) SRQ() *SRQ { return qp.srq }

// Context returns QPInitAttr.Context (qp_context). With [WC].QP it leads from a completion to the
// program's own record of the connection.
func (qp *QP) Context() any { return qp.context }

// Provider returns the provider's side of the QP, for implementers of providers.
func (qp *QP) Provider() ProviderQP { return qp.p }

// State returns the QP's state as far as its provider knows it. A failed work request takes the QP
// to QPStateErr at any time. After Close it is QPStateClosed.
func (qp *QP) State() QPState {
	if qp.isClosed() {
		return QPStateClosed
	}
	return qp.p.State()
}

// Query returns the QP's attributes (ibv_query_qp). Its capacities are those that were granted.
func (qp *QP) Query() (QPAttr, QPInitAttr, error) {
	if err := qp.check("query"); err != nil {
		return QPAttr{}, QPInitAttr{}, err
	}
	a, err := qp.p.Query()
	a.Cap = qp.cap
	init := QPInitAttr{Type: qp.typ, SendCQ: qp.sendCQ, RecvCQ: qp.recvCQ, SRQ: qp.srq, Cap: qp.cap, SignalAll: qp.signalAll, Context: qp.context}
	return a, init, wrap("query", qp.name, err)
}

// Modify changes the attributes that mask names (ibv_modify_qp). A change that is refused changes
// nothing. The errors are those of [Transport.CheckModify] for the device's transport, and:
//
//   - ErrInvalid for a value that is out of range, and for an address vector that lacks what the
//     port's link layer needs (see [AHAttr]);
//   - ErrLimit for MaxRDAtomic and MaxDestRDAtomic beyond what the device allows;
//   - ErrNotFound for a GID index whose entry is free.
//
// In SQD a program that waits for [EventSQDrained], or until Query says that SQDraining is false, is
// right on every device. The software HCA does not ask for it: attributes that change while the queue
// drains hold at once, for messages under way too, and in RTS the queue goes on. Others may refuse
// both.
func (qp *QP) Modify(attr *QPAttr, mask QPAttrMask) error {
	const verb = "modify"
	if err := qp.check(verb); err != nil {
		return err
	}
	if mask&MaskState != 0 && attr.State > QPStateErr {
		return wrap(verb, qp.name, invalidf("STATE %d is no QP state", attr.State))
	}
	dev := qp.dev
	if _, err := dev.info.Transport.CheckModify(qp.typ, qp.p.State(), attr, mask); err != nil {
		return wrap(verb, qp.name, err)
	}
	if err := attr.check(mask, &dev.attr); err != nil {
		return wrap(verb, qp.name, err)
	}
	if mask&MaskAV != 0 {
		if err := qp.checkAV(attr, mask); err != nil {
			return wrap(verb, qp.name, err)
		}
		filled := *attr
		filled.AH.setDefaults()
		attr = &filled
	}
	return wrap(verb, qp.name, qp.p.Modify(attr, mask))
}

// checkAV reports the first fault of an address vector, by the link layer of the port that it is
// for: its own, the one that is set with it, or the one that the QP has.
func (qp *QP) checkAV(attr *QPAttr, mask QPAttrMask) error {
	dev := qp.dev
	port := attr.AH.Port
	if port == 0 && mask&MaskPort != 0 {
		port = attr.Port
	}
	if port == 0 && dev.attr.PhysPortCnt > 1 {
		now, err := qp.p.Query()
		if err != nil {
			return err
		}
		port = now.Port
	}
	path := attr.AH.onPort(max(port, 1))
	if err := dev.checkPath(&path); err != nil {
		return fmt.Errorf("AV: %w", err)
	}
	if link, _ := dev.linkLayer(path.Port); link != LinkLayerEthernet && path.DLID >= firstMulticastLID {
		return invalidf("AV: the peer's LID %#04x is no single port's", path.DLID)
	}
	return nil
}

// Init takes the QP from RESET to INIT. port is the port that it uses, counted from 1. access is
// the access of the peer through this QP, if the MR that the peer names allows it as well.
func (qp *QP) Init(port int, access Access) error {
	mask := MaskState | MaskPort | MaskAccessFlags
	if qp.dev.info.Transport != TransportIWARP { // which has no P_Keys
		mask |= MaskPKeyIndex
	}
	return qp.Modify(&QPAttr{State: QPStateInit, Port: port, Access: access}, mask)
}

// RTR takes a connected QP from INIT to RTR, connected to peer. On iWARP, where the connection
// manager does that, the error is ErrUnsupported.
func (qp *QP) RTR(peer Peer, path Path) error {
	if path.MTU == 0 {
		now, err := qp.p.Query()
		if err != nil {
			return wrap("modify", qp.name, err)
		}
		port, err := qp.dev.QueryPort(max(now.Port, 1))
		if err != nil {
			return err
		}
		path.MTU = port.ActiveMTU
	}
	if path.MaxDestRDAtomic == 0 {
		path.MaxDestRDAtomic = qp.dev.attr.MaxQPRdAtom
	}
	if path.MinRNRTimer == 0 {
		path.MinRNRTimer = defaultMinRNRTimer
	}
	mask := MaskState | rtrRC
	if qp.typ == QPTypeUC || qp.typ == QPTypeXRCSend {
		mask = MaskState | rtrUC
	}
	return qp.Modify(&QPAttr{
		State:           QPStateRTR,
		AH:              path.to(peer),
		PathMTU:         path.MTU,
		DestQPN:         peer.QPN,
		RQPSN:           peer.PSN,
		MaxDestRDAtomic: path.MaxDestRDAtomic,
		MinRNRTimer:     path.MinRNRTimer,
	}, mask)
}

// RTS takes the QP from RTR to RTS. psn is the PSN of the first packet that it sends, 24 bits. On
// iWARP, where the connection manager takes the QP to RTS, the error is ErrUnsupported.
func (qp *QP) RTS(psn PSN, r Retry) error {
	if r == DefaultRetry {
		r.MaxRDAtomic = min(r.MaxRDAtomic, qp.dev.attr.MaxQPInitRdAtom)
	}
	mask := MaskState | MaskSQPSN
	switch qp.typ {
	case QPTypeRC, QPTypeXRCSend:
		mask |= rtsRC
	case QPTypeXRCRecv:
		mask |= rtsRecv
	}
	return qp.Modify(&QPAttr{
		State: QPStateRTS, SQPSN: psn, Timeout: r.Timeout, RetryCnt: r.RetryCount, RNRRetry: r.RNRRetryCount, MaxRDAtomic: r.MaxRDAtomic,
	}, mask)
}

// PostSend posts wrs in order (ibv_post_send). If n < len(wrs), err says why wrs[n] (bad_wr) was
// refused, and wrs[:n] are posted. PostSend allocates nothing. The kinds of errors:
//
//   - ErrQueueFull: the send queue has no room;
//   - ErrLimit: more SGEs, inline data or message than the QP or the verbs allow;
//   - ErrInvalid and ErrUnsupported: the work request is wrong, or the QP's type lacks its operation;
//   - ErrState: the QP is in RESET, INIT or RTR;
//   - ErrClosed: of the QP, or of a datagram's AH.
//
// [QP.PostOneSend] is shorter for one work request.
//
// A work request's place in the queue is free again when its completion, or the completion of a
// later one, has been polled. Unsignaled work requests make no completion. So a program signals at
// least one in every MaxSendWR work requests, and polls for it.
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

// PostRecv posts receives in order (ibv_post_recv). Its results are those of PostSend. The QP may
// be in any state but RESET. A QP with an SRQ takes no receives of its own: the error is
// ErrInvalid.
func (qp *QP) PostRecv(wrs []RecvWR) (n int, err error) {
	if qp.typ.isXRC() {
		return 0, wrap("post receive to", qp.name, Errorf(ErrUnsupported, "a %v QP takes no receives: post them to an XRC SRQ", qp.typ))
	}
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

// sendOps are the operations that each QP type has, as bits.
var sendOps = [...]uint32{
	QPTypeRC: 1<<OpRDMAWrite | 1<<OpRDMAWriteWithImm | 1<<OpSend | 1<<OpSendWithImm | 1<<OpRDMARead |
		1<<OpAtomicCmpSwap | 1<<OpAtomicFetchAdd | 1<<OpSendWithInv | 1<<OpLocalInv | 1<<OpBindMW | 1<<OpFlush | 1<<OpAtomicWrite,
	QPTypeUC: 1<<OpRDMAWrite | 1<<OpRDMAWriteWithImm | 1<<OpSend | 1<<OpSendWithImm | 1<<OpLocalInv | 1<<OpBindMW,
	QPTypeUD: 1<<OpSend | 1<<OpSendWithImm,
	QPTypeXRCSend: 1<<OpRDMAWrite | 1<<OpRDMAWriteWithImm | 1<<OpSend | 1<<OpSendWithImm | 1<<OpRDMARead |
		1<<OpAtomicCmpSwap | 1<<OpAtomicFetchAdd | 1<<OpSendWithInv | 1<<OpLocalInv | 1<<OpBindMW | 1<<OpFlush,
	QPTypeXRCRecv: 0,
}

const knownSendFlags = SendFence | SendSignaled | SendSolicited | SendInline

// checkSend reports the first fault of a work request, of those that are faults in any state of the
// QP.
func (qp *QP) checkSend(wr *SendWR) error {
	if sendOps[qp.typ]>>wr.Op&1 == 0 {
		return Errorf(ErrUnsupported, "%v is no operation of a %v QP", wr.Op, qp.typ)
	}
	if wr.RemoteSRQN > max24 {
		return invalidf("remote SRQ number %#x has more than 24 bits", uint32(wr.RemoteSRQN))
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
		if wr.Swap != 0 && wr.Op == OpAtomicFetchAdd {
			return invalidf("Swap %#x: %v adds CompareAdd, which is %#x, and takes no Swap", wr.Swap, wr.Op, wr.CompareAdd)
		}
		fallthrough
	case OpRDMARead:
		if wr.Flags&SendInline != 0 {
			return invalidf("%v takes no inline data: it fills SGList", wr.Op)
		}
	case OpAtomicWrite:
		if qp.dev.attr.DeviceCapFlagsEx&DeviceAtomicWrite == 0 {
			return qp.dev.attr.lacks("ATOMIC WRITE")
		}
		if length != atomicSize {
			return invalidf("an ATOMIC WRITE has 8 bytes, and not %d", length)
		}
		if wr.Remote.VA%atomicSize != 0 {
			return invalidf("an ATOMIC WRITE's remote address must be divisible by 8: %#x is not", wr.Remote.VA)
		}
	case OpFlush:
		if err := wr.Flush.check(length, wr.Flags, &qp.dev.attr); err != nil {
			return err
		}
	}
	switch {
	case qp.typ == QPTypeUD:
		if err := qp.checkDatagram(wr, length); err != nil {
			return err
		}
	case wr.Op == OpBindMW:
		if err := wr.Bind.check(qp, MWType2); err != nil {
			return err
		}
	}
	if wr.Flags&SendInline != 0 && length > uint64(qp.cap.MaxInlineData) && (wr.Op != OpAtomicWrite || wr.InlineData == nil) {
		return Errorf(ErrLimit, "%d bytes of inline data: the QP was created for %d (max_inline_data)", length, qp.cap.MaxInlineData)
	}
	return nil
}

// checkDatagram reports the first fault of a UD send.
func (qp *QP) checkDatagram(wr *SendWR, length uint64) error {
	switch {
	case wr.AH == nil:
		return invalidf("a datagram needs an address handle (AH)")
	case wr.AH.gone.Load():
		return Errorf(ErrClosed, "%s is closed: make another by PD.CreateAH", wr.AH.name)
	case wr.AH.pd != qp.pd:
		return invalidf("%s is of another PD than the QP", wr.AH.name) // IBTA C10-10
	case wr.RemoteQPN > max24:
		return invalidf("remote QPN %#x has more than 24 bits", uint32(wr.RemoteQPN))
	case wr.AH.multicast != (wr.RemoteQPN == multicastQPN):
		return wr.AH.wrongQPN(wr.RemoteQPN)
	case length > uint64(MTU4096.Bytes()):
		return Errorf(ErrLimit, "a datagram of %d bytes: at most the port's active MTU, and never more than %d", length, MTU4096.Bytes())
	}
	return nil
}

// wrongQPN is the error for a datagram whose QPN does not fit where ah leads. It would be lost without a word.
func (ah *AH) wrongQPN(n QPN) error {
	if ah.multicast {
		return invalidf("%s leads to a multicast group, and remote QPN %v is a single QP's: groups have %v", ah.name, n, multicastQPN)
	}
	return invalidf("%s leads to a single host, and remote QPN %v is that of multicast groups: give the QP's own", ah.name, n)
}

// Close destroys the QP (ibv_destroy_qp). Work requests that are not done make no completion.
// Completions that are in a CQ already stay there, and their WC.QP is the closed QP, whose calls say
// ErrClosed. The error is ErrBusy while the QP is attached to a multicast group.
//
// When Close has returned nil, the device does not touch memory for this QP any more: neither for
// work requests that were posted to the QP, nor for requests of its peer. So buffers may be used for
// something else, or their regions closed. How much of a message under way the peer has got is not
// known. The receives of an SRQ, apart from one that the QP has taken for a message, go on to serve
// other QPs. Other calls may be under way in other goroutines: each is done, or returns ErrClosed.
//
// Close before the program ends: acknowledgements that the QP still owes leave then. A program that ends
// without Close, in the middle of an exchange of messages, may not have acknowledged the last one that it took.
func (qp *QP) Close() error { return qp.close(qp.p.Close) }

package rdmacm

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// qpAccess is what peers may do through QPs; each MR says what they may do to it.
	qpAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessMWBind

	// minRNRTimer is the code of how long peers wait after an RNR NAK: 0.64 ms.
	minRNRTimer = 12
)

// CreateQP makes the ID's QP (rdma_create_qp), and brings RC and UC QPs to INIT, where receives can
// be posted, and UD QPs to RTS. pd nil stands for PD; CQs that attr does not name are made as
// large as the QP needs, and closed with it. The type follows from the port space; PortSpaceIB
// leaves a choice of RC and UC.
//
// An ID without a QP of its own connects the one that ConnParam.QPN names, which the program then
// takes through its states by QPAttr.
func (id *ID) CreateQP(pd *verbs.PD, attr verbs.QPInitAttr) error {
	const op = "create qp"
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateClosed {
		return id.error(op, verbs.ErrClosed)
	}
	if id.agent == nil {
		return id.error(op, verbs.Errorf(verbs.ErrState, "the ID has no device: call ResolveAddr, or BindAddr with an address of one, first"))
	}
	if id.qp != nil {
		return id.error(op, verbs.Errorf(verbs.ErrBusy, "the ID has a QP, %v: destroy it first", id.qp.QPN()))
	}
	if err := id.createQP(pd, attr); err != nil {
		return id.error(op, err)
	}
	return nil
}

// createQP does what CreateQP does. The caller holds id.mu.
func (id *ID) createQP(pd *verbs.PD, attr verbs.QPInitAttr) (err error) {
	switch {
	case attr.Type == 0:
		attr.Type = id.qpType
	case attr.Type == id.qpType:
	case id.ps == PortSpaceIB && (attr.Type == verbs.QPTypeRC || attr.Type == verbs.QPTypeUC) && id.conn == nil:
		id.qpType = attr.Type
	default:
		return verbs.Errorf(verbs.ErrInvalid, "a %v QP for an ID of %v: it connects %v QPs", attr.Type, id.ps, id.qpType)
	}
	if pd == nil {
		if pd, err = id.agent.defaultPD(); err != nil {
			return err
		}
	}
	if pd.Device() != id.agent.dev {
		return verbs.Errorf(verbs.ErrInvalid, "the PD is of device %s, and the ID of %s", pd.Device().Name(), id.agent.dev.Name())
	}
	defer func() {
		if err != nil {
			id.destroyQP()
		}
	}()
	if attr.SendCQ == nil {
		if attr.SendCQ, err = id.makeCQ(attr.Cap.MaxSendWR); err != nil {
			return err
		}
	}
	if attr.RecvCQ == nil {
		if attr.RecvCQ, err = id.makeCQ(attr.Cap.MaxRecvWR); err != nil {
			return err
		}
	}
	if id.qp, err = pd.CreateQP(attr); err != nil {
		return err
	}
	id.param.QPN, id.param.SRQ = id.qp.QPN(), attr.SRQ != nil
	if id.qpType == verbs.QPTypeUD {
		return serveUD(id.qp, UDQKey)
	}
	return id.modifyQP(verbs.QPStateInit)
}

// makeCQ makes a CQ for a work queue, which may get up to twice the room that was asked for.
func (id *ID) makeCQ(wrs int) (*verbs.CQ, error) {
	cq, err := id.agent.dev.CreateCQ(2 * max(1, wrs))
	if err == nil {
		id.ownCQs = append(id.ownCQs, cq)
	}
	return cq, err
}

// DestroyQP destroys the ID's QP (rdma_destroy_qp) and the CQs that were made for it.
func (id *ID) DestroyQP() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.leaveAll(); err != nil {
		return id.error("destroy qp", err)
	}
	return id.error("destroy qp", id.destroyQP())
}

// destroyQP does what DestroyQP does. The caller holds id.mu.
func (id *ID) destroyQP() error {
	if id.qp != nil {
		id.qp.NotifyCommEst(nil)
		if err := id.qp.Close(); err != nil {
			return err
		}
		id.qp = nil
	}
	for _, cq := range id.ownCQs {
		if err := cq.Close(); err != nil { // another QP uses it too
			return err
		}
	}
	id.ownCQs = nil
	return nil
}

// failQP takes the QP to the error state, which flushes its work requests. The caller holds id.mu.
func (id *ID) failQP() {
	if id.qp != nil && id.qp.Type() != verbs.QPTypeUD && id.qp.State() != verbs.QPStateReset {
		// It fails for QPs that the program has closed itself.
		_ = id.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)
	}
}

// serveQP takes the QP from INIT to RTS, connected to the peer. The caller holds id.mu.
func (id *ID) serveQP() error {
	if id.qp.State() == verbs.QPStateReset {
		if err := id.modifyQP(verbs.QPStateInit); err != nil {
			return err
		}
	}
	if s := id.qp.State(); s != verbs.QPStateInit {
		return verbs.Errorf(verbs.ErrState, "the QP is in %v: the connection manager takes it from QPS_INIT to QPS_RTS; leave its state alone until it is connected", s)
	}
	if err := id.modifyQP(verbs.QPStateRTR); err != nil {
		return err
	}
	return id.modifyQP(verbs.QPStateRTS)
}

func (id *ID) modifyQP(to verbs.QPState) error {
	attr, mask, err := id.qpAttr(to)
	if err != nil {
		return err
	}
	return id.qp.Modify(&attr, mask)
}

// QPAttr returns the attributes that take a QP to INIT, RTR or RTS as the connection's negotiation
// has it (rdma_init_qp_attr): for programs that make the QP themselves.
func (id *ID) QPAttr(state verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	attr, mask, err := id.qpAttr(state)
	return attr, mask, id.error("find qp attributes", err)
}

func (id *ID) qpAttr(state verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	a := verbs.QPAttr{State: state}
	connected := id.qpType != verbs.QPTypeUD
	if connected && state != verbs.QPStateInit && id.offered.peerQPN == 0 {
		return a, 0, verbs.Errorf(verbs.ErrState, "the ID is %v: the peer's QP is not known yet", id.state)
	}
	switch {
	case state == verbs.QPStateInit && connected:
		a.Port, a.Access = devicePort, qpAccess
		return a, verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccessFlags, nil
	case state == verbs.QPStateInit:
		a.Port, a.QKey = devicePort, UDQKey
		return a, verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey, nil
	case state == verbs.QPStateRTR && connected:
		a.AH, a.PathMTU, a.DestQPN, a.RQPSN = ahAttr(id.path, id.sgid), id.offered.mtu, id.offered.peerQPN, id.psn
		mask := verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN
		if id.qpType == verbs.QPTypeRC {
			a.MaxDestRDAtomic, a.MinRNRTimer = int(id.param.ResponderResources), minRNRTimer
			mask |= verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
		}
		return a, mask, nil
	case state == verbs.QPStateRTR:
		return a, verbs.MaskState, nil
	case state == verbs.QPStateRTS:
		a.SQPSN = id.offered.peerPSN
		mask := verbs.MaskState | verbs.MaskSQPSN
		if id.qpType == verbs.QPTypeRC {
			a.Timeout, a.RetryCnt, a.RNRRetry = id.offered.ackTimeout, id.offered.retryCount, id.offered.rnrRetry
			if id.options.hasACK {
				a.Timeout = id.options.ackTimeout
			}
			a.MaxRDAtomic = int(id.param.InitiatorDepth)
			mask |= verbs.MaskTimeout | verbs.MaskRetryCnt | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic
		}
		return a, mask, nil
	}
	return a, 0, verbs.Errorf(verbs.ErrInvalid, "state %v: QPS_INIT, QPS_RTR and QPS_RTS have attributes to find", state)
}

// newPSN draws the PSN at which a peer is to begin.
func newPSN() verbs.PSN {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return verbs.PSN(binary.NativeEndian.Uint32(b[:]) & 0xffffff)
}

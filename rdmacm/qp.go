package rdmacm

import (
	"errors"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// queuePair is the QP of an ID, with the CQs that were made for it.
type queuePair struct {
	qpType verbs.QPType
	qp     *verbs.QP // or nil: the program may connect one of its own
	ownCQs []*verbs.CQ
}

// CreateQP makes the ID's QP (rdma_create_qp). It brings RC and UC QPs to INIT, where receives can
// be posted, and UD QPs to RTS. A nil pd stands for PD. CQs that attr does not name are made as
// large as the QP needs, and closed with it. The type follows from the port space; PortSpaceIB
// leaves a choice of RC and UC.
//
// An ID without a QP of its own connects the one that ConnParam.QPN names. The program then takes
// that QP through its states by QPAttr.
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
	case id.ps == PortSpaceIB && (attr.Type == verbs.QPTypeRC || attr.Type == verbs.QPTypeUC) && id.state < stateConnecting:
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
			id.queuePair.destroy()
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
	id.own.QPN, id.own.SRQ = id.qp.QPN(), attr.SRQ != nil
	if id.qpType == verbs.QPTypeUD {
		return id.moveQP(verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS)
	}
	return id.moveQP(verbs.QPStateInit)
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
	if err := id.groups.leaveAll(); err != nil {
		return id.error("destroy qp", err)
	}
	return id.error("destroy qp", id.queuePair.destroy())
}

// destroy does what DestroyQP does.
func (q *queuePair) destroy() error {
	if q.qp != nil {
		q.qp.NotifyCommEst(nil)
		if err := q.qp.Close(); err != nil {
			return err
		}
		q.qp = nil
	}
	for _, cq := range q.ownCQs {
		if err := cq.Close(); err != nil { // another QP uses it too
			return err
		}
	}
	q.ownCQs = nil
	return nil
}

// fail takes the QP to the error state, which flushes its work requests.
func (q *queuePair) fail() {
	if q.qp != nil && q.qp.Type() != verbs.QPTypeUD && q.qp.State() != verbs.QPStateReset {
		// It fails for QPs that the program has closed itself.
		_ = q.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)
	}
}

// draining reports whether the QP has sends under way. The first call has it begin no more of them.
func (q *queuePair) draining(first bool) bool {
	if q.qp == nil {
		return false
	}
	if first && (q.qp.State() != verbs.QPStateRTS || q.qp.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState) != nil) {
		return false
	}
	a, _, err := q.qp.Query()
	return err == nil && a.State == verbs.QPStateSQD && a.SQDraining
}

// serveQP takes the QP from INIT to RTS, connected to the peer. The caller holds id.mu.
func (id *ID) serveQP() error {
	if id.qp.State() == verbs.QPStateReset {
		if err := id.moveQP(verbs.QPStateInit); err != nil {
			return err
		}
	}
	if s := id.qp.State(); s != verbs.QPStateInit {
		return verbs.Errorf(verbs.ErrState, "the QP is in %v: the connection manager takes it from QPS_INIT to QPS_RTS; leave its state alone until it is connected", s)
	}
	return id.moveQP(verbs.QPStateRTR, verbs.QPStateRTS)
}

// moveQP takes the QP through the states. The caller holds id.mu.
func (id *ID) moveQP(states ...verbs.QPState) error {
	for _, to := range states {
		attr, mask, err := id.qpAttr(to)
		if err != nil {
			return err
		}
		if mask == 0 { // the connector moves it
			continue
		}
		if err := id.qp.Modify(&attr, mask); err != nil {
			return err
		}
	}
	return nil
}

// QPAttr returns the attributes that take a QP to INIT, RTR or RTS as the two ends have agreed
// (rdma_init_qp_attr). It is for programs that make the QP themselves.
func (id *ID) QPAttr(state verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	attr, mask, err := id.qpAttr(state)
	return attr, mask, id.error("find qp attributes", err)
}

// qpAttr completes the connector's attributes by what this end decides alone. The caller holds id.mu.
func (id *ID) qpAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	if id.conn == nil {
		return verbs.QPAttr{}, 0, verbs.Errorf(verbs.ErrState, "the ID has no device: call ResolveAddr, or BindAddr with an address of one, first")
	}
	attr, mask, err := id.conn.QPAttr(id.qpType, to)
	if errors.Is(err, connector.ErrNoPeer) {
		err = verbs.Errorf(verbs.ErrState, "the ID is %v: %w", id.state, err)
	}
	if mask&verbs.MaskAV != 0 {
		attr.AH.TrafficClass = id.options.tos
	}
	if mask&verbs.MaskMaxDestRDAtomic != 0 {
		attr.MaxDestRDAtomic = int(id.own.ResponderResources)
	}
	if mask&verbs.MaskMaxRDAtomic != 0 {
		attr.MaxRDAtomic = int(id.own.InitiatorDepth)
	}
	if mask&verbs.MaskTimeout != 0 && id.options.hasACK {
		attr.Timeout = id.options.ackTimeout
	}
	return attr, mask, err
}

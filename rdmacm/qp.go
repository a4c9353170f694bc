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
// be posted, and UD QPs to RTS. A nil pd stands for PD; another may be of any Open of the ID's device.
// The type follows from the port space; PortSpaceIB leaves a choice of RC and UC.
//
// CQs that attr does not name are made, and closed with the QP. The send queue's holds twice
// Cap.MaxSendWR completions, since the device may grant more room than was asked for, and the receive
// queue's twice Cap.MaxRecvWR. With an SRQ the latter holds as many as the SRQ has receives at that time:
// one QP may get them all. A program that posts to the SRQ again before it polls, or that gives the SRQ
// a larger size later, makes the CQ itself.
//
// An ID without a QP of its own connects the one that ConnParam.QPN names. The program then takes
// that QP through its states by QPAttr. From Connect or Accept until the end of the connection the ID
// gets no other QP, and CreateQP fails with verbs.ErrState. (A UD QP is not bound to a peer.)
func (id *ID) CreateQP(pd *verbs.PD, attr verbs.QPInitAttr) error { return id.makeQP(pd, attr, false) }

// makeQP is CreateQP. With oneCQ it makes one CQ for both queues.
func (id *ID) makeQP(pd *verbs.PD, attr verbs.QPInitAttr, oneCQ bool) error {
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
	if err := id.mayHaveQP(); err != nil {
		return id.error(op, err)
	}
	err := id.createQP(pd, attr, oneCQ)
	id.lacks = isLimit(err)
	return id.error(op, err)
}

// mayHaveQP refuses another QP than the one that the peer was told of: this end would bring a QP into service that
// nobody sends to. The caller holds id.mu.
func (id *ID) mayHaveQP() error {
	if id.qpType == verbs.QPTypeUD {
		return nil
	}
	switch id.state {
	case stateConnecting, stateResponded, stateAccepting, stateConnected:
		return verbs.Errorf(verbs.ErrState, "the ID is %v, and the peer was told of QP %v: call CreateQP before Connect or Accept", id.state, id.own.QPN)
	}
	return nil
}

// createQP is makeQP under id.mu.
func (id *ID) createQP(pd *verbs.PD, attr verbs.QPInitAttr, oneCQ bool) (err error) {
	before := id.qpType
	defer func() {
		if err != nil {
			id.queuePair.destroy()
			id.qpType = before
		}
	}()
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
		if pd, err = id.agent.dev.SharedPD(); err != nil {
			return err
		}
	}
	if err := id.checkOpen(pd, &attr); err != nil {
		return err
	}
	if err := id.conn.Serve(pd.Device(), id.local.Addr().WithZone("")); err != nil {
		return err
	}
	if err := id.makeCQs(pd.Device(), &attr, oneCQ); err != nil {
		return err
	}
	if id.qp, err = pd.CreateQP(attr); err != nil {
		return err
	}
	id.own.QPN, id.own.SRQ = id.qp.QPN(), attr.SRQ != nil
	id.failure = nil
	// Where the device cannot tell, the program's completions do.
	qp := id.qp
	id.tells = qp.NotifyError(func(cause error) { id.qpFailed(qp, cause) }) == nil
	if id.qpType == verbs.QPTypeUD {
		return id.moveQP(verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS)
	}
	return id.moveQP(verbs.QPStateInit)
}

// checkOpen refuses a PD that is of another device than the ID. The PD may be of another Open of the
// device, since a connector can connect QPs of any: it names them by number and address. The objects
// of which a QP is made must be of one Open.
func (id *ID) checkOpen(pd *verbs.PD, attr *verbs.QPInitAttr) error {
	dev := pd.Device()
	if !oneDevice(dev, id.agent.dev) {
		return verbs.Errorf(verbs.ErrInvalid, "the PD is of device %s, and the ID of %s: use a PD of that device, or name the PD's device in Dialer.Device, ListenConfig.Devices or NewEventChannel",
			dev.Name(), id.agent.dev.Name())
	}
	for _, of := range []*verbs.Device{deviceOfCQ(attr.SendCQ), deviceOfCQ(attr.RecvCQ), deviceOfSRQ(attr.SRQ)} {
		if of != nil && of != dev && oneDevice(of, dev) {
			return verbs.Errorf(verbs.ErrInvalid, "the QP's CQs or its SRQ are of another Open of device %s than its PD: name a PD of the same Open", dev.Name())
		}
	}
	return nil
}

// oneDevice reports whether two devices are one, perhaps opened twice. Of devices without a registered
// provider nobody knows whether they are.
func oneDevice(a, b *verbs.Device) bool {
	x, y := a.Info(), b.Info()
	return a == b || x.Provider != "" && x.Provider == y.Provider && (x.Name == y.Name || x.Netdev != "" && x.Netdev == y.Netdev)
}

func deviceOfCQ(cq *verbs.CQ) *verbs.Device {
	if cq == nil {
		return nil
	}
	return cq.Device()
}

func deviceOfSRQ(srq *verbs.SRQ) *verbs.Device {
	if srq == nil {
		return nil
	}
	return srq.PD().Device()
}

// makeCQs makes those CQs that attr does not name, or one for both queues.
func (id *ID) makeCQs(dev *verbs.Device, attr *verbs.QPInitAttr, one bool) (err error) {
	// A work queue may get up to twice the room that was asked for. Query tells the room that an SRQ has got.
	sends, recvs := 2*max(1, attr.Cap.MaxSendWR), 2*max(1, attr.Cap.MaxRecvWR)
	if attr.SRQ != nil {
		a, err := attr.SRQ.Query()
		if err != nil {
			return err
		}
		recvs = max(1, a.MaxWR)
	}
	if one {
		attr.SendCQ, err = id.makeCQ(dev, sends+recvs)
		attr.RecvCQ = attr.SendCQ
		return err
	}
	if attr.SendCQ == nil {
		if attr.SendCQ, err = id.makeCQ(dev, sends); err != nil {
			return err
		}
	}
	if attr.RecvCQ == nil {
		attr.RecvCQ, err = id.makeCQ(dev, recvs)
	}
	return err
}

// makeCQ makes a CQ that is closed with the QP.
func (id *ID) makeCQ(dev *verbs.Device, entries int) (*verbs.CQ, error) {
	cq, err := dev.CreateCQ(entries)
	if err == nil {
		id.ownCQs = append(id.ownCQs, cq)
	}
	return cq, err
}

// QPType returns the type of the QPs that the ID connects (rdma_cm_id.qp_type).
func (id *ID) QPType() verbs.QPType {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.qpType
}

// SetQPType says of which type the program's own QP is, for an ID that connects the one that ConnParam.QPN names:
// PortSpaceIB leaves a choice of RC, which an ID begins with, and UC. CreateQP does this for the QPs that it makes.
// Call it before Connect. An ID that listens takes requests for both, and the ID of a request has its peer's type.
func (id *ID) SetQPType(t verbs.QPType) error {
	return id.set("set qp type", func() error {
		switch {
		case t == id.qpType:
			return nil
		case id.ps != PortSpaceIB || t != verbs.QPTypeRC && t != verbs.QPTypeUC:
			return verbs.Errorf(verbs.ErrInvalid, "%v: an ID of %v connects %v QPs", t, id.ps, id.qpType)
		case id.qp != nil || id.state >= stateConnecting:
			return verbs.Errorf(verbs.ErrState, "the ID is %v: set it before CreateQP and Connect", id.state)
		}
		id.qpType = t
		return nil
	})
}

// DestroyQP destroys the ID's QP (rdma_destroy_qp) and the CQs that were made for it.
func (id *ID) DestroyQP() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := id.leaveGroups(); err != nil {
		return id.error("destroy qp", err)
	}
	return id.error("destroy qp", id.queuePair.destroy())
}

// destroy is ID.DestroyQP. The caller holds the ID's lock.
func (q *queuePair) destroy() error {
	if q.qp != nil {
		q.qp.NotifyCommEst(nil)
		q.qp.NotifyError(nil)
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
	if err := id.moveQP(verbs.QPStateRTR, verbs.QPStateRTS); err != nil {
		return err
	}
	if id.options.keepAlive > 0 {
		return id.keepAlive()
	}
	return nil
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
	const op = "find qp attributes"
	if id.state == stateClosed {
		return verbs.QPAttr{}, 0, id.error(op, verbs.ErrClosed)
	}
	attr, mask, err := id.qpAttr(state)
	return attr, mask, id.error(op, err)
}

// qpAttr completes the connector's attributes by those that this end decides alone. The caller holds id.mu.
func (id *ID) qpAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	if id.conn == nil {
		return verbs.QPAttr{}, 0, verbs.Errorf(verbs.ErrState, "the ID has no device: call ResolveAddr, or BindAddr with an address of one, first")
	}
	attr, mask, err := id.conn.QPAttr(id.qpType, to)
	if errors.Is(err, connector.ErrNoPeer) {
		err = verbs.Errorf(verbs.ErrState, "the ID is %v: %w", id.state, err)
	}
	if mask&verbs.MaskAV != 0 && id.options.hasTOS { // else the path's, which is the peer's at the accepting end
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

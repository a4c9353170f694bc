package ucma

import (
	"bytes"
	"errors"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// maxRetries is the largest retry count that the messages have room for. Linux takes it for each larger one.
const maxRetries = 7

// connParam returns a program's parameters of its end. Linux does not check how many READs and atomics it asks for: more
// than the device has stand for as many.
func connParam(dev *verbs.Device, in *uapi.CMConnParam) (*rdmacm.ConnParam, error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	fit := func(n uint8, has int) uint8 {
		if int(n) > has {
			return rdmacm.MaxResources
		}
		return n
	}
	const qpns = 1<<24 - 1
	return &rdmacm.ConnParam{
		PrivateData:        bytes.Clone(in.PrivateData[:in.PrivateDataLen]),
		ResponderResources: fit(in.ResponderResources, attr.MaxQPRdAtom), InitiatorDepth: fit(in.InitiatorDepth, attr.MaxQPInitRdAtom),
		FlowControl: in.FlowControl != 0, RetryCount: min(in.RetryCount, maxRetries), RNRRetryCount: min(in.RNRRetryCount, maxRetries),
		QPN: verbs.QPN(in.QPNum & qpns), SRQ: in.SRQ != 0,
	}, nil
}

func (f *File) connect(k *call) error {
	var in uapi.CMConnectArg
	if err := k.inPrefix(uapi.CMConnectLeast, &in); err != nil {
		return err
	}
	if in.ConnParam.Valid == 0 {
		return syscall.EINVAL
	}
	c, err := f.withDevice(in.ID)
	if err != nil {
		return err
	}
	p, err := connParam(c.v.Device(), &in.ConnParam)
	if err != nil {
		return err
	}
	was := c.look(f.m)
	if was.begun || was.listens {
		return syscall.EINVAL
	}
	c.set(f.m, func() { // before an answer can come
		c.phase.begun = true
		c.answers(p.ResponderResources)
	})
	if err := c.v.Connect(p); err != nil {
		c.set(f.m, func() { c.phase.begun = false })
		return err
	}
	return nil
}

func (f *File) listen(k *call) error {
	var in uapi.CMListenArg
	if err := k.in(&in); err != nil {
		return err
	}
	c, err := f.get(in.ID)
	if err != nil {
		return err
	}
	if err := c.v.Listen(int(int32(in.Backlog))); err != nil {
		return err
	}
	c.set(f.m, func() { c.phase.listens = true })
	return nil
}

// accept says yes to a request or, without parameters, at the connecting end that the program's QP is in service. Linux
// rejects the connection if that fails.
func (f *File) accept(k *call) error {
	var in uapi.CMAcceptArg
	if err := k.inPrefix(uapi.CMAcceptLeast, &in); err != nil {
		return err
	}
	c, err := f.withDevice(in.ID)
	if err != nil {
		return err
	}
	if !c.look(f.m).begun {
		return syscall.EINVAL
	}
	if in.ConnParam.Valid == 0 {
		err = c.v.Establish()
		if err == nil {
			c.set(f.m, c.phase.establish)
		}
	} else {
		err = f.acceptRequest(c, &in)
	}
	if err != nil {
		_ = c.v.Reject(nil) // it fails where there is nothing to reject
	}
	return err
}

// acceptRequest says yes to a request. The ID has its events from now on: the first may come before Accept returns.
func (f *File) acceptRequest(c *cmID, in *uapi.CMAcceptArg) error {
	p, err := connParam(c.v.Device(), &in.ConnParam)
	if err != nil {
		return err
	}
	var was uint64
	c.set(f.m, func() { was, c.uid = c.uid, in.UID })
	if was != 0 { // it has been accepted, or is no request's
		err = syscall.EINVAL
	} else {
		err = c.v.Accept(p)
	}
	if err != nil {
		c.set(f.m, func() { c.uid = was })
	}
	return err
}

// Reasons of REJECT that a program may give: IB_CM_REJ_.
const (
	consumerDefined          = 28
	vendorOptionNotSupported = 35
)

func (f *File) reject(k *call) error {
	var in uapi.CMRejectArg
	if err := k.in(&in); err != nil {
		return err
	}
	switch in.Reason {
	case 0, consumerDefined, vendorOptionNotSupported:
	default:
		return syscall.EINVAL
	}
	c, err := f.withDevice(in.ID)
	if err != nil {
		return err
	}
	return c.v.Reject(in.PrivateData[:in.PrivateDataLen])
}

// disconnect ends a connection. Linux has nothing against doing so before there is one, or twice.
func (f *File) disconnect(k *call) error {
	var in uapi.CMDisconnectArg
	if err := k.in(&in); err != nil {
		return err
	}
	c, err := f.withDevice(in.ID)
	if err != nil {
		return err
	}
	p := c.look(f.m)
	if !p.begun && !p.listens {
		return syscall.EINVAL
	}
	if err := c.v.Disconnect(); err != nil && !errors.Is(err, verbs.ErrState) {
		return err
	}
	return nil
}

// notify tells an ID of an event of the program's QP.
func (f *File) notify(k *call) error {
	var in uapi.CMNotifyArg
	if err := k.in(&in); err != nil {
		return err
	}
	c, err := f.withDevice(in.ID)
	if err != nil {
		return err
	}
	p := c.look(f.m)
	switch {
	case !p.begun || c.qpType == verbs.QPTypeUD || verbs.EventType(in.Event) != verbs.EventCommEst:
		return syscall.EINVAL
	case p.established:
		return syscall.EISCONN
	}
	return c.v.Notify(verbs.EventCommEst)
}

// initQPAttr answers with the attributes that take the program's QP to a state.
func (f *File) initQPAttr(k *call) error {
	var (
		in   uapi.CMInitQPAttrArg
		resp uapi.QPAttr
	)
	if err := k.needsAll(resp); err != nil {
		return err
	}
	if err := k.in(&in); err != nil {
		return err
	}
	if in.QPState > uint32(verbs.QPStateErr) {
		return syscall.EINVAL
	}
	c, err := f.withDevice(in.ID)
	if err != nil {
		return err
	}
	a, mask, err := c.qpAttr(f.m, verbs.QPState(in.QPState))
	if err != nil {
		return err
	}
	return k.out(in.Response, userQPAttr(&a, mask))
}

// qpAttr returns the attributes for a state as Linux does: before the ID connects, and for UD, those for INIT whatever
// the state, and after that those for INIT, RTR and RTS as far as the ends have agreed.
func (c *cmID) qpAttr(m *Manager, to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	p := c.look(m)
	if c.qpType == verbs.QPTypeUD || !p.begun && !p.listens {
		a, mask, err := c.v.QPAttr(verbs.QPStateInit)
		a.State, a.Access = to, 0
		return a, mask, err
	}
	if p.over || p.listens {
		return verbs.QPAttr{}, 0, syscall.EINVAL
	}
	a, mask, err := c.v.QPAttr(to)
	if mask&verbs.MaskAccessFlags != 0 {
		a.Access = verbs.AccessRemoteWrite
		if c.mayRead(m) {
			a.Access |= verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
		}
	}
	return a, mask, err
}

// mayRead reports whether the peer has READs and atomics at all.
func (c *cmID) mayRead(m *Manager) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return c.responderResources > 0
}

// userQPAttr returns the attributes of a QP as the program has them.
func userQPAttr(a *verbs.QPAttr, mask verbs.QPAttrMask) uapi.QPAttr {
	return uapi.QPAttr{QPAttrMask: uint32(mask), QPState: uint32(a.State), CurQPState: uint32(a.CurState), PathMTU: uint32(a.PathMTU),
		PathMigState: uint32(a.PathMigState), QKey: uint32(a.QKey), RQPSN: uint32(a.RQPSN), SQPSN: uint32(a.SQPSN), DestQPNum: uint32(a.DestQPN),
		QPAccessFlags: uint32(a.Access), AHAttr: ahAttr(&a.AH), PKeyIndex: uint16(a.PKeyIndex), MaxRdAtomic: uint8(a.MaxRDAtomic),
		MaxDestRdAtomic: uint8(a.MaxDestRDAtomic), MinRNRTimer: a.MinRNRTimer, PortNum: uint8(a.Port), Timeout: a.Timeout, RetryCnt: a.RetryCnt,
		RNRRetry: a.RNRRetry}
}

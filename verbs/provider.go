package verbs

import "context"

// Provider finds and opens devices. Those who implement devices implement it and the Provider…
// interfaces below; users of devices need none of them.
//
// Providers may count on what the facade has checked: arguments are in the ranges that
// DeviceAttr and QPCap state, flags are known, objects belong to the same device and, where the
// verbs ask for it, to the same PD, and Close is called once. After Close has returned nil only
// the hot calls may still come, and return ErrClosed: posting, polling and arming. Providers
// return causes, made with [Errorf]; the facade adds verb and object.
type Provider interface {
	Devices() ([]DeviceInfo, error)
	// Open opens a device, or fails with ErrNotFound if the name is not the provider's.
	Open(name string) (ProviderDevice, error)
}

// ProviderDevice is a provider's side of a Device.
type ProviderDevice interface {
	Info() DeviceInfo
	Query() (DeviceAttr, error)
	QueryPort(port int) (PortAttr, error)
	GID(port, index int) (GIDEntry, error)
	PKey(port, index int) (PKey, error)
	AllocPD() (ProviderPD, error)
	// CreateCQ makes a CQ of at least entries CQEs. The provider puts cq into the events that
	// concern the queue, and calls cq.Notified for each event that Arm asked for.
	CreateCQ(entries int, cq *CQ) (ProviderCQ, error)
	NextEvent(ctx context.Context) (AsyncEvent, error)
	Close() error
}

// ProviderGSI is what a ProviderDevice implements if it lets programs have QP1: see GSI.
type ProviderGSI interface {
	// CreateGSI is ProviderPD.CreateQP for the QP whose number is 1. pd is the device's. A second one is ErrBusy.
	CreateGSI(pd ProviderPD, attr *ProviderQPInitAttr, qp *QP) (ProviderQP, error)
	CommIDs() (base uint32, bits int, err error)
	// ClaimService returns a release that the facade calls once.
	ClaimService(gidIndex int, service uint64) (release func(), err error)
	// Gone is closed when the device is closed or has failed.
	Gone() <-chan struct{}
}

// ProviderPD is a provider's side of a PD.
type ProviderPD interface {
	RegMR(attr MRAttr) (ProviderMR, error)
	// CreateQP makes a QP and raises attr.Cap to what it got. The provider puts qp into the
	// events that concern it.
	CreateQP(attr *ProviderQPInitAttr, qp *QP) (ProviderQP, error)
	// CreateSRQ makes an SRQ of at least the capacities asked for. The provider puts srq into
	// the events that concern it.
	CreateSRQ(attr SRQAttr, srq *SRQ) (ProviderSRQ, error)
	CreateAH(attr AHAttr) (ProviderAH, error)
	AllocMW(t MWType) (ProviderMW, error)
	Close() error
}

// ProviderAH is a provider's side of an AH.
type ProviderAH interface {
	Close() error
}

// ProviderMW is a provider's side of an MW.
type ProviderMW interface {
	RKey() RKey
	Close() error
}

// ProviderSRQ is a provider's side of an SRQ.
type ProviderSRQ interface {
	Query() (SRQAttr, error)
	Modify(attr SRQAttr, mask SRQAttrMask) error
	PostRecv(wrs []RecvWR) (int, error)
	Close() error
}

// MRAttr says what to register: Buf or, where it is nil, Length bytes to allocate.
type MRAttr struct {
	Buf     []byte
	Length  int
	Access  Access
	IOVA    uint64
	HasIOVA bool
}

// ProviderMR is a provider's side of an MR.
type ProviderMR interface {
	Bytes() []byte
	Addr() uint64
	LKey() LKey
	RKey() RKey
	// Rereg takes over from attr and pd what flags name; see MR.Rereg. On an error the region is
	// as it was.
	Rereg(flags ReregFlags, pd ProviderPD, attr MRAttr) error
	// Close fails with ErrBusy while windows are bound to the region.
	Close() error
}

// ProviderCQ is a provider's side of a CQ.
type ProviderCQ interface {
	Cap() int
	Poll(wcs []WC) (int, error)
	// Arm asks for one call of CQ.Notified at the next completion, or at the next solicited
	// or failed one. A completion that came before does not count.
	Arm(solicitedOnly bool) error
	Resize(entries int) error
	Close() error
}

// ProviderQPInitAttr is QPInitAttr with the provider's objects.
type ProviderQPInitAttr struct {
	Type           QPType
	SendCQ, RecvCQ ProviderCQ
	SRQ            ProviderSRQ // or nil
	Cap            QPCap
	SignalAll      bool
}

// ProviderQP is a provider's side of a QP.
type ProviderQP interface {
	QPN() QPN
	// Modify has mask, values and required attributes checked for a transition from the state
	// that State reported; the provider checks again under its own lock by CheckModify, since
	// a QP may go to the error state at any time.
	Modify(attr *QPAttr, mask QPAttrMask) error
	Query() (QPAttr, error)
	State() QPState
	PostSend(wrs []SendWR) (int, error)
	PostRecv(wrs []RecvWR) (int, error)
	AttachMcast(gid GID) error
	DetachMcast(gid GID) error
	Close() error
}

// ProviderCommEst is what a ProviderQP implements if it can tell when the peer's first request
// comes: see QP.NotifyCommEst.
type ProviderCommEst interface {
	NotifyCommEst(f func())
}

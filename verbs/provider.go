package verbs

import "context"

// Provider is for implementers of providers: it finds and opens devices. They implement Provider
// and the Provider… interfaces of this package. Users of devices need none of them.
//
// # The facade
//
// The types of this package are the facade: they check what any device needs checked, and then call
// the provider. A provider may count on this:
//
//   - Arguments are in the ranges that DeviceAttr and QPCap state, and flags are known.
//     DeviceAttr.MaxInline may be MaxInlineUnknown; CreateQP then checks Cap.MaxInlineData itself.
//   - Objects belong to the same device and, where the verbs ask for it, to the same PD.
//   - Address vectors have what the link layer of their port needs: see AHAttr.
//   - Close is called once, and not while the object has dependents. After Close has returned nil
//     only the hot calls may still come: posting, polling and arming. They return ErrClosed.
//
// # The provider
//
// Providers return causes, made with [Errorf] of one of this package's kinds. The facade adds verb
// and object. A provider that drives devices through libibverbs also sees to these differences:
//
//   - An SGE of length 0 names no bytes. Some C libraries take 0 for 2^31 bytes, so the provider
//     leaves such SGEs out.
//   - SendWR.InlineData needs no memory region, and a QP may be posted to from several goroutines.
//   - State may not cost a system call; ProviderQP says how current it must be.
//
// A device declares its promises beyond the verbs in DeviceAttr.Guarantees.
type Provider interface {
	// Devices lists the provider's devices. With an error it may still list those that it found.
	Devices() ([]DeviceInfo, error)
	// Open opens a device. It fails with ErrNotFound if the name is not the provider's, and then
	// another provider is asked.
	Open(name string) (ProviderDevice, error)
}

// ProviderWatcher is for implementers of providers: a [Provider] implements it if it can tell that
// its list of devices may have changed: see [WatchDevices].
type ProviderWatcher interface {
	// Watch has changed called, on any goroutine, whenever the list of Devices, or an address of those devices, may
	// have changed. changed does not block. A call may be under way when stop returns.
	Watch(changed func()) (stop func())
}

// ProviderDevice is for implementers of providers: a provider's side of a [Device].
type ProviderDevice interface {
	// Info returns the device's entry in the list of Devices. Its Transport chooses the table of
	// states for QPs, see Transport.CheckModify. Info is called once.
	Info() DeviceInfo
	// Query returns the attributes. The limits that the facade checks are those of the first call.
	Query() (DeviceAttr, error)
	// QueryPort returns the attributes of a port from 1 to DeviceAttr.PhysPortCnt. The link layer
	// of a port does not change while the device is open.
	QueryPort(port int) (PortAttr, error)
	// GID and PKey fail with ErrNotFound for an index that the table does not have, and GID also
	// for a free entry.
	GID(port, index int) (GIDEntry, error)
	PKey(port, index int) (PKey, error)
	AllocPD() (ProviderPD, error)
	// CreateCQ makes a CQ of at least entries CQEs. The provider puts cq into the events that
	// concern the queue, and calls cq.Notified for each event that Arm asked for.
	CreateCQ(entries int, cq *CQ) (ProviderCQ, error)
	// NextEvent waits for an event. It fails with ctx's error when ctx ends, and with ErrClosed
	// when the device closes. No event concerns an object that was closed before.
	NextEvent(ctx context.Context) (AsyncEvent, error)
	Close() error
}

// ProviderGSI is for implementers of providers: a ProviderDevice implements it if it lets programs
// have QP1: see [GSI].
type ProviderGSI interface {
	// CreateGSI is ProviderPD.CreateQP for the QP whose number is 1. pd is the device's. The error
	// for a second QP1 is ErrBusy.
	CreateGSI(pd ProviderPD, attr *ProviderQPInitAttr, qp *QP) (ProviderQP, error)
	// CommIDs is that of GSI.
	CommIDs() (base uint32, bits int, err error)
	// Serve is that of GSI.
	Serve(gidIndex int) error
	// ClaimService is that of GSI. The facade calls release once.
	ClaimService(gidIndex int, service uint64) (release func(), err error)
	// ShareService is that of GSI. The facade calls release once, and claim not after that.
	ShareService(gidIndex int, service uint64) (claim func() error, release func(), err error)
	// Gone is closed when the device is closed or has failed.
	Gone() <-chan struct{}
	// Changed is that of GSI.
	Changed() <-chan struct{}
}

// ProviderRandom is for implementers of providers: a ProviderDevice implements it if the random
// numbers that a connection manager needs are the device's to choose: in a simulation they follow
// from a seed, so that a test replays. Otherwise they must be unpredictable.
type ProviderRandom interface {
	Random32() uint32
}

// ProviderPD is for implementers of providers: a provider's side of a [PD].
type ProviderPD interface {
	RegMR(attr MRAttr) (ProviderMR, error)
	// CreateQP makes a QP, and raises attr.Cap to the capacities that it has. The provider puts qp
	// into the events that concern it.
	CreateQP(attr *ProviderQPInitAttr, qp *QP) (ProviderQP, error)
	// CreateSRQ makes an SRQ of at least the capacities asked for. The provider puts srq into the
	// events that concern it.
	CreateSRQ(attr SRQAttr, srq *SRQ) (ProviderSRQ, error)
	// CreateAH makes an address handle. attr.Port is given.
	CreateAH(attr AHAttr) (ProviderAH, error)
	AllocMW(t MWType) (ProviderMW, error)
	Close() error
}

// ProviderAH is for implementers of providers: a provider's side of an [AH].
type ProviderAH interface {
	Close() error
}

// ProviderMW is for implementers of providers: a provider's side of an [MW].
type ProviderMW interface {
	// RKey returns the present key. For a window of type 1 it is the new one as soon as the
	// PostSend that binds the window has returned.
	RKey() RKey
	Close() error
}

// ProviderSRQ is for implementers of providers: a provider's side of an [SRQ].
type ProviderSRQ interface {
	Query() (SRQAttr, error)
	Modify(attr SRQAttr, mask SRQAttrMask) error
	PostRecv(wrs []RecvWR) (int, error)
	Close() error
}

// MRAttr is for implementers of providers: it names the memory to register: Buf or, if that is nil,
// Length bytes that the provider allocates.
type MRAttr struct {
	Buf     []byte
	Length  int // bytes
	Access  Access
	IOVA    uint64 // the region's first address, if HasIOVA
	HasIOVA bool
}

// ForeignMemory is for implementers of devices that serve other processes: memory that the process of the device cannot
// map, as [PD.RegForeignMR] registers it. Both methods are called with locks of QPs held, and call nothing of the device.
// They copy all of b or fail; the access that asked for them then fails as one to memory that is gone.
type ForeignMemory interface {
	ReadForeign(b []byte, off uint64) error  // fills b from byte off of the memory on
	WriteForeign(b []byte, off uint64) error // copies b there
}

// ProviderForeignMR is for implementers of providers: a provider's PD implements it if its device reaches memory by calls.
// attr has Length, Access and an IOVA.
type ProviderForeignMR interface {
	RegForeignMR(attr MRAttr, m ForeignMemory) (ProviderMR, error)
}

// ProviderFileMR is for implementers of providers: a provider's PD implements it if its device reaches memory in a file.
// attr has Length, Access and an IOVA.
type ProviderFileMR interface {
	RegFileMR(attr MRAttr, fd int, off int64) (ProviderMR, error)
}

// ProviderMR is for implementers of providers: a provider's side of an [MR].
type ProviderMR interface {
	Bytes() []byte
	Addr() uint64
	LKey() LKey
	RKey() RKey
	// Rereg takes over those of attr's fields and pd that flags name: see MR.Rereg. If it fails
	// with ErrInvalid, ErrLimit or ErrUnsupported, the region is as it was.
	Rereg(flags ReregFlags, pd ProviderPD, attr MRAttr) error
	// Close fails with ErrBusy while windows are bound to the region.
	Close() error
}

// ProviderCQ is for implementers of providers: a provider's side of a [CQ].
type ProviderCQ interface {
	Cap() int
	// Poll fills in WC.QP too, with the QP that CreateQP was given. The number may belong to another
	// QP by the time of the poll.
	Poll(wcs []WC) (int, error)
	// Arm asks for one call of CQ.Notified: at the next completion or, with solicitedOnly, at the
	// next one that is solicited or failed. If Arm is called again before that, the wider of the
	// two holds. A call for a completion that was in the queue before is allowed, unless the
	// device declares GuaranteeExactEvents. A completion that comes after Arm never goes without
	// its call.
	Arm(solicitedOnly bool) error
	Resize(entries int) error
	Close() error
}

// ProviderCQSpin is for implementers of providers: a provider's CQ implements it if [CQ.Wait] and
// [CQ.Soon] may look for a moment before they block. Soon looks for as long as that costs less than
// to block and be woken. It reports whether completions are waiting.
type ProviderCQSpin interface {
	Soon() bool
}

// CompletionSink is for implementers of providers: it takes the completions of a CQ in place of the CQ's own queue. Both methods may be called with locks of
// QPs held. They return soon, and call nothing of the device.
type CompletionSink interface {
	// Complete takes a completion, which is the caller's again when it returns. freed counts the work requests of the
	// queue that the completion belongs to whose places are free with it, since the QP was last in RESET; it is 0 for a
	// receive of an SRQ. Complete returns false if it has no room: the CQ is then overrun.
	Complete(wc *WC, freed uint64) bool
	// Event is called when the event comes that [CQ.Notify] asked for.
	Event()
}

// ProviderCQSink is for implementers of providers: a provider's CQ implements it if it can hand its completions to a
// [CompletionSink]. The CQ does so from SetSink on, which is called before the CQ has a completion, and polls of the CQ find nothing.
type ProviderCQSink interface {
	SetSink(s CompletionSink)
}

// RecvSource is for implementers of providers: it has receives that nobody has posted yet: a receive queue that is about to run out asks for them. Both methods
// may be called with locks of QPs held. They return soon, and call nothing of the device.
type RecvSource interface {
	// Waiting returns how many receives there are.
	Waiting() int
	// Pull hands receives to add, in order, and several times. Add returns how many of them it has posted: fewer if the
	// receive queue is full, and the rest stay with the source. It does not keep the slice.
	Pull(add func([]RecvWR) int)
}

// ProviderRecvSource is for implementers of providers: a provider's QP and SRQ implement it if their receives can come from
// a [RecvSource]. SetRecvSource is called while the QP is in RESET, or before a QP uses the SRQ. Then nobody posts receives.
type ProviderRecvSource interface {
	SetRecvSource(s RecvSource)
}

// ProviderQPInitAttr is for implementers of providers: [QPInitAttr] with the provider's objects.
type ProviderQPInitAttr struct {
	Type           QPType
	SendCQ, RecvCQ ProviderCQ
	SRQ            ProviderSRQ // or nil
	Cap            QPCap
	SignalAll      bool
}

// ProviderQP is for implementers of providers: a provider's side of a [QP].
type ProviderQP interface {
	QPN() QPN
	// Modify is given attributes whose mask has been checked by Transport.CheckModify against the
	// state that State reported, and whose values are in range. A QP may go to the error state at
	// any time, so a provider that keeps the state itself checks again under its own lock.
	Modify(attr *QPAttr, mask QPAttrMask) error
	Query() (QPAttr, error)
	// State returns the state. It is the error state before a failed completion can be polled that
	// took the QP there.
	State() QPState
	PostSend(wrs []SendWR) (int, error)
	PostRecv(wrs []RecvWR) (int, error)
	AttachMcast(gid GID) error
	DetachMcast(gid GID) error
	Close() error
}

// ProviderCommEst is for implementers of providers: a ProviderQP implements it if it can tell when
// the peer's first request comes: see QP.NotifyCommEst.
type ProviderCommEst interface {
	// NotifyCommEst has f called once on a goroutine of its own. nil takes the wish back.
	NotifyCommEst(f func())
}

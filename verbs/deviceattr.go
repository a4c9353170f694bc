package verbs

// AtomicCap says against which other accesses a device's atomics are atomic (enum ibv_atomic_cap).
type AtomicCap uint8

// The atomic capabilities (IBV_ATOMIC_*).
const (
	AtomicNone AtomicCap = 0 // the device has no atomics
	AtomicHCA  AtomicCap = 1 // atomic among the QPs of this device
	AtomicGlob AtomicCap = 2 // also against the atomic instructions of the host's CPUs
)

var atomicCapNames = names[AtomicCap]{"ATOMIC", map[AtomicCap]string{
	AtomicNone: "ATOMIC_NONE", AtomicHCA: "ATOMIC_HCA", AtomicGlob: "ATOMIC_GLOB",
}}

// String returns the C library's name without IBV_, such as ATOMIC_HCA.
func (c AtomicCap) String() string { return atomicCapNames.name(c) }

// MaxInlineUnknown is the value of [DeviceAttr].MaxInline on a device that does not tell how many
// bytes of inline data a work request may have. libibverbs has no attribute for it, so a provider
// that drives devices through libibverbs reports this value. [PD.CreateQP] then passes any
// MaxInlineData on to the device, which grants at least as much or refuses with ErrLimit or
// ErrInvalid. The granted number is in the QP's capacities, see [QP.Query].
const MaxInlineUnknown = -1

// DeviceAttr are the attributes of a device: struct ibv_device_attr and, for the other attributes
// that ibv_devinfo -v prints, struct ibv_device_attr_ex. Fields whose names begin with Max are
// upper limits, counted in objects unless their comment says otherwise.
type DeviceAttr struct {
	FWVer                 string // firmware version, as free text
	NodeGUID              GUID
	SysImageGUID          GUID
	MaxMRSize             uint64 // bytes in one memory region
	PageSizeCap           uint64 // bit mask of the supported page sizes, in bytes
	VendorID              uint32
	VendorPartID          uint32
	HWVer                 uint32
	MaxQP                 int
	MaxQPWR               int // work requests in one work queue
	DeviceCapFlags        DeviceCapFlags
	MaxSGE                int // SGEs in one work request
	MaxSGERd              int // SGEs in one READ
	MaxCQ                 int
	MaxCQE                int // completions in one CQ
	MaxMR                 int
	MaxPD                 int
	MaxQPRdAtom           int // READs and atomics of a peer that one QP answers at a time
	MaxEERdAtom           int
	MaxResRdAtom          int // READs and atomics that all QPs answer at a time
	MaxQPInitRdAtom       int // READs and atomics that one QP has outstanding at its peer
	MaxEEInitRdAtom       int
	AtomicCap             AtomicCap
	MaxEE                 int
	MaxRDD                int
	MaxMW                 int
	MaxRawIPv6QP          int
	MaxRawEthyQP          int
	MaxMcastGrp           int
	MaxMcastQPAttach      int // QPs in one multicast group
	MaxTotalMcastQPAttach int // QPs in all multicast groups together
	MaxAH                 int
	MaxFMR                int
	MaxSRQ                int
	MaxSRQWR              int   // receives in one SRQ
	MaxSRQSGE             int   // SGEs in one receive of an SRQ
	MaxPKeys              int   // entries of a port's P_Key table
	LocalCAAckDelay       uint8 // code n stands for 4.096 µs × 2^n
	PhysPortCnt           int   // ports are numbered from 1 to PhysPortCnt
	MaxInline             int   // bytes of inline data in one work request, or MaxInlineUnknown
	NumCompVectors        int   // interrupts that can raise the events of CQs: see CQAttr.CompVector
	DeviceCapFlagsEx      DeviceCapFlagsEx

	TimestampMask uint64  // completion_timestamp_mask: the bits that timestamps of completions have; 0: there are none
	HCACoreClock  uint64  // hca_core_clock: of the clock of timestamps, in kHz; 0: there is none
	ODPCaps       ODPCaps // what may be done with memory registered by AccessOnDemand

	// UnsharedMemory says why no other process of this host can map the memory of [PD.AllocMR], though
	// the system can share memory: "memfd_create: operation not permitted" in a sandbox that denies it.
	// All else works. It is empty where nothing stands in the way, and has no C symbol.
	UnsharedMemory string

	// RefusedOptions says which options of sockets the system denies to the device, as a sandbox does, and the loss by each:
	// "SO_RXQ_OVFL: operation not permitted: drop_overflow stays 0 …". The device does without them. It is empty where
	// nothing is denied, and has no C symbol.
	RefusedOptions string

	// MissingOps says why DeviceCapFlagsEx leaves out FLUSH or ATOMIC WRITE though the device has it, and the remedy: the host's
	// libibverbs is older than the kernel. It is empty where the device has them or not, and has no C symbol.
	MissingOps string

	// Guarantees are the promises of the device beyond the verbs. They have no C symbol.
	Guarantees Guarantees
}

// Guarantees are promises that a device makes beyond those that the verbs ask of every device. The
// software device of this module makes all of them. Cards make few or none, so a program that is to
// run on cards does not rely on a guarantee before it has looked for it in [DeviceAttr].Guarantees.
// A provider that says nothing promises nothing.
type Guarantees uint32

// The guarantees.
const (
	// GuaranteeExactEvents: an event that [CQ.Notify] armed is never raised by a completion that
	// was in the queue before Notify was called. Without the guarantee a program may be told of
	// an event and then find the queue empty, because it polled that completion already.
	GuaranteeExactEvents Guarantees = 1 << iota

	// GuaranteeLastWordLast: the last aligned 8 bytes of an incoming RDMA write are stored after
	// all other bytes of the write, and atomically. A program that sees them change by
	// [MR.Load64] may then read the rest of the write. Without the guarantee only a completion,
	// at either end, says that a write is whole.
	GuaranteeLastWordLast

	// GuaranteeOverrunStatus: a CQ that had no room for a completion keeps the completions that
	// it holds, and takes no more. [CQ.Poll] gives them and then fails with ErrCQOverrun; [CQ.Wait]
	// does the same. EventCQErr is raised, and EventQPFatal for each QP of the queue that has not
	// failed before. Without the guarantee an overrun may lose or overwrite completions without a
	// word, so a CQ must always have room.
	GuaranteeOverrunStatus

	// GuaranteeResponderEvents: a request that an RC QP refuses, for its key, its range or its
	// operation, raises EventQPAccessErr or EventQPReqErr at the device of that QP. Without the
	// guarantee only the requester hears of it.
	GuaranteeResponderEvents

	// GuaranteeDatagramLimit: [QP.PostSend] refuses a UD message that is longer than the active
	// MTU of the QP's port, with ErrLimit. Without the guarantee such a message may be posted,
	// and fails later or is lost.
	GuaranteeDatagramLimit

	// GuaranteeExactStatus: a failed completion has the status that the InfiniBand specification has for
	// the fault, at the end that is at fault and at its peer. Without the guarantee the first failed
	// completion of a QP says that the request has failed, and another status may name another cause.
	// That the others are flushed, with WCFlushErr, holds on every device.
	GuaranteeExactStatus

	// AllGuarantees is every guarantee.
	AllGuarantees Guarantees = 1<<iota - 1
)

var guaranteeNames = []flagName{
	{uint64(GuaranteeExactEvents), "EXACT_EVENTS"}, {uint64(GuaranteeLastWordLast), "LAST_WORD_LAST"},
	{uint64(GuaranteeOverrunStatus), "OVERRUN_STATUS"}, {uint64(GuaranteeResponderEvents), "RESPONDER_EVENTS"},
	{uint64(GuaranteeDatagramLimit), "DATAGRAM_LIMIT"}, {uint64(GuaranteeExactStatus), "EXACT_STATUS"},
}

// String joins the names of the guarantees by "|", such as EXACT_EVENTS|LAST_WORD_LAST.
func (g Guarantees) String() string { return flagNames(uint64(g), guaranteeNames) }

// DeviceCapFlags are the optional abilities of a device (enum ibv_device_cap_flags).
type DeviceCapFlags uint32

// The capability flags (IBV_DEVICE_*).
const (
	DeviceResizeMaxWR       DeviceCapFlags = 1 << 0
	DeviceBadPKeyCntr       DeviceCapFlags = 1 << 1
	DeviceBadQKeyCntr       DeviceCapFlags = 1 << 2
	DeviceRawMulti          DeviceCapFlags = 1 << 3
	DeviceAutoPathMig       DeviceCapFlags = 1 << 4
	DeviceChangePhyPort     DeviceCapFlags = 1 << 5
	DeviceUDAVPortEnforce   DeviceCapFlags = 1 << 6
	DeviceCurrQPStateMod    DeviceCapFlags = 1 << 7
	DeviceShutdownPort      DeviceCapFlags = 1 << 8
	DeviceInitType          DeviceCapFlags = 1 << 9
	DevicePortActiveEvent   DeviceCapFlags = 1 << 10
	DeviceSysImageGUID      DeviceCapFlags = 1 << 11
	DeviceRCRNRNAKGen       DeviceCapFlags = 1 << 12
	DeviceSRQResize         DeviceCapFlags = 1 << 13
	DeviceNNotifyCQ         DeviceCapFlags = 1 << 14
	DeviceMemWindow         DeviceCapFlags = 1 << 17
	DeviceUDIPCsum          DeviceCapFlags = 1 << 18
	DeviceXRC               DeviceCapFlags = 1 << 20
	DeviceMemMgtExtensions  DeviceCapFlags = 1 << 21
	DeviceMemWindowType2A   DeviceCapFlags = 1 << 23
	DeviceMemWindowType2B   DeviceCapFlags = 1 << 24
	DeviceRCIPCsum          DeviceCapFlags = 1 << 25
	DeviceRawIPCsum         DeviceCapFlags = 1 << 26
	DeviceManagedFlowSteers DeviceCapFlags = 1 << 29
)

var deviceCapNames = []flagName{
	{uint64(DeviceResizeMaxWR), "RESIZE_MAX_WR"}, {uint64(DeviceBadPKeyCntr), "BAD_PKEY_CNTR"},
	{uint64(DeviceBadQKeyCntr), "BAD_QKEY_CNTR"}, {uint64(DeviceRawMulti), "RAW_MULTI"},
	{uint64(DeviceAutoPathMig), "AUTO_PATH_MIG"}, {uint64(DeviceChangePhyPort), "CHANGE_PHY_PORT"},
	{uint64(DeviceUDAVPortEnforce), "UD_AV_PORT_ENFORCE"}, {uint64(DeviceCurrQPStateMod), "CURR_QP_STATE_MOD"},
	{uint64(DeviceShutdownPort), "SHUTDOWN_PORT"}, {uint64(DeviceInitType), "INIT_TYPE"},
	{uint64(DevicePortActiveEvent), "PORT_ACTIVE_EVENT"}, {uint64(DeviceSysImageGUID), "SYS_IMAGE_GUID"},
	{uint64(DeviceRCRNRNAKGen), "RC_RNR_NAK_GEN"}, {uint64(DeviceSRQResize), "SRQ_RESIZE"},
	{uint64(DeviceNNotifyCQ), "N_NOTIFY_CQ"}, {uint64(DeviceMemWindow), "MEM_WINDOW"},
	{uint64(DeviceUDIPCsum), "UD_IP_CSUM"}, {uint64(DeviceXRC), "XRC"},
	{uint64(DeviceMemMgtExtensions), "MEM_MGT_EXTENSIONS"}, {uint64(DeviceMemWindowType2A), "MEM_WINDOW_TYPE_2A"},
	{uint64(DeviceMemWindowType2B), "MEM_WINDOW_TYPE_2B"}, {uint64(DeviceRCIPCsum), "RC_IP_CSUM"},
	{uint64(DeviceRawIPCsum), "RAW_IP_CSUM"}, {uint64(DeviceManagedFlowSteers), "MANAGED_FLOW_STEERING"},
}

// Names returns the names of the set bits as ibv_devinfo prints them, lowest bit first.
func (f DeviceCapFlags) Names() []string {
	var s []string
	for _, b := range deviceCapNames {
		if uint64(f)&b.bit != 0 {
			s = append(s, b.name)
		}
	}
	return s
}

// String joins the names of the set bits by "|".
func (f DeviceCapFlags) String() string { return flagNames(uint64(f), deviceCapNames) }

// DeviceCapFlagsEx are the optional abilities of a device, in 64 bits (device_cap_flags_ex of struct
// ibv_device_attr_ex). The lower 32 are those of [DeviceCapFlags].
type DeviceCapFlagsEx uint64

// The capability flags of the upper half (IB_UVERBS_DEVICE_* of the kernel).
const (
	DeviceFlushGlobal     DeviceCapFlagsEx = 1 << 38 // OpFlush with FlushGlobal
	DeviceFlushPersistent DeviceCapFlagsEx = 1 << 39 // OpFlush with FlushPersistent
	DeviceAtomicWrite     DeviceCapFlagsEx = 1 << 40 // OpAtomicWrite
)

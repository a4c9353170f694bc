package verbs

import "fmt"

// QPType is the transport service of a QP (enum ibv_qp_type).
type QPType uint8

// The QP types (IBV_QPT_*).
const (
	QPTypeRC QPType = 2 // reliable connection
	QPTypeUC QPType = 3 // unreliable connection
	QPTypeUD QPType = 4 // unreliable datagram
)

var qpTypeNames = names[QPType]{"QPT", map[QPType]string{QPTypeRC: "QPT_RC", QPTypeUC: "QPT_UC", QPTypeUD: "QPT_UD"}}

func (t QPType) String() string { return qpTypeNames.name(t) }

// QPCap are the capacities of a QP (struct ibv_qp_cap). CreateQP grants at least what was
// asked for; Query tells how much.
type QPCap struct {
	MaxSendWR     int // work requests that may be outstanding in the send queue
	MaxRecvWR     int // the same of the receive queue
	MaxSendSGE    int // SGEs in a send work request
	MaxRecvSGE    int
	MaxInlineData int // bytes
}

// QPInitAttr says what QP to create (struct ibv_qp_init_attr).
type QPInitAttr struct {
	Type           QPType // 0 stands for QPTypeRC
	SendCQ, RecvCQ *CQ    // may be the same
	SRQ            *SRQ   // where receives come from instead of a queue of the QP's own, or nil
	Cap            QPCap  // with an SRQ, MaxRecvWR and MaxRecvSGE do not count
	SignalAll      bool   // sq_sig_all: every send work request makes a completion
}

// MigState is the state of path migration (enum ibv_mig_state).
type MigState uint8

// The migration states (IBV_MIG_*).
const (
	MigMigrated MigState = 0
	MigRearm    MigState = 1
	MigArmed    MigState = 2
)

// AHAttr is the path to a peer (struct ibv_ah_attr). RoCE has no LIDs and always uses the
// global route.
type AHAttr struct {
	DGID         GID // the peer's
	SGIDIndex    int // ours, by its place in the port's GID table
	FlowLabel    uint32
	HopLimit     uint8 // 0 stands for 64
	TrafficClass uint8 // IPv4 TOS or IPv6 traffic class
	SL           uint8
	Port         int // 0 stands for the QP's
}

// QPAttr are the attributes of a QP (struct ibv_qp_attr). Modify takes those that its mask
// names; Query fills all.
type QPAttr struct {
	State            QPState
	CurState         QPState
	PathMTU          MTU
	PathMigState     MigState
	QKey             QKey
	RQPSN            PSN // the first PSN expected
	SQPSN            PSN // the first PSN sent
	DestQPN          QPN
	Access           Access // what the peer may do through this QP: remote write, read, atomic
	Cap              QPCap
	AH               AHAttr
	AltAH            AHAttr
	PKeyIndex        int
	AltPKeyIndex     int
	EnSQDAsyncNotify bool
	SQDraining       bool
	MaxRDAtomic      int   // READs and atomics outstanding at the peer
	MaxDestRDAtomic  int   // READs and atomics of the peer answered at a time
	MinRNRTimer      uint8 // code 0 to 31: the wait which RNR NAKs ask for
	Port             int
	Timeout          uint8 // code 0 to 31: 4.096 µs × 2^n until a retry; 0 waits without end
	RetryCnt         uint8 // retries 0 to 7 before WCRetryExceeded
	RNRRetry         uint8 // retries 0 to 6 after RNR NAKs; 7 goes on without end
	AltPort          int
	AltTimeout       uint8
	RateLimit        uint32 // kbit/s
}

// Largest values of attributes; the fields in the packets have no more bits.
const (
	maxTimerCode  = 31
	maxRetryCount = 7
)

// access flags that mean something to a QP
const qpAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessMWBind | AccessRelaxedOrdering

// check reports the first value out of range among the attributes in mask.
func (a *QPAttr) check(mask QPAttrMask, dev *DeviceAttr) error {
	in := func(m QPAttrMask) bool { return mask&m != 0 }
	switch {
	case in(MaskState) && a.State > QPStateErr:
		return invalidf("STATE %d is no QP state", a.State)
	case in(MaskPathMTU) && !a.PathMTU.Valid():
		return invalidf("PATH_MTU %d is none of MTU256 (1) to MTU4096 (5)", a.PathMTU)
	case in(MaskRQPSN) && a.RQPSN > max24:
		return invalidf("RQ_PSN %#x has more than 24 bits", uint32(a.RQPSN))
	case in(MaskSQPSN) && a.SQPSN > max24:
		return invalidf("SQ_PSN %#x has more than 24 bits", uint32(a.SQPSN))
	case in(MaskDestQPN) && a.DestQPN > max24:
		return invalidf("DEST_QPN %#x has more than 24 bits", uint32(a.DestQPN))
	case in(MaskTimeout) && a.Timeout > maxTimerCode:
		return invalidf("TIMEOUT %d: codes are 0 to %d, for 4.096 µs × 2^n", a.Timeout, maxTimerCode)
	case in(MaskMinRNRTimer) && a.MinRNRTimer > maxTimerCode:
		return invalidf("MIN_RNR_TIMER %d: codes are 0 to %d", a.MinRNRTimer, maxTimerCode)
	case in(MaskRetryCnt) && a.RetryCnt > maxRetryCount:
		return invalidf("RETRY_CNT %d: 0 to %d", a.RetryCnt, maxRetryCount)
	case in(MaskRNRRetry) && a.RNRRetry > maxRetryCount:
		return invalidf("RNR_RETRY %d: 0 to %d, which is without end", a.RNRRetry, maxRetryCount)
	case in(MaskMaxRDAtomic) && (a.MaxRDAtomic < 0 || a.MaxRDAtomic > dev.MaxQPInitRdAtom):
		return Errorf(ErrLimit, "MAX_QP_RD_ATOMIC %d: the device allows 0 to %d (max_qp_init_rd_atom)", a.MaxRDAtomic, dev.MaxQPInitRdAtom)
	case in(MaskMaxDestRDAtomic) && (a.MaxDestRDAtomic < 0 || a.MaxDestRDAtomic > dev.MaxQPRdAtom):
		return Errorf(ErrLimit, "MAX_DEST_RD_ATOMIC %d: the device allows 0 to %d (max_qp_rd_atom)", a.MaxDestRDAtomic, dev.MaxQPRdAtom)
	case in(MaskPort) && (a.Port < 1 || a.Port > dev.PhysPortCnt):
		return invalidf("PORT %d: ports are 1 to %d", a.Port, dev.PhysPortCnt)
	case in(MaskAccessFlags) && a.Access&^qpAccess != 0:
		return invalidf("ACCESS_FLAGS %v: a QP takes local write and remote write, read and atomic", a.Access&^qpAccess)
	case in(MaskAV) && a.AH.DGID.IsZero():
		return invalidf("AV: the peer's GID (DGID) is empty")
	}
	return nil
}

// Peer is the other end of a connection, as it described itself.
type Peer struct {
	QPN QPN
	PSN PSN // the first that it sends
	GID GID
}

func (p Peer) String() string { return fmt.Sprintf("qp %v psn %v gid %v", p.QPN, p.PSN, p.GID) }

// Path says how RTR reaches the peer. Zero fields have the defaults named.
type Path struct {
	SGIDIndex       int   // our GID
	MTU             MTU   // the port's active MTU
	TrafficClass    uint8 //
	HopLimit        uint8 // 64
	MaxDestRDAtomic int   // READs and atomics of the peer answered at a time: the device's maximum
	MinRNRTimer     uint8 // 12, which is 0.64 ms
}

// Retry says how RTS makes the requester try. DefaultRetry suits most.
type Retry struct {
	Timeout     uint8 // code: 4.096 µs × 2^n; 0 waits without end
	Count       uint8 // 0 to 7
	RNRCount    uint8 // 0 to 6; 7 without end
	MaxRDAtomic int   // READs and atomics outstanding: at most the peer's MaxDestRDAtomic
}

// DefaultRetry waits 67 ms for an acknowledgement, seven times, and for receives without end.
var DefaultRetry = Retry{Timeout: 14, Count: 7, RNRCount: 7, MaxRDAtomic: 16}

const (
	defaultMinRNRTimer = 12
	defaultHopLimit    = 64
)

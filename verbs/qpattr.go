package verbs

import "fmt"

// QPType is the transport service of a QP (enum ibv_qp_type).
type QPType uint8

// The QP types (IBV_QPT_*).
const (
	QPTypeRC QPType = 2 // reliable connection
	QPTypeUC QPType = 3 // unreliable connection
	QPTypeUD QPType = 4 // unreliable datagram

	QPTypeXRCSend QPType = 9  // the initiator of an extended reliable connection: it sends
	QPTypeXRCRecv QPType = 10 // the target: it receives, into XRC SRQs
)

var qpTypeNames = names[QPType]{"QPT", map[QPType]string{
	QPTypeRC: "QPT_RC", QPTypeUC: "QPT_UC", QPTypeUD: "QPT_UD", QPTypeXRCSend: "QPT_XRC_SEND", QPTypeXRCRecv: "QPT_XRC_RECV",
}}

// String returns the C library's name without IBV_, such as QPT_RC.
func (t QPType) String() string { return qpTypeNames.name(t) }

// QPCap are the capacities of a QP (struct ibv_qp_cap). CreateQP grants at least these numbers;
// QP.Query returns how much it granted.
type QPCap struct {
	MaxSendWR     int // work requests in the send queue: posted, and not yet polled for
	MaxRecvWR     int // work requests in the receive queue
	MaxSendSGE    int // SGEs in one send work request
	MaxRecvSGE    int // SGEs in one receive
	MaxInlineData int // bytes of inline data in one send work request
}

// QPInitAttr describes the QP to create (struct ibv_qp_init_attr).
type QPInitAttr struct {
	Type      QPType // 0 stands for QPTypeRC
	SendCQ    *CQ    // takes the completions of send work requests
	RecvCQ    *CQ    // takes the completions of receives; may be SendCQ
	SRQ       *SRQ   // where receives come from in place of a queue of the QP's own, or nil
	Cap       QPCap  // with an SRQ, MaxRecvWR and MaxRecvSGE do not count
	SignalAll bool   // sq_sig_all: every send work request makes a completion
	Context   any    // qp_context: the program's own, for QP.Context
}

// MigState is the state of path migration (enum ibv_mig_state).
type MigState uint8

// The migration states (IBV_MIG_*).
const (
	MigMigrated MigState = 0
	MigRearm    MigState = 1
	MigArmed    MigState = 2
)

// QPAttr are the attributes of a QP (struct ibv_qp_attr). [QP.Modify] takes the attributes that
// its mask names, and looks at no others. [QP.Query] fills in all of them.
type QPAttr struct {
	State            QPState
	CurState         QPState // the state that the caller takes the QP to be in
	PathMTU          MTU
	PathMigState     MigState
	QKey             QKey   // UD: the Q_Key that datagrams to this QP must carry
	RQPSN            PSN    // the PSN of the first packet that is expected
	SQPSN            PSN    // the PSN of the first packet that is sent
	DestQPN          QPN    // the peer
	Access           Access // the peer's access through this QP: remote write, read, atomic
	Cap              QPCap
	AH               AHAttr // the path to the peer (ah_attr)
	AltAH            AHAttr // the alternate path (alt_ah_attr)
	PKeyIndex        int
	AltPKeyIndex     int
	EnSQDAsyncNotify bool  // raise EventSQDrained when the send queue has drained
	SQDraining       bool  // Query: in SQD, and not drained yet
	MaxRDAtomic      int   // READs and atomics that this QP has outstanding at the peer
	MaxDestRDAtomic  int   // READs and atomics of the peer that this QP answers at a time
	MinRNRTimer      uint8 // code 0 to 31: how long the peer is asked to wait when no receive is posted
	Port             int   // ours, counted from 1
	Timeout          uint8 // code 0 to 31: 4.096 µs × 2^n until a retry; 0 waits without end
	RetryCnt         uint8 // retries after a timeout or a lost packet, 0 to 7; then WCRetryExceeded
	RNRRetry         uint8 // retries where the peer had no receive, 0 to 6; 7 goes on without end
	AltPort          int
	AltTimeout       uint8  // code, as Timeout
	RateLimit        uint32 // kbit/s
}

// Largest values of attributes; the fields in the packets have no more bits.
const (
	maxTimerCode  = 31
	maxRetryCount = 7
)

// qpAccess are the access flags that mean something to a QP.
const qpAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessMWBind | AccessFlushGlobal | AccessFlushPersistent | AccessRelaxedOrdering

// check reports the first value out of range among the attributes in mask. It leaves out the
// state and the address vector, which are checked in other places.
func (a *QPAttr) check(mask QPAttrMask, dev *DeviceAttr) error {
	in := func(m QPAttrMask) bool { return mask&m != 0 }
	switch {
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
	case in(MaskPathMigState) && a.PathMigState > MigArmed:
		return invalidf("PATH_MIG_STATE %d is none of MigMigrated (0), MigRearm (1) and MigArmed (2)", a.PathMigState)
	case in(MaskAccessFlags) && a.Access&^qpAccess != 0:
		return invalidf("ACCESS_FLAGS %v: a QP takes local write and remote write, read and atomic", a.Access&^qpAccess)
	}
	return nil
}

// Peer is the other end of a connection, as it described itself.
type Peer struct {
	QPN QPN
	PSN PSN    // of the first packet that it sends
	GID GID    // required on RoCE; on InfiniBand for a peer in another subnet
	LID uint16 // required on InfiniBand; 0 on RoCE
}

// String prints the peer for messages. The LID is left out where it is 0.
func (p Peer) String() string {
	if p.LID == 0 {
		return fmt.Sprintf("qp %v psn %v gid %v", p.QPN, p.PSN, p.GID)
	}
	return fmt.Sprintf("qp %v psn %v lid %#04x gid %v", p.QPN, p.PSN, p.LID, p.GID)
}

// Path says how [QP.RTR] reaches the peer. A zero field has the default that its comment names.
type Path struct {
	SGIDIndex       int    // our GID, by its place in the port's GID table
	MTU             MTU    // default: the port's active MTU
	TrafficClass    uint8  // with RoCEv2 the IPv4 TOS or the IPv6 traffic class
	FlowLabel       uint32 // 20 bits
	HopLimit        uint8  // default: 64
	SL              uint8  // the service level, 4 bits
	SrcPathBits     uint8  // InfiniBand: which of our port's LIDs to send from, 7 bits
	StaticRate      Rate   // InfiniBand: default RateMax, no limit
	MaxDestRDAtomic int    // READs and atomics of the peer answered at a time; default: the most
	MinRNRTimer     uint8  // code 1 to 31; default: 12, which is 0.64 ms
}

// to returns the address vector to a peer.
func (p *Path) to(peer Peer) AHAttr {
	a := AHAttr{
		DLID: peer.LID, SL: p.SL, SrcPathBits: p.SrcPathBits, StaticRate: p.StaticRate,
		DGID: peer.GID, SGIDIndex: p.SGIDIndex, FlowLabel: p.FlowLabel, HopLimit: p.HopLimit, TrafficClass: p.TrafficClass,
	}
	a.setDefaults()
	return a
}

// Retry says how often and for how long [QP.RTS] makes the requester try. DefaultRetry suits most
// programs.
type Retry struct {
	Timeout       uint8 // code 0 to 31: 4.096 µs × 2^n until a retry; 0 waits without end
	RetryCount    uint8 // retries after a timeout or a lost packet, 0 to 7 (retry_cnt)
	RNRRetryCount uint8 // retries where the peer had no receive, 0 to 6; 7 goes on without end (rnr_retry)
	MaxRDAtomic   int   // READs and atomics outstanding: at most the peer's MaxDestRDAtomic
}

// DefaultRetry waits 67 ms for an acknowledgement, retries seven times, and waits for the peer's
// receives without end. Given to [QP.RTS] as it is, its MaxRDAtomic is lowered to the device's
// limit.
var DefaultRetry = Retry{Timeout: 14, RetryCount: 7, RNRRetryCount: 7, MaxRDAtomic: 16}

const (
	defaultMinRNRTimer = 12
	defaultHopLimit    = 64
)

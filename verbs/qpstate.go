package verbs

import (
	"fmt"
	"strings"
)

// QPState is the state of a QP (enum ibv_qp_state).
type QPState uint8

// The QP states (IBV_QPS_*).
const (
	QPStateReset QPState = 0 // as new: takes no work requests
	QPStateInit  QPState = 1 // takes receives
	QPStateRTR   QPState = 2 // ready to receive; not on iWARP
	QPStateRTS   QPState = 3 // ready to send, and to receive
	QPStateSQD   QPState = 4 // the send queue drains, or is drained; on iWARP the connection closes
	QPStateSQE   QPState = 5 // the send queue failed, and it alone (UC and UD)
	QPStateErr   QPState = 6 // every work request fails with WCFlushErr

	// QPStateClosed is the result of QP.State after QP.Close. C has no such state: there the QP is
	// gone.
	QPStateClosed QPState = 255
)

var qpStateNames = names[QPState]{"QPS", map[QPState]string{
	QPStateReset: "QPS_RESET", QPStateInit: "QPS_INIT", QPStateRTR: "QPS_RTR", QPStateRTS: "QPS_RTS",
	QPStateSQD: "QPS_SQD", QPStateSQE: "QPS_SQE", QPStateErr: "QPS_ERR",
	QPStateClosed: "QPS_CLOSED",
}}

// String returns the C library's name without IBV_, such as QPS_RTS.
func (s QPState) String() string { return qpStateNames.name(s) }

// short returns the name without QPS_, for errors.
func (s QPState) short() string { return strings.TrimPrefix(s.String(), "QPS_") }

// QPAttrMask names fields of QPAttr (enum ibv_qp_attr_mask).
type QPAttrMask uint32

// The attributes (IBV_QP_*).
const (
	MaskState            QPAttrMask = 1 << 0
	MaskCurState         QPAttrMask = 1 << 1
	MaskEnSQDAsyncNotify QPAttrMask = 1 << 2
	MaskAccessFlags      QPAttrMask = 1 << 3
	MaskPKeyIndex        QPAttrMask = 1 << 4
	MaskPort             QPAttrMask = 1 << 5
	MaskQKey             QPAttrMask = 1 << 6
	MaskAV               QPAttrMask = 1 << 7
	MaskPathMTU          QPAttrMask = 1 << 8
	MaskTimeout          QPAttrMask = 1 << 9
	MaskRetryCnt         QPAttrMask = 1 << 10
	MaskRNRRetry         QPAttrMask = 1 << 11
	MaskRQPSN            QPAttrMask = 1 << 12
	MaskMaxRDAtomic      QPAttrMask = 1 << 13 // IBV_QP_MAX_QP_RD_ATOMIC
	MaskAltPath          QPAttrMask = 1 << 14
	MaskMinRNRTimer      QPAttrMask = 1 << 15
	MaskSQPSN            QPAttrMask = 1 << 16
	MaskMaxDestRDAtomic  QPAttrMask = 1 << 17
	MaskPathMigState     QPAttrMask = 1 << 18
	MaskCap              QPAttrMask = 1 << 19
	MaskDestQPN          QPAttrMask = 1 << 20
	MaskRateLimit        QPAttrMask = 1 << 25
)

var maskNames = []flagName{
	{uint64(MaskState), "STATE"}, {uint64(MaskCurState), "CUR_STATE"},
	{uint64(MaskEnSQDAsyncNotify), "EN_SQD_ASYNC_NOTIFY"}, {uint64(MaskAccessFlags), "ACCESS_FLAGS"},
	{uint64(MaskPKeyIndex), "PKEY_INDEX"}, {uint64(MaskPort), "PORT"}, {uint64(MaskQKey), "QKEY"},
	{uint64(MaskAV), "AV"}, {uint64(MaskPathMTU), "PATH_MTU"}, {uint64(MaskTimeout), "TIMEOUT"},
	{uint64(MaskRetryCnt), "RETRY_CNT"}, {uint64(MaskRNRRetry), "RNR_RETRY"}, {uint64(MaskRQPSN), "RQ_PSN"},
	{uint64(MaskMaxRDAtomic), "MAX_QP_RD_ATOMIC"}, {uint64(MaskAltPath), "ALT_PATH"},
	{uint64(MaskMinRNRTimer), "MIN_RNR_TIMER"}, {uint64(MaskSQPSN), "SQ_PSN"},
	{uint64(MaskMaxDestRDAtomic), "MAX_DEST_RD_ATOMIC"}, {uint64(MaskPathMigState), "PATH_MIG_STATE"},
	{uint64(MaskCap), "CAP"}, {uint64(MaskDestQPN), "DEST_QPN"}, {uint64(MaskRateLimit), "RATE_LIMIT"},
}

// String joins the names of the attributes, without IBV_QP_, by "|", such as STATE|AV.
func (m QPAttrMask) String() string { return flagNames(uint64(m), maskNames) }

// list returns the names as a list for a sentence.
func (m QPAttrMask) list() string { return strings.ReplaceAll(m.String(), "|", ", ") }

// transition says which attributes a change of state requires, and which it allows besides.
type transition struct{ required, optional QPAttrMask }

// stateTable is the table of ibv_modify_qp for one transport.
type stateTable struct {
	transport string // for errors
	types     map[QPType]map[QPState]map[QPState]transition

	// For a transport whose connections its connection manager makes: the attributes that do not
	// exist, and the text of the error for states to which only the manager takes a QP.
	lacks QPAttrMask
	byCM  map[QPState]string
}

// stateTables are the tables of the transports. Every state may go to RESET besides, and every
// one but RESET to ERR, both without further attributes.
var stateTables = map[Transport]*stateTable{
	TransportIB:    {transport: "InfiniBand", types: ibTransitions},
	TransportIWARP: &iwarpTable,
}

const (
	initRC   = MaskPKeyIndex | MaskPort | MaskAccessFlags
	initUD   = MaskPKeyIndex | MaskPort | MaskQKey
	rtrUC    = MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN
	rtrRC    = rtrUC | MaskMaxDestRDAtomic | MaskMinRNRTimer
	rtrOpt   = MaskAltPath | MaskAccessFlags | MaskPKeyIndex
	rtsRC    = MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskSQPSN | MaskMaxRDAtomic
	rtsOptUC = MaskCurState | MaskAltPath | MaskAccessFlags | MaskPathMigState
	rtsOptRC = rtsOptUC | MaskMinRNRTimer
	rtsOptUD = MaskCurState | MaskQKey
	rtsRecv  = MaskTimeout | MaskSQPSN
	sqdSend  = sqdUC | MaskPort | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskMaxRDAtomic
	sqdRecv  = sqdUC | MaskPort | MaskTimeout | MaskMaxDestRDAtomic | MaskMinRNRTimer
	sqdUC    = MaskAV | MaskAltPath | MaskAccessFlags | MaskPKeyIndex | MaskPathMigState
	sqdRC    = sqdUC | MaskPort | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskMaxRDAtomic |
		MaskMaxDestRDAtomic | MaskMinRNRTimer
)

// ibTransitions is the table of InfiniBand and RoCE.
var ibTransitions = map[QPType]map[QPState]map[QPState]transition{
	QPTypeRC: {
		QPStateReset: {QPStateInit: {required: initRC}},
		QPStateInit:  {QPStateInit: {optional: initRC}, QPStateRTR: {rtrRC, rtrOpt}},
		QPStateRTR:   {QPStateRTS: {rtsRC, rtsOptRC}},
		QPStateRTS:   {QPStateRTS: {optional: rtsOptRC}, QPStateSQD: {optional: MaskEnSQDAsyncNotify}},
		QPStateSQD:   {QPStateRTS: {optional: rtsOptRC}, QPStateSQD: {optional: sqdRC}},
	},
	QPTypeUC: {
		QPStateReset: {QPStateInit: {required: initRC}},
		QPStateInit:  {QPStateInit: {optional: initRC}, QPStateRTR: {rtrUC, rtrOpt}},
		QPStateRTR:   {QPStateRTS: {MaskSQPSN, rtsOptUC}},
		QPStateRTS:   {QPStateRTS: {optional: rtsOptUC}, QPStateSQD: {optional: MaskEnSQDAsyncNotify}},
		QPStateSQD:   {QPStateRTS: {optional: rtsOptUC}, QPStateSQD: {optional: sqdUC}},
		QPStateSQE:   {QPStateRTS: {optional: MaskCurState | MaskAccessFlags}},
	},
	QPTypeXRCSend: {
		QPStateReset: {QPStateInit: {required: initRC}},
		QPStateInit:  {QPStateInit: {optional: initRC}, QPStateRTR: {rtrUC, rtrOpt}},
		QPStateRTR:   {QPStateRTS: {rtsRC, rtsOptUC}},
		QPStateRTS:   {QPStateRTS: {optional: rtsOptUC}, QPStateSQD: {optional: MaskEnSQDAsyncNotify}},
		QPStateSQD:   {QPStateRTS: {optional: rtsOptUC}, QPStateSQD: {optional: sqdSend}},
	},
	QPTypeXRCRecv: {
		QPStateReset: {QPStateInit: {required: initRC}},
		QPStateInit:  {QPStateInit: {optional: initRC}, QPStateRTR: {rtrRC, rtrOpt}},
		QPStateRTR:   {QPStateRTS: {rtsRecv, rtsOptRC}},
		QPStateRTS:   {QPStateRTS: {optional: rtsOptRC}, QPStateSQD: {optional: MaskEnSQDAsyncNotify}},
		QPStateSQD:   {QPStateRTS: {optional: rtsOptRC}, QPStateSQD: {optional: sqdRecv}},
	},
	QPTypeUD: {
		QPStateReset: {QPStateInit: {required: initUD}},
		QPStateInit:  {QPStateInit: {optional: initUD}, QPStateRTR: {optional: MaskPKeyIndex | MaskQKey}},
		QPStateRTR:   {QPStateRTS: {MaskSQPSN, rtsOptUD}},
		QPStateRTS:   {QPStateRTS: {optional: rtsOptUD}, QPStateSQD: {optional: MaskEnSQDAsyncNotify}},
		QPStateSQD:   {QPStateRTS: {optional: rtsOptUD}, QPStateSQD: {optional: MaskPKeyIndex | MaskQKey}},
		QPStateSQE:   {QPStateRTS: {optional: rtsOptUD}},
	},
}

// iwarpTable is the table of iWARP. Its QPs are RC only. The connection manager, which the kernel
// runs, takes a QP from INIT to RTS when it has made the TCP connection. So the numbers by which
// InfiniBand connects two QPs do not exist, and TCP's own retries stand in for the QP's. A program
// makes the QP, sets its rights, closes the connection and starts anew.
var iwarpTable = stateTable{
	transport: "iWARP",
	types: map[QPType]map[QPState]map[QPState]transition{
		QPTypeRC: {
			QPStateReset: {QPStateInit: {optional: MaskPort | MaskAccessFlags}},
			QPStateInit:  {QPStateInit: {optional: MaskPort | MaskAccessFlags}},
			QPStateRTS: {
				QPStateRTS: {optional: MaskCurState | MaskAccessFlags},
				QPStateSQD: {}, // closes the connection when all posted work requests have been sent
			},
		},
	},
	lacks: MaskPKeyIndex | MaskQKey | MaskAV | MaskAltPath | MaskPathMTU | MaskPathMigState | MaskDestQPN |
		MaskSQPSN | MaskRQPSN | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskMinRNRTimer,
	byCM: map[QPState]string{
		QPStateRTR: "iWARP has no state RTR: its connection manager takes the QP from INIT to RTS when it has made the connection",
		QPStateRTS: "on iWARP only the connection manager takes a QP to RTS, when it has made the connection",
	},
}

// hasType reports whether the transport has QPs of a type. Of a transport without a table nothing
// is known, and its devices decide.
func (t Transport) hasType(typ QPType) error {
	table := stateTables[t]
	if table == nil {
		table = stateTables[TransportIB]
	}
	if _, ok := table.types[typ]; ok {
		return nil
	}
	if t == TransportIWARP && typ.valid() {
		return Errorf(ErrUnsupported, "type %v: iWARP has RC QPs only", typ)
	}
	return Errorf(ErrUnsupported, "type %v", typ)
}

// valid reports whether t is a type that we have. Raw datagrams are none: IBTA CA17-28.
func (t QPType) valid() bool { return t >= QPTypeRC && t <= QPTypeUD || t.isXRC() }

// CheckModify is [Transport.CheckModify] of TransportIB, whose table is that of InfiniBand and RoCE.
func CheckModify(t QPType, from QPState, attr *QPAttr, mask QPAttrMask) (QPState, error) {
	return TransportIB.CheckModify(t, from, attr, mask)
}

// CheckModify reports whether ibv_modify_qp allows a change of a QP's attributes, by the table of
// the transport. The QP is of type typ and in state from. The change is to attr.State if mask has
// MaskState, and stays in from otherwise. CheckModify returns the state that the QP then has.
//
// It looks at the states and at mask, and not at the values of the other attributes. The errors:
//
//   - ErrState if the state from does not allow the change, or is not attr.CurState;
//   - ErrInvalid if attributes are missing or do not belong to the change, which the text lists;
//   - ErrUnsupported if the transport does not have an attribute at all, or leaves the change to
//     its connection manager, as iWARP does.
//
// Transports other than InfiniBand and iWARP have no table: everything is allowed, and the device
// decides.
func (t Transport) CheckModify(typ QPType, from QPState, attr *QPAttr, mask QPAttrMask) (QPState, error) {
	to := from
	if mask&MaskState != 0 {
		to = attr.State
	}
	if mask&MaskCurState != 0 && attr.CurState != from {
		return from, Errorf(ErrState, "%s->%s: CUR_STATE is given as %s, but the QP is in %s",
			from.short(), to.short(), attr.CurState.short(), from.short())
	}
	table := stateTables[t]
	if table == nil {
		return to, nil
	}
	given := mask &^ MaskState
	var tr transition
	if to != QPStateReset && (to != QPStateErr || from == QPStateReset) {
		var ok bool
		if tr, ok = table.types[typ][from][to]; !ok {
			if why := table.byCM[to]; why != "" && from != to {
				return from, Errorf(ErrUnsupported, "%s->%s: %s", from.short(), to.short(), table.withoutAttrs(why, given))
			}
			return from, Errorf(ErrState, "%s->%s: no such transition for %v; %s",
				from.short(), to.short(), typ, table.wayOn(typ, from))
		}
	}
	if given&table.lacks != 0 {
		return from, Errorf(ErrUnsupported, "%s->%s: %s", from.short(), to.short(), table.withoutAttrs("", given))
	}
	missing := tr.required &^ given
	surplus := given &^ (tr.required | tr.optional)
	if missing == 0 && surplus == 0 {
		return to, nil
	}
	var parts []string
	if missing != 0 {
		parts = append(parts, "missing "+missing.list())
	}
	if surplus != 0 {
		parts = append(parts, "not allowed: "+surplus.list())
	}
	return from, invalidf("%s->%s: %s", from.short(), to.short(), strings.Join(parts, "; "))
}

// withoutAttrs adds to why which of the given attributes the transport does not have.
func (s *stateTable) withoutAttrs(why string, given QPAttrMask) string {
	given &= s.lacks
	if given == 0 {
		return why
	}
	if why != "" {
		why += "; "
	}
	return why + s.transport + " has no " + given.list()
}

// wayOn says to which states a QP of a type can go from a state.
func (s *stateTable) wayOn(typ QPType, from QPState) string {
	list := ""
	for to := QPStateReset; to <= QPStateErr; to++ {
		if _, ok := s.types[typ][from][to]; ok && to != from {
			list += to.short() + ", "
		}
	}
	if from == QPStateReset {
		return fmt.Sprintf("from RESET a QP goes to %s", strings.TrimSuffix(list, ", "))
	}
	return fmt.Sprintf("from %s a QP goes to %sRESET or ERR", from.short(), list)
}

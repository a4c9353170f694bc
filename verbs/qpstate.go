package verbs

import (
	"fmt"
	"strings"
)

// QPState is the state of a QP (enum ibv_qp_state).
type QPState uint8

// The QP states (IBV_QPS_*).
const (
	QPStateReset QPState = 0
	QPStateInit  QPState = 1 // receives may be posted
	QPStateRTR   QPState = 2 // ready to receive
	QPStateRTS   QPState = 3 // ready to send
	QPStateSQD   QPState = 4 // send queue drains, or is drained
	QPStateSQE   QPState = 5 // send queue error (UC and UD)
	QPStateErr   QPState = 6 // all work requests are flushed
)

var qpStateNames = names[QPState]{"QPS", map[QPState]string{
	QPStateReset: "QPS_RESET", QPStateInit: "QPS_INIT", QPStateRTR: "QPS_RTR", QPStateRTS: "QPS_RTS",
	QPStateSQD: "QPS_SQD", QPStateSQE: "QPS_SQE", QPStateErr: "QPS_ERR",
}}

func (s QPState) String() string { return qpStateNames.name(s) }

// short is the name without QPS_, for errors.
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

// String lists the attributes without IBV_QP_, joined by "|".
func (m QPAttrMask) String() string { return flagNames(uint64(m), maskNames) }

// list is String for a sentence.
func (m QPAttrMask) list() string { return strings.ReplaceAll(m.String(), "|", ", ") }

// transition says which attributes a change of state requires, and which it allows besides.
type transition struct{ required, optional QPAttrMask }

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
	sqdUC    = MaskAV | MaskAltPath | MaskAccessFlags | MaskPKeyIndex | MaskPathMigState
	sqdRC    = sqdUC | MaskPort | MaskTimeout | MaskRetryCnt | MaskRNRRetry | MaskMaxRDAtomic |
		MaskMaxDestRDAtomic | MaskMinRNRTimer
)

// transitions is the table of ibv_modify_qp. Every state may go to RESET besides, and every one
// but RESET to ERR, both without further attributes.
var transitions = map[QPType]map[QPState]map[QPState]transition{
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
	QPTypeUD: {
		QPStateReset: {QPStateInit: {required: initUD}},
		QPStateInit:  {QPStateInit: {optional: initUD}, QPStateRTR: {optional: MaskPKeyIndex | MaskQKey}},
		QPStateRTR:   {QPStateRTS: {MaskSQPSN, rtsOptUD}},
		QPStateRTS:   {QPStateRTS: {optional: rtsOptUD}, QPStateSQD: {optional: MaskEnSQDAsyncNotify}},
		QPStateSQD:   {QPStateRTS: {optional: rtsOptUD}, QPStateSQD: {optional: MaskPKeyIndex | MaskQKey}},
		QPStateSQE:   {QPStateRTS: {optional: rtsOptUD}},
	},
}

// CheckModify reports whether a QP of type t in state from may be modified by attributes named
// by mask, to attr.State if the mask has MaskState, and returns the state it then has. The
// error lists what is missing and what does not belong.
func CheckModify(t QPType, from QPState, attr *QPAttr, mask QPAttrMask) (QPState, error) {
	to := from
	if mask&MaskState != 0 {
		to = attr.State
	}
	if mask&MaskCurState != 0 && attr.CurState != from {
		return from, Errorf(ErrState, "%s->%s: CUR_STATE is given as %s, but the QP is in %s",
			from.short(), to.short(), attr.CurState.short(), from.short())
	}
	var tr transition
	if to != QPStateReset && (to != QPStateErr || from == QPStateReset) {
		var ok bool
		if tr, ok = transitions[t][from][to]; !ok {
			return from, Errorf(ErrState, "%s->%s: no such transition for %v; %s",
				from.short(), to.short(), t, wayOn(t, from))
		}
	}
	given := mask &^ MaskState
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

// wayOn says to which states a QP of type t can go from a state.
func wayOn(t QPType, from QPState) string {
	s := ""
	for to := QPStateReset; to <= QPStateErr; to++ {
		if _, ok := transitions[t][from][to]; ok && to != from {
			s += to.short() + ", "
		}
	}
	if from == QPStateReset {
		return fmt.Sprintf("from RESET a QP goes to %s", strings.TrimSuffix(s, ", "))
	}
	return fmt.Sprintf("from %s a QP goes to %sRESET or ERR", from.short(), s)
}

package verbs_test

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// modifyTable is the table of ibv_modify_qp as the Linux kernel applies it, written down a second time:
// from and to, then the attributes that RC, UC and UD require and allow. "=" stands for those of the
// type before.
const modifyTable = `
RESET INIT | PKEY_INDEX PORT ACCESS_FLAGS | = | PKEY_INDEX PORT QKEY
           | - | - | -
INIT INIT  | - | - | -
           | PKEY_INDEX PORT ACCESS_FLAGS | = | PKEY_INDEX PORT QKEY
INIT RTR   | AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER | AV PATH_MTU DEST_QPN RQ_PSN | -
           | ALT_PATH ACCESS_FLAGS PKEY_INDEX | = | PKEY_INDEX QKEY
RTR RTS    | TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC | SQ_PSN | SQ_PSN
           | CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE | CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE | CUR_STATE QKEY
RTS RTS    | - | - | -
           | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE | CUR_STATE QKEY
RTS SQD    | - | - | -
           | EN_SQD_ASYNC_NOTIFY | = | =
SQD SQD    | - | - | -
           | PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE | AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE | PKEY_INDEX QKEY
SQD RTS    | - | - | -
           | CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE | CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE | CUR_STATE QKEY
SQE RTS    | x | - | -
           | - | CUR_STATE ACCESS_FLAGS | CUR_STATE QKEY
`

// attributes are the numbers of enum ibv_qp_attr_mask.
var attributes = map[string]int{
	"STATE": 0, "CUR_STATE": 1, "EN_SQD_ASYNC_NOTIFY": 2, "ACCESS_FLAGS": 3, "PKEY_INDEX": 4, "PORT": 5, "QKEY": 6,
	"AV": 7, "PATH_MTU": 8, "TIMEOUT": 9, "RETRY_CNT": 10, "RNR_RETRY": 11, "RQ_PSN": 12, "MAX_QP_RD_ATOMIC": 13,
	"ALT_PATH": 14, "MIN_RNR_TIMER": 15, "SQ_PSN": 16, "MAX_DEST_RD_ATOMIC": 17, "PATH_MIG_STATE": 18, "CAP": 19,
	"DEST_QPN": 20, "RATE_LIMIT": 25,
}

var stateNames = []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// change is a transition of a QP type.
type change struct {
	typ      verbs.QPType
	from, to verbs.QPState
}

func (c change) String() string {
	return fmt.Sprintf("%v %s->%s", c.typ, stateNames[c.from], stateNames[c.to])
}

// attr returns the attributes of c. CheckModify looks at the states alone.
func (c change) attr() *verbs.QPAttr { return &verbs.QPAttr{State: c.to, CurState: c.from} }

type needs struct{ required, optional verbs.QPAttrMask }

func maskOf(t *testing.T, words string) (m verbs.QPAttrMask) {
	for _, w := range strings.Fields(words) {
		if w == "-" {
			continue
		}
		b, ok := attributes[w]
		if !ok {
			t.Fatalf("modifyTable: %q", w)
		}
		m |= 1 << b
	}
	return m
}

func parseModifyTable(t *testing.T) map[change]needs {
	table := map[change]needs{}
	lines := strings.Split(strings.TrimSpace(modifyTable), "\n")
	for i := 0; i < len(lines); i += 2 {
		req, opt := strings.Split(lines[i], "|"), strings.Split(lines[i+1], "|")
		states := strings.Fields(req[0])
		from, to := stateOf(t, states[0]), stateOf(t, states[1])
		for j, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC, verbs.QPTypeUD} {
			for _, side := range [][]string{req, opt} {
				if side[j+1] = strings.TrimSpace(side[j+1]); side[j+1] == "=" {
					side[j+1] = side[j]
				}
			}
			if req[j+1] == "x" { // not for this type
				continue
			}
			table[change{typ, from, to}] = needs{maskOf(t, req[j+1]), maskOf(t, opt[j+1])}
		}
	}
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC, verbs.QPTypeUD} {
		for from := verbs.QPStateReset; from <= verbs.QPStateErr; from++ {
			table[change{typ, from, verbs.QPStateReset}] = needs{}
			if from != verbs.QPStateReset {
				table[change{typ, from, verbs.QPStateErr}] = needs{}
			}
		}
	}
	return table
}

func stateOf(t *testing.T, name string) verbs.QPState {
	for i, s := range stateNames {
		if s == name {
			return verbs.QPState(i)
		}
	}
	t.Fatalf("modifyTable: state %q", name)
	return 0
}

// eachBit calls f for each attribute in m.
func eachBit(m verbs.QPAttrMask, f func(one verbs.QPAttrMask, name string)) {
	for name, b := range attributes {
		if m>>b&1 != 0 {
			f(1<<b, name)
		}
	}
}

// TestCheckModify compares every pair of states of every type, with every attribute, with the table.
func TestCheckModify(t *testing.T) {
	table := parseModifyTable(t)
	everything := verbs.QPAttrMask(0)
	for _, b := range attributes {
		everything |= 1 << b
	}
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC, verbs.QPTypeUD} {
		for from := verbs.QPStateReset; from <= verbs.QPStateErr; from++ {
			for to := verbs.QPStateReset; to <= verbs.QPStateErr; to++ {
				c := change{typ, from, to}
				n, ok := table[c]
				if !ok {
					checkForbidden(t, c, table)
					continue
				}
				checkAllowed(t, c, n.required)
				checkAllowed(t, c, n.required|n.optional)
				eachBit(n.optional, func(one verbs.QPAttrMask, _ string) { checkAllowed(t, c, n.required|one) })
				eachBit(n.required, func(one verbs.QPAttrMask, name string) {
					checkRefused(t, c, (n.required|n.optional)&^one, "missing "+name)
				})
				eachBit(everything&^(n.required|n.optional|verbs.MaskState), func(one verbs.QPAttrMask, name string) {
					checkRefused(t, c, n.required|one, "not allowed: "+name)
				})
			}
		}
	}
}

func checkAllowed(t *testing.T, c change, mask verbs.QPAttrMask) {
	t.Helper()
	if to, err := verbs.CheckModify(c.typ, c.from, c.attr(), mask|verbs.MaskState); err != nil || to != c.to {
		t.Errorf("%v with %v: to %v, %v; want %v", c, mask, to, err, c.to)
	}
}

func checkRefused(t *testing.T, c change, mask verbs.QPAttrMask, want string) {
	t.Helper()
	to, err := verbs.CheckModify(c.typ, c.from, c.attr(), mask|verbs.MaskState)
	if !errors.Is(err, verbs.ErrInvalid) || to != c.from {
		t.Errorf("%v with %v: to %v, %v; want %v, %v", c, mask, to, err, c.from, verbs.ErrInvalid)
		return
	}
	states := stateNames[c.from] + "->" + stateNames[c.to] + ": "
	if err.Error() != states+want {
		t.Errorf("%v with %v: %q, want %q", c, mask, err, states+want)
	}
}

// checkForbidden also compares the states that the error calls possible with the table.
func checkForbidden(t *testing.T, c change, table map[change]needs) {
	t.Helper()
	for _, mask := range []verbs.QPAttrMask{0, verbs.MaskAccessFlags, verbs.MaskSQPSN} {
		to, err := verbs.CheckModify(c.typ, c.from, c.attr(), mask|verbs.MaskState)
		if !errors.Is(err, verbs.ErrState) || to != c.from {
			t.Errorf("%v: to %v, %v; want %v, %v", c, to, err, c.from, verbs.ErrState)
			continue
		}
		text := err.Error()
		if !strings.Contains(text, stateNames[c.from]+"->"+stateNames[c.to]+": no such transition for "+c.typ.String()) {
			t.Errorf("%v: %q, want it to say that there is no such transition", c, text)
		}
		_, ways, _ := strings.Cut(text, "goes to ")
		for other := verbs.QPStateReset; other <= verbs.QPStateErr; other++ {
			_, possible := table[change{c.typ, c.from, other}]
			if named := strings.Contains(ways, stateNames[other]); other != c.from && named != possible {
				t.Errorf("%v: %q, but that %s is possible is %v, want it named if it is", c, text, stateNames[other], possible)
			}
		}
	}
}

// Without STATE in the mask the QP stays in its state. Not every state allows that.
func TestCheckModifyWithoutState(t *testing.T) {
	tests := []struct {
		from verbs.QPState
		mask verbs.QPAttrMask
		want string // of the error
	}{
		{verbs.QPStateInit, verbs.MaskAccessFlags, ""},
		{verbs.QPStateRTR, verbs.MaskAccessFlags, "RTR->RTR: no such transition"},
		{verbs.QPStateRTS, verbs.MaskMinRNRTimer | verbs.MaskAccessFlags, ""},
		{verbs.QPStateRTS, verbs.MaskTimeout, "RTS->RTS: not allowed: TIMEOUT"},
		{verbs.QPStateSQD, verbs.MaskTimeout, ""},
		{verbs.QPStateErr, verbs.MaskTimeout, "ERR->ERR: not allowed: TIMEOUT"},
	}
	for _, tt := range tests {
		// Without its bit the state in attr does not count.
		to, err := verbs.CheckModify(verbs.QPTypeRC, tt.from, &verbs.QPAttr{State: verbs.QPStateSQE}, tt.mask)
		if to != tt.from || !errorHas(err, tt.want) {
			t.Errorf("%v with %v: to %v, %v; want %q", tt.from, tt.mask, to, err, tt.want)
		}
	}
}

func TestCheckModifyCurState(t *testing.T) {
	attr := &verbs.QPAttr{State: verbs.QPStateRTS, CurState: verbs.QPStateSQD}
	mask := verbs.MaskState | verbs.MaskCurState
	if _, err := verbs.CheckModify(verbs.QPTypeRC, verbs.QPStateSQD, attr, mask); err != nil {
		t.Errorf("right CUR_STATE: %v", err)
	}
	_, err := verbs.CheckModify(verbs.QPTypeRC, verbs.QPStateRTS, attr, mask)
	if !errors.Is(err, verbs.ErrState) || !errorHas(err, "RTS->RTS: CUR_STATE is given as SQD, but the QP is in RTS") {
		t.Errorf("wrong CUR_STATE: %v, want %v that says so", err, verbs.ErrState)
	}
}

// One error lists several faults, and a type that does not exist has no transitions.
func TestCheckModifyTexts(t *testing.T) {
	_, err := verbs.CheckModify(verbs.QPTypeRC, verbs.QPStateInit, &verbs.QPAttr{State: verbs.QPStateRTR},
		verbs.MaskState|verbs.MaskAV|verbs.MaskDestQPN|verbs.MaskRQPSN|verbs.MaskMinRNRTimer|verbs.MaskSQPSN|verbs.MaskTimeout)
	const want = "INIT->RTR: missing PATH_MTU, MAX_DEST_RD_ATOMIC; not allowed: TIMEOUT, SQ_PSN"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	_, err = verbs.CheckModify(77, verbs.QPStateReset, &verbs.QPAttr{State: verbs.QPStateInit}, verbs.MaskState)
	if !errors.Is(err, verbs.ErrState) || !errorHas(err, "QPT(77)") {
		t.Errorf("type 77: %v, want %v and QPT(77)", err, verbs.ErrState)
	}
	_, err = verbs.CheckModify(verbs.QPTypeRC, verbs.QPStateRTS, &verbs.QPAttr{}, 1<<30)
	if !errorHas(err, "not allowed: 0x40000000") {
		t.Errorf("unknown bit: %v, want not allowed: 0x40000000", err)
	}
}

// The masks have the C library's values, and print its names.
func TestQPAttrMask(t *testing.T) {
	for name, b := range attributes {
		if got := verbs.QPAttrMask(1 << b).String(); got != name {
			t.Errorf("bit %d prints %q, want %q", b, got, name)
		}
	}
	all := verbs.MaskState | verbs.MaskCurState | verbs.MaskEnSQDAsyncNotify | verbs.MaskAccessFlags | verbs.MaskPKeyIndex |
		verbs.MaskPort | verbs.MaskQKey | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskTimeout | verbs.MaskRetryCnt |
		verbs.MaskRNRRetry | verbs.MaskRQPSN | verbs.MaskMaxRDAtomic | verbs.MaskAltPath | verbs.MaskMinRNRTimer |
		verbs.MaskSQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskPathMigState | verbs.MaskCap | verbs.MaskDestQPN | verbs.MaskRateLimit
	if n := bits.OnesCount32(uint32(all)); n != len(attributes) {
		t.Errorf("%d masks, want %d", n, len(attributes))
	}
	if got := (verbs.MaskState | verbs.MaskAV | 1<<31).String(); got != "STATE|AV|0x80000000" {
		t.Errorf("printed %q, want the names and the number of the unknown bit", got)
	}
}

// iwarpTable has the transitions of an iWARP QP by Modify, besides those to RESET and ERR: from and
// to, then the attributes that are allowed. None is required.
const iwarpTable = `
RESET INIT | PORT ACCESS_FLAGS
INIT INIT  | PORT ACCESS_FLAGS
RTS RTS    | CUR_STATE ACCESS_FLAGS
RTS SQD    |
`

// iwarpLacks are the attributes that iWARP does not have: TCP and the connection manager see to them.
const iwarpLacks = "PKEY_INDEX QKEY AV ALT_PATH PATH_MTU PATH_MIG_STATE DEST_QPN SQ_PSN RQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MIN_RNR_TIMER"

// TestCheckModifyIWARP compares every pair of states, with every attribute, with the table.
func TestCheckModifyIWARP(t *testing.T) {
	allowed := map[[2]verbs.QPState]verbs.QPAttrMask{}
	for _, line := range strings.Split(strings.TrimSpace(iwarpTable), "\n") {
		states, attrs, _ := strings.Cut(line, "|")
		s := strings.Fields(states)
		allowed[[2]verbs.QPState{stateOf(t, s[0]), stateOf(t, s[1])}] = maskOf(t, attrs)
	}
	for s := verbs.QPStateReset; s <= verbs.QPStateErr; s++ {
		allowed[[2]verbs.QPState{s, verbs.QPStateReset}] = 0
		if s != verbs.QPStateReset {
			allowed[[2]verbs.QPState{s, verbs.QPStateErr}] = 0
		}
	}
	lacks := maskOf(t, iwarpLacks)
	for from := verbs.QPStateReset; from <= verbs.QPStateErr; from++ {
		for to := verbs.QPStateReset; to <= verbs.QPStateErr; to++ {
			c := change{verbs.QPTypeRC, from, to}
			try := func(mask verbs.QPAttrMask) (verbs.QPState, error) {
				return verbs.TransportIWARP.CheckModify(c.typ, from, c.attr(), mask|verbs.MaskState)
			}
			attrs, ok := allowed[[2]verbs.QPState{from, to}]
			if !ok {
				byCM := to != from && (to == verbs.QPStateRTR || to == verbs.QPStateRTS)
				want := verbs.ErrState
				if byCM {
					want = verbs.ErrUnsupported
				}
				if got, err := try(0); got != from || !errors.Is(err, want) || byCM && !errorHas(err, "connection manager") {
					t.Errorf("%v: to %v, %v; want an error that is %q, and the QP where it was", c, got, err, want)
				}
				continue
			}
			for _, mask := range []verbs.QPAttrMask{0, attrs} {
				if got, err := try(mask); got != to || err != nil {
					t.Errorf("%v with %v: to %v, %v; want no error", c, mask, got, err)
				}
			}
			eachBit(^(attrs | verbs.MaskState), func(one verbs.QPAttrMask, name string) {
				text, kind := stateNames[from]+"->"+stateNames[to]+": not allowed: "+name, verbs.ErrInvalid
				if one&lacks != 0 {
					text, kind = stateNames[from]+"->"+stateNames[to]+": iWARP has no "+name, verbs.ErrUnsupported
				}
				if got, err := try(one); got != from || !errors.Is(err, kind) || err.Error() != text {
					t.Errorf("%v with %s: to %v, %v; want %q", c, name, got, err, text)
				}
			})
		}
	}
}

// For a transport without a table everything is allowed but a wrong CUR_STATE.
func TestCheckModifyUnknownTransport(t *testing.T) {
	for _, tr := range []verbs.Transport{verbs.TransportUnknown, verbs.TransportUSNIC, verbs.TransportUSNICUDP, verbs.TransportUnspecified} {
		attr := &verbs.QPAttr{State: verbs.QPStateRTS, CurState: verbs.QPStateInit}
		if to, err := tr.CheckModify(verbs.QPTypeUD, verbs.QPStateReset, attr, verbs.MaskState|verbs.MaskRateLimit); to != verbs.QPStateRTS || err != nil {
			t.Errorf("%v: RESET to RTS: to %v, %v; want RTS and no error", tr, to, err)
		}
		if _, err := tr.CheckModify(verbs.QPTypeUD, verbs.QPStateReset, attr, verbs.MaskState|verbs.MaskCurState); !errors.Is(err, verbs.ErrState) {
			t.Errorf("%v: a wrong CUR_STATE: %v, want ErrState", tr, err)
		}
	}
}

package verbs

import "fmt"

// CongestionControl is how a QP finds out how fast it may send. Losses slow an RC QP down in any case.
type CongestionControl uint8

const (
	// CongestionWindow waits for losses. If the traffic class of the path allows marks (ECN), a congestion
	// notification (CNP) of the peer counts like a loss.
	CongestionWindow CongestionControl = iota
	// CongestionDCQCN has packets allow marks, and sends at a rate that CNPs cut: DCQCN with its published
	// parameters. It is for networks whose switches mark, and for peers that answer marks: cards do, the
	// software device does, and Linux's rxe does not. Without marks there is no limit. It needs Linux.
	CongestionDCQCN
	// CongestionDelay holds the round trip near the shortest, as Swift does. It needs nothing from network
	// and peer. It is for RC.
	CongestionDelay
)

var congestionNames = [...]string{CongestionWindow: "window", CongestionDCQCN: "dcqcn", CongestionDelay: "delay"}

// String returns "window", "dcqcn" or "delay".
func (c CongestionControl) String() string {
	if int(c) < len(congestionNames) {
		return congestionNames[c]
	}
	return fmt.Sprintf("CONGESTION_CONTROL(%d)", uint8(c))
}

// ParseCongestionControl is the reverse of String. The error is ErrInvalid.
func ParseCongestionControl(s string) (CongestionControl, error) {
	for i, name := range congestionNames {
		if s == name {
			return CongestionControl(i), nil
		}
	}
	return 0, invalidf("congestion control %q: there are window, dcqcn and delay", s)
}

// ProviderCongestion is for implementers of providers: a ProviderQP implements it if it has a choice of congestion
// control: see QP.SetCongestionControl.
type ProviderCongestion interface {
	// SetCongestionControl is given a value that has a name. The QP is connected.
	SetCongestionControl(c CongestionControl) error
}

// SetCongestionControl chooses how an RC or UC QP finds out how fast it may send. It may be called in any
// state, and counts from the next packet on. RESET brings back the device's default: for software devices
// CongestionWindow, unless ADVERB_CONGESTION names another.
//
// The error is ErrInvalid for an unknown value, and ErrUnsupported for UD, for CongestionDelay on UC, which
// has no acknowledgements, and for devices that leave no choice.
func (qp *QP) SetCongestionControl(c CongestionControl) error {
	const verb = "set congestion control of"
	if err := qp.check(verb); err != nil {
		return err
	}
	p, ok := qp.p.(ProviderCongestion)
	switch {
	case int(c) >= len(congestionNames):
		return wrap(verb, qp.name, invalidf("%v is none of window, dcqcn and delay", c))
	case qp.typ == QPTypeUD:
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "datagrams go to many peers, and nothing paces them"))
	case !ok:
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "the device leaves no choice; software devices do"))
	}
	return wrap(verb, qp.name, p.SetCongestionControl(c))
}

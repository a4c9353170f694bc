package cm

import "fmt"

// State is where a connection stands. The names are the specification's: they name the message that
// was sent or received last.
type State uint8

const (
	StateIdle       State = iota // over, and forgotten
	StateREQSent                 // active: waits for a REP
	StateMRAREQRcvd              // active: waits for a REP, which the peer has said takes time
	StateREQRcvd                 // passive: waits for Accept or Reject
	StateMRAREQSent              // passive: waits for Accept or Reject, which the peer was told takes time
	StateREPSent                 // passive: waits for an RTU
	StateMRAREPRcvd              // passive: waits for an RTU, which the peer has said takes time
	StateREPRcvd                 // active: waits for Ready or Reject
	StateMRAREPSent              // active: waits for Ready or Reject, which the peer was told takes time
	StateEstablished
	StateDREQSent // waits for a DREP
	StateTimeWait // over, while packets may be under way
	StateRejected // passive: over, while the peer may not have received the REJ
	states
)

var stateNames = [states]string{
	StateIdle:        "IDLE",
	StateREQSent:     "REQ_SENT",
	StateMRAREQRcvd:  "MRA_REQ_RCVD",
	StateREQRcvd:     "REQ_RCVD",
	StateMRAREQSent:  "MRA_REQ_SENT",
	StateREPSent:     "REP_SENT",
	StateMRAREPRcvd:  "MRA_REP_RCVD",
	StateREPRcvd:     "REP_RCVD",
	StateMRAREPSent:  "MRA_REP_SENT",
	StateEstablished: "ESTABLISHED",
	StateDREQSent:    "DREQ_SENT",
	StateTimeWait:    "TIMEWAIT",
	StateRejected:    "REJECTED",
}

func (s State) String() string {
	if s < states {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// stateSet is a set of states.
type stateSet uint16

func in(list ...State) (set stateSet) {
	for _, s := range list {
		set |= 1 << s
	}
	return set
}

func (set stateSet) has(s State) bool { return set>>s&1 != 0 }

// The states in which users may make each call.
var (
	mayAccept     = in(StateREQRcvd, StateMRAREQSent)
	mayReady      = in(StateREPRcvd, StateMRAREPSent)
	mayReject     = in(StateREQSent, StateMRAREQRcvd, StateREQRcvd, StateMRAREQSent, StateREPRcvd, StateMRAREPSent, StateREPSent, StateMRAREPRcvd)
	mayDelay      = mayAccept | mayReady
	mayEstablish  = in(StateREPSent, StateMRAREPRcvd)
	mayDisconnect = in(StateEstablished)
	disconnected  = in(StateDREQSent, StateTimeWait)
)

// awaitsREP are the states in which the peer's communication ID is not known yet.
var awaitsREP = in(StateREQSent, StateMRAREQRcvd)

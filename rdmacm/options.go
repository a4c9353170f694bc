package rdmacm

import (
	"errors"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// options are those of rdma_set_option.
type options struct {
	tos        uint8
	hasTOS     bool  // tos was set
	ackTimeout uint8 // code
	hasACK     bool  // ackTimeout was set
	reuseAddr  bool
	afOnly     bool
	keepAlive  time.Duration
	path       *PathRecord
	security   *Security
}

// maxTimeoutCode is the largest code of an acknowledgement timeout.
const maxTimeoutCode = 31

// SetTOS sets the type of service, IPv4 TOS or IPv6 traffic class, of the connection's packets
// (RDMA_OPTION_ID_TOS). Set it before Connect or Accept; on a card, for the peer's packets, before ResolveRoute
// or SetPath. Without it they have the class of the path, which is 0 on software devices and the kernel's default on
// cards, and at the accepting end that of the peer's request.
func (id *ID) SetTOS(tos uint8) error {
	return id.set("set type of service", func() error {
		id.options.tos, id.options.hasTOS = tos, true
		return nil
	})
}

// SetACKTimeout sets how long QPs wait for an acknowledgement: 4.096 µs × 2^code, or for ever with 0
// (RDMA_OPTION_ID_ACK_TIMEOUT). It applies to the QP of this end and, when set before Connect, to the
// peer's. A kernel makes the peer's as it finds the route: on a card it must be set before ResolveRoute or SetPath, and
// on InfiniBand only with SetPath it counts there. A 0 is for this end alone, as with librdmacm: the peer's QP waits as
// without the call. Without it the code is 15, which is 0.13 s.
//
// Connect takes a long time for that of the way to the peer, and waits longer for an answer: up to 280 s
// in place of 17 s, where the code is 22 or more.
func (id *ID) SetACKTimeout(code uint8) error {
	return id.set("set ack timeout", func() error {
		if id.qpType != verbs.QPTypeRC {
			return verbs.Errorf(verbs.ErrUnsupported, "only RC QPs acknowledge, and this is %v", id.ps)
		}
		if code > maxTimeoutCode {
			return verbs.Errorf(verbs.ErrInvalid, "code %d: codes are 0 to %d", code, maxTimeoutCode)
		}
		id.options.ackTimeout, id.options.hasACK = code, true
		return nil
	})
}

// SetKeepAlive makes the ID's QP ask a silent peer for a sign of life: see [verbs.QP.SetKeepAlive],
// which this calls when the connection is made, and also during it. If there is none, the connection
// ends with EventDisconnected, Status -110 (ETIMEDOUT), and the cause in Err. A new ID does not ask.
// The option is for QPs that CreateQP has made and for RC; on devices without keep-alive it does
// nothing.
func (id *ID) SetKeepAlive(period time.Duration) error {
	return id.set("set keep-alive", func() error {
		if id.qpType != verbs.QPTypeRC {
			return verbs.Errorf(verbs.ErrUnsupported, "only RC QPs can ask, and this is %v", id.ps)
		}
		id.options.keepAlive = period
		if id.state == stateConnected || id.state == stateAccepting {
			return id.keepAlive()
		}
		return nil
	})
}

// keepAlive gives the QP the option. The caller holds id.mu.
func (id *ID) keepAlive() error {
	if id.qp == nil || id.qpType != verbs.QPTypeRC {
		return nil
	}
	if err := id.qp.SetKeepAlive(id.options.keepAlive); !errors.Is(err, verbs.ErrUnsupported) {
		return err
	}
	return nil
}

// SetReuseAddr lets the ID share its port with other IDs, of any program of this user, that allow it too
// (RDMA_OPTION_ID_REUSEADDR). To bind to a port that an ID without the option has, or the other way round, fails with
// ErrAddrInUse. An ID that listens shares with nobody: Listen fails with ErrAddrInUse while others share the port, and
// nobody else gets it afterwards, as on Linux. Set it before BindAddr. On systems other than Linux the ports of iWARP
// devices are not shared.
func (id *ID) SetReuseAddr(on bool) error {
	return id.set("set reuse address", func() error {
		if id.state != stateIdle {
			return verbs.Errorf(verbs.ErrState, "the ID is %v: set it before BindAddr", id.state)
		}
		id.options.reuseAddr = on
		return nil
	})
}

// SetAFOnly keeps IPv4 away from an ID that is bound to [::] (RDMA_OPTION_ID_AFONLY). Set it before
// BindAddr.
func (id *ID) SetAFOnly(on bool) error {
	return id.set("set address family only", func() error {
		if id.state != stateIdle {
			return verbs.Errorf(verbs.ErrState, "the ID is %v: set it before BindAddr", id.state)
		}
		id.options.afOnly = on
		return nil
	})
}

func (id *ID) set(op string, f func() error) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == stateClosed {
		return id.error(op, verbs.ErrClosed)
	}
	return id.error(op, f())
}

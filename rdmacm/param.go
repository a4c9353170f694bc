package rdmacm

import (
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Private data, in bytes, that the CM's messages have room for. The length is not sent: the peer
// gets all of the field, filled up with zeros.
const (
	MaxConnectData   = len(wire.REQ{}.PrivateData) - wire.IPCMHeaderSize     // 56
	MaxAcceptData    = len(wire.REP{}.PrivateData)                           // 196
	MaxRejectData    = len(wire.REJ{}.PrivateData)                           // 148
	MaxUDConnectData = len(wire.SIDRREQ{}.PrivateData) - wire.IPCMHeaderSize // 180
	MaxUDAcceptData  = len(wire.SIDRREP{}.PrivateData)                       // 136, of Reject too
)

// MaxResources asks for as many READs and atomics as the device can do at a time or, when accepting, as
// both ends can (RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH).
const MaxResources = 0xff

// maxRetries is the largest retry count that fits the messages.
const maxRetries = 7

// ConnParam is what two ends agree on when they connect (struct rdma_conn_param). Its values
// count as they stand, zeros too: with an InitiatorDepth of 0 the QP can do no READ and no atomic.
type ConnParam struct {
	PrivateData []byte // for the peer's program; see MaxConnectData and its like

	// ResponderResources is how many READs and atomics of the peer this end answers at a time, and
	// InitiatorDepth how many of its own it may have outstanding.
	ResponderResources uint8
	InitiatorDepth     uint8

	FlowControl bool // told to the peer; it changes nothing on RoCE

	// RetryCount, 0 to 7, is how often packets are repeated that are not acknowledged; both ends
	// go by the connecting side's. RNRRetryCount, 0 to 6, is how often the peer repeats what comes
	// while no receive is posted here; 7 goes on without end.
	RetryCount    uint8
	RNRRetryCount uint8

	// QPN and SRQ describe the QP of an ID without one (see ID.CreateQP). In events they
	// describe the peer's.
	QPN verbs.QPN
	SRQ bool
}

// DefaultConnParam returns what Connect and Accept use for nil: all resources, 7 retries, and RNR
// retries without end.
func DefaultConnParam() ConnParam {
	return ConnParam{ResponderResources: MaxResources, InitiatorDepth: MaxResources, RetryCount: maxRetries, RNRRetryCount: maxRetries}
}

// checkPrivateData refuses what a message has no room for.
func checkPrivateData(data []byte, room int) error {
	if len(data) > room {
		return verbs.Errorf(verbs.ErrInvalid, "%d bytes of private data: this message has room for %d", len(data), room)
	}
	return nil
}

// orDefault returns what p, which may be nil, stands for.
func orDefault(p *ConnParam) ConnParam {
	if p == nil {
		return DefaultConnParam()
	}
	return *p
}

// UDParam is what the ends of PortSpaceUDP, and the members of a group, learn about each other
// (struct rdma_ud_param).
type UDParam struct {
	PrivateData []byte
	AH          verbs.AHAttr // the path to the peer or group, for PD.CreateAH
	QPN         verbs.QPN
	QKey        verbs.QKey
}

// UDQKey is the Q_Key of the QPs in PortSpaceUDP (RDMA_UDP_QKEY).
const UDQKey verbs.QKey = 0x01234567

// limits are what a device and a port space allow.
type limits struct {
	responderResources, initiatorDepth uint8
}

// limitsOf returns the device's.
func limitsOf(a *verbs.DeviceAttr) limits {
	return limits{uint8(min(a.MaxQPRdAtom, MaxResources-1)), uint8(min(a.MaxQPInitRdAtom, MaxResources-1))}
}

// resolve replaces MaxResources, by what the device has and, where the peer has spoken, by no more
// than it offered, and refuses what does not go.
func (p *ConnParam) resolve(device limits, offered *ConnParam, maxData int) error {
	if err := checkPrivateData(p.PrivateData, maxData); err != nil {
		return err
	}
	if p.RetryCount > maxRetries || p.RNRRetryCount > maxRetries {
		return verbs.Errorf(verbs.ErrInvalid, "retry_count %d, rnr_retry_count %d: at most %d", p.RetryCount, p.RNRRetryCount, maxRetries)
	}
	fill := func(name string, v *uint8, have uint8, offer uint8) error {
		if *v == MaxResources {
			*v = min(have, offer)
		}
		if *v > have {
			return verbs.Errorf(verbs.ErrInvalid, "%s %d: the device has %d; MaxResources asks for as many as there are", name, *v, have)
		}
		return nil
	}
	offer := ConnParam{ResponderResources: MaxResources, InitiatorDepth: MaxResources}
	if offered != nil {
		offer = *offered
	}
	if err := fill("responder_resources", &p.ResponderResources, device.responderResources, offer.ResponderResources); err != nil {
		return err
	}
	return fill("initiator_depth", &p.InitiatorDepth, device.initiatorDepth, offer.InitiatorDepth)
}

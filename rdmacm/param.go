package rdmacm

import (
	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// How much private data the messages of the InfiniBand connection manager have room for, in bytes. The length
// is not sent, so over RoCE the peer gets the whole field, filled up with zeros. Over iWARP the peer gets the
// data without zeros.
const (
	MaxConnectData   = connector.MaxConnectData // 56
	MaxAcceptData    = connector.MaxAcceptData  // 196
	MaxRejectData    = connector.MaxRejectData  // 148
	MaxUDConnectData = connector.MaxLookUpData  // 180
	MaxUDAcceptData  = connector.MaxAnswerData  // 136, of Reject too

	MaxIBConnectData   = connector.MaxIBConnectData // 92, of IDs with AF_IB: no IP addresses take room
	MaxIBUDConnectData = connector.MaxIBLookUpData  // 216
)

// MaxResources asks for as many READs and atomics as the device can do at a time or, when
// accepting, as both ends can (RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH).
const MaxResources = 0xff

// maxRetries is the largest retry count that fits the messages.
const maxRetries = 7

// ConnParam has the parameters on which two ends agree when they connect (struct rdma_conn_param).
// Zeros do not stand for defaults: with an InitiatorDepth of 0 the QP can do no READ and no atomic.
type ConnParam struct {
	PrivateData []byte // for the peer's program; see MaxConnectData and its like

	// ResponderResources is how many READs and atomics of the peer this end answers at a time.
	// InitiatorDepth is how many of its own this end may have outstanding.
	ResponderResources uint8
	InitiatorDepth     uint8

	FlowControl bool // told to the peer; it changes nothing on RoCE

	// RetryCount, 0 to 7, is how often a packet is repeated that is not acknowledged. Both ends
	// use the connecting end's. RNRRetryCount is how often the peer repeats a message that finds no
	// receive posted here: 0 to 6 times, or with 7 without end.
	RetryCount    uint8
	RNRRetryCount uint8

	// QPN and SRQ describe the program's own QP, for an ID without one (see ID.CreateQP). In events
	// they describe the peer's QP.
	QPN verbs.QPN
	SRQ bool
}

// DefaultConnParam returns the parameters for which nil stands in Connect and Accept: all
// resources, 7 retries, and RNR retries without end.
func DefaultConnParam() ConnParam {
	return ConnParam{ResponderResources: MaxResources, InitiatorDepth: MaxResources, RetryCount: maxRetries, RNRRetryCount: maxRetries}
}

// checkPrivateData refuses more private data than a message has room for.
func checkPrivateData(data []byte, room int) error {
	if len(data) > room {
		return verbs.Errorf(verbs.ErrInvalid, "%d bytes of private data: this message has room for %d", len(data), room)
	}
	return nil
}

// orDefault returns the parameters for which p, which may be nil, stands.
func orDefault(p *ConnParam) ConnParam {
	if p == nil {
		return DefaultConnParam()
	}
	return *p
}

// with returns the parameters with other private data.
func (p ConnParam) with(privateData []byte) ConnParam {
	p.PrivateData = privateData
	return p
}

// UDParam says how one end in PortSpaceUDP reaches the other, or a multicast group (struct
// rdma_ud_param).
type UDParam struct {
	PrivateData []byte
	AH          verbs.AHAttr // the path to the peer or group, for PD.CreateAH
	QPN         verbs.QPN
	QKey        verbs.QKey
}

// UDQKey is the Q_Key of the QPs in PortSpaceUDP (RDMA_UDP_QKEY).
const UDQKey verbs.QKey = connector.UDQKey // 0x01234567

// limits are how many READs and atomics a QP of a device can answer and have outstanding.
type limits struct {
	responderResources, initiatorDepth uint8
}

// limitsOf returns a device's limits.
func limitsOf(a *verbs.DeviceAttr) limits {
	return limits{uint8(min(a.MaxQPRdAtom, MaxResources-1)), uint8(min(a.MaxQPInitRdAtom, MaxResources-1))}
}

// resolve replaces MaxResources by the device's number, or by the peer's offer if that is less, and
// refuses parameters that cannot be had. offered is nil while the peer has not spoken.
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

package wire

import (
	"encoding/binary"
	"strconv"
)

// REJ ends an attempt to connect, from either side.
type REJ struct {
	LocalCommID, RemoteCommID uint32    // zero where the sender does not know the ID
	Message                   uint8     // 2 bits, see [CMMessageREQ]: the rejected message
	ARILen                    uint8     // 7 bits: length of ARI as the sender says it; see [REJ.Info]
	Reason                    RejReason // why
	ARI                       [REJInfoSize]byte
	PrivateData               [REJPrivateDataSize]byte
}

const (
	REJInfoSize        = 72  // room for additional reject information (ARI)
	REJPrivateDataSize = 148 // length of a REJ's private data
)

// Where the fields of a REJ stand.
const (
	rejMessage     = 8
	rejARILen      = 9
	rejReason      = 10
	rejARI         = 12
	rejPrivateData = 84

	rejARILenShift = 1
)

// Info returns the additional reject information. It is as long as the sender says, but no longer than its space. Its
// meaning depends on the reason: with [RejTimeout], for example, it is the GUID of the sender's channel adapter.
func (m *REJ) Info() []byte { return m.ARI[:min(int(m.ARILen), len(m.ARI))] }

// DecodeREJ reads a REJ from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeREJ(data []byte) (m REJ, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	m.LocalCommID, m.RemoteCommID = getCommIDs(data)
	m.Message = data[rejMessage] >> cmMessageShift
	m.ARILen = data[rejARILen] >> rejARILenShift
	m.Reason = RejReason(binary.BigEndian.Uint16(data[rejReason:]))
	copy(m.ARI[:], data[rejARI:])
	copy(m.PrivateData[:], data[rejPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *REJ) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	putCommIDs(data, m.LocalCommID, m.RemoteCommID)
	data[rejMessage] = m.Message << cmMessageShift
	data[rejARILen] = m.ARILen << rejARILenShift
	binary.BigEndian.PutUint16(data[rejReason:], uint16(m.Reason))
	copy(data[rejARI:], m.ARI[:])
	copy(data[rejPrivateData:], m.PrivateData[:])
	return b
}

// A RejReason says why an attempt to connect was rejected.
type RejReason uint16

const (
	RejNoQP                      RejReason = 1
	RejNoEEC                     RejReason = 2
	RejNoResources               RejReason = 3
	RejTimeout                   RejReason = 4 // the sender has given up; ARI: its GUID
	RejUnsupported               RejReason = 5
	RejInvalidCommID             RejReason = 6
	RejInvalidCommInstance       RejReason = 7
	RejInvalidServiceID          RejReason = 8 // nobody listens
	RejInvalidTransportType      RejReason = 9
	RejStaleConn                 RejReason = 10 // the sender takes the peer's QP or ID for part of an older connection
	RejRDCNotExist               RejReason = 11
	RejInvalidGID                RejReason = 12 // of the primary path's far end; ARI: a GID that would be accepted
	RejInvalidLID                RejReason = 13
	RejInvalidSL                 RejReason = 14
	RejInvalidTrafficClass       RejReason = 15
	RejInvalidHopLimit           RejReason = 16
	RejInvalidPacketRate         RejReason = 17
	RejInvalidAltGID             RejReason = 18
	RejInvalidAltLID             RejReason = 19
	RejInvalidAltSL              RejReason = 20
	RejInvalidAltTrafficClass    RejReason = 21
	RejInvalidAltHopLimit        RejReason = 22
	RejInvalidAltPacketRate      RejReason = 23
	RejPortCMRedirect            RejReason = 24
	RejPortRedirect              RejReason = 25
	RejInvalidMTU                RejReason = 26 // ARI: the greatest MTU that would be accepted
	RejInsufficientRespResources RejReason = 27
	RejConsumerDefined           RejReason = 28 // the program has said no
	RejInvalidRNRRetry           RejReason = 29
	RejDuplicateLocalCommID      RejReason = 30
	RejInvalidClassVersion       RejReason = 31
	RejInvalidFlowLabel          RejReason = 32
	RejInvalidAltFlowLabel       RejReason = 33
	RejVendorOptionNotSupported  RejReason = 35
)

var rejReasons = [...]string{
	RejNoQP:                      "no queue pair free",
	RejNoEEC:                     "no end-to-end context free",
	RejNoResources:               "out of resources",
	RejTimeout:                   "peer gave up waiting",
	RejUnsupported:               "message not supported",
	RejInvalidCommID:             "unknown communication ID",
	RejInvalidCommInstance:       "unknown communication instance",
	RejInvalidServiceID:          "nobody listens on the service ID",
	RejInvalidTransportType:      "transport type not accepted",
	RejStaleConn:                 "stale connection",
	RejRDCNotExist:               "no such RD channel",
	RejInvalidGID:                "GID not accepted",
	RejInvalidLID:                "LID not accepted",
	RejInvalidSL:                 "service level not accepted",
	RejInvalidTrafficClass:       "traffic class not accepted",
	RejInvalidHopLimit:           "hop limit not accepted",
	RejInvalidPacketRate:         "packet rate not accepted",
	RejInvalidAltGID:             "alternate GID not accepted",
	RejInvalidAltLID:             "alternate LID not accepted",
	RejInvalidAltSL:              "alternate service level not accepted",
	RejInvalidAltTrafficClass:    "alternate traffic class not accepted",
	RejInvalidAltHopLimit:        "alternate hop limit not accepted",
	RejInvalidAltPacketRate:      "alternate packet rate not accepted",
	RejPortCMRedirect:            "ask the CM of another port",
	RejPortRedirect:              "connect to another port",
	RejInvalidMTU:                "path MTU too large",
	RejInsufficientRespResources: "too few responder resources",
	RejConsumerDefined:           "rejected by the program",
	RejInvalidRNRRetry:           "RNR retry count not accepted",
	RejDuplicateLocalCommID:      "communication ID in use already",
	RejInvalidClassVersion:       "CM version not supported",
	RejInvalidFlowLabel:          "flow label not accepted",
	RejInvalidAltFlowLabel:       "alternate flow label not accepted",
	RejVendorOptionNotSupported:  "vendor option not supported",
}

// String returns the reason in a few words.
func (r RejReason) String() string {
	if int(r) < len(rejReasons) && rejReasons[r] != "" {
		return rejReasons[r]
	}
	return "unknown reason " + strconv.Itoa(int(r))
}

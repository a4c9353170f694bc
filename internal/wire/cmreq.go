package wire

import "encoding/binary"

// REQ asks for a connection. Local is the sender, the active side; Remote is the receiver, the
// passive side.
type REQ struct {
	LocalCommID        uint32
	ServiceID          uint64 // the service that the message is for, see [RDMAServiceID]
	LocalGUID          uint64 // of the channel adapter
	LocalQKey          uint32
	LocalQPN           uint32 // 24 bits
	ResponderResources uint8  // READs and atomics that the sender takes at a time
	LocalEECN          uint32 // 24 bits; reliable datagrams only
	InitiatorDepth     uint8  // READs and atomics that the sender wants to have under way at a time
	RemoteEECN         uint32 // 24 bits; reliable datagrams only
	RemoteCMTimeout    uint8  // 5 bits: the receiver is to answer within this time
	Transport          uint8  // 2 bits, see [CMTransportRC]
	FlowControl        bool   // end to end
	StartingPSN        uint32 // 24 bits: the first one that the receiver is to send
	LocalCMTimeout     uint8  // 5 bits: the sender will answer a REP within this time
	RetryCount         uint8  // 3 bits: of the receiver's QP
	PKey               uint16
	MTU                uint8 // 4 bits: path MTU, 1 for 256 bytes to 5 for 4096
	RDC                bool  // an RD channel exists
	RNRRetryCount      uint8 // 3 bits: of the receiver's QP
	MaxCMRetries       uint8 // 4 bits: how often the receiver may repeat its answer
	SRQ                bool  // the sender's QP has a shared receive queue
	ExtTransport       uint8 // 3 bits, see [CMExtTransportXRC]
	Primary            CMPath
	Alternate          CMPath // all zero where there is none
	PrivateData        [REQPrivateDataSize]byte
}

// REQPrivateDataSize is the length of a REQ's private data, of which an [IPCMHeader] may take the
// first part.
const REQPrivateDataSize = 92

// CMPath is a path as the sender of the message sees it.
type CMPath struct {
	LocalLID, RemoteLID uint16 // 0xffff on RoCE, where they mean nothing
	LocalGID, RemoteGID [16]byte
	FlowLabel           uint32 // 20 bits
	Rate                uint8  // 6 bits: packet rate, a code
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits: service level
	SubnetLocal         bool
	ACKTimeout          uint8 // 5 bits: of the receiver's QP, see [ACKTimeout]
}

// Where the fields of a REQ stand.
const (
	reqServiceID    = 8
	reqLocalGUID    = 16
	reqLocalQKey    = 28
	reqLocalQPN     = 32 // and responder resources
	reqLocalEECN    = 36 // and initiator depth
	reqRemoteEECN   = 40 // and remote CM timeout, transport, flow control
	reqStartingPSN  = 44 // and local CM timeout, retry count
	reqPKey         = 48
	reqMTU          = 50 // and RDC, RNR retry count
	reqMaxCMRetries = 51 // and SRQ, extended transport
	reqPrimary      = 52
	reqAlternate    = 96
	reqPrivateData  = 140

	reqTransportShift = 1 // in byte 43
	reqTransportMask  = 0x3
	reqFlowControl    = 0x01
	reqRetryMask      = 0x07 // in byte 47
	reqMTUShift       = 4    // in byte 50
	reqRDC            = 0x08
	reqRNRRetryMask   = 0x07
	reqCMRetriesShift = 4 // in byte 51
	reqSRQ            = 0x08
	reqExtMask        = 0x07
)

// Where the fields of a path stand.
const (
	pathRemoteLID  = 2
	pathLocalGID   = 4
	pathRemoteGID  = 20
	pathFlowLabel  = 36 // and the fields that differ: REQ has the rate next, LAP the traffic class
	pathSL         = 42 // and subnet local
	pathACKTimeout = 43
	pathSize       = 44

	reqPathTrafficClass = 40
	reqPathHopLimit     = 41

	pathFlowShift   = 12 // in the word at 36
	pathFlowMask    = 1<<20 - 1
	pathRateMask    = 0x3f
	pathSLShift     = 4 // in byte 42
	pathSubnetLocal = 0x08
)

// DecodeREQ reads a REQ from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeREQ(data []byte) (m REQ, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	var low uint8
	m.LocalCommID = binary.BigEndian.Uint32(data[cmLocalCommID:])
	m.ServiceID = binary.BigEndian.Uint64(data[reqServiceID:])
	m.LocalGUID = binary.BigEndian.Uint64(data[reqLocalGUID:])
	m.LocalQKey = binary.BigEndian.Uint32(data[reqLocalQKey:])
	m.LocalQPN, m.ResponderResources = get24(data[reqLocalQPN:])
	m.LocalEECN, m.InitiatorDepth = get24(data[reqLocalEECN:])

	m.RemoteEECN, low = get24(data[reqRemoteEECN:])
	m.RemoteCMTimeout = low >> cmTimeoutShift
	m.Transport = low >> reqTransportShift & reqTransportMask
	m.FlowControl = low&reqFlowControl != 0

	m.StartingPSN, low = get24(data[reqStartingPSN:])
	m.LocalCMTimeout = low >> cmTimeoutShift
	m.RetryCount = low & reqRetryMask

	m.PKey = binary.BigEndian.Uint16(data[reqPKey:])
	m.MTU = data[reqMTU] >> reqMTUShift
	m.RDC = data[reqMTU]&reqRDC != 0
	m.RNRRetryCount = data[reqMTU] & reqRNRRetryMask
	m.MaxCMRetries = data[reqMaxCMRetries] >> reqCMRetriesShift
	m.SRQ = data[reqMaxCMRetries]&reqSRQ != 0
	m.ExtTransport = data[reqMaxCMRetries] & reqExtMask
	m.Primary.decodeREQ(data[reqPrimary:])
	m.Alternate.decodeREQ(data[reqAlternate:])
	copy(m.PrivateData[:], data[reqPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *REQ) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	binary.BigEndian.PutUint32(data[cmLocalCommID:], m.LocalCommID)
	binary.BigEndian.PutUint64(data[reqServiceID:], m.ServiceID)
	binary.BigEndian.PutUint64(data[reqLocalGUID:], m.LocalGUID)
	binary.BigEndian.PutUint32(data[reqLocalQKey:], m.LocalQKey)
	put24(data[reqLocalQPN:], m.LocalQPN, m.ResponderResources)
	put24(data[reqLocalEECN:], m.LocalEECN, m.InitiatorDepth)
	put24(data[reqRemoteEECN:], m.RemoteEECN, m.RemoteCMTimeout<<cmTimeoutShift|
		m.Transport&reqTransportMask<<reqTransportShift|flag(m.FlowControl, reqFlowControl))
	put24(data[reqStartingPSN:], m.StartingPSN, m.LocalCMTimeout<<cmTimeoutShift|m.RetryCount&reqRetryMask)
	binary.BigEndian.PutUint16(data[reqPKey:], m.PKey)
	data[reqMTU] = m.MTU<<reqMTUShift | flag(m.RDC, reqRDC) | m.RNRRetryCount&reqRNRRetryMask
	data[reqMaxCMRetries] = m.MaxCMRetries<<reqCMRetriesShift | flag(m.SRQ, reqSRQ) | m.ExtTransport&reqExtMask
	m.Primary.putREQ(data[reqPrimary:])
	m.Alternate.putREQ(data[reqAlternate:])
	copy(data[reqPrivateData:], m.PrivateData[:])
	return b
}

// decodeREQ reads a path in the form of a REQ.
func (p *CMPath) decodeREQ(b []byte) {
	_ = b[pathSize-1]
	w := p.decodeCommon(b)
	p.Rate = uint8(w) & pathRateMask
	p.TrafficClass = b[reqPathTrafficClass]
	p.HopLimit = b[reqPathHopLimit]
}

func (p *CMPath) putREQ(b []byte) {
	_ = b[pathSize-1]
	p.putCommon(b, uint32(p.Rate&pathRateMask))
	b[reqPathTrafficClass] = p.TrafficClass
	b[reqPathHopLimit] = p.HopLimit
}

// decodeCommon reads the fields that stand at the same place in a REQ and a LAP. It returns the
// word of the flow label, whose lower 12 bits differ.
func (p *CMPath) decodeCommon(b []byte) uint32 {
	p.LocalLID = binary.BigEndian.Uint16(b)
	p.RemoteLID = binary.BigEndian.Uint16(b[pathRemoteLID:])
	copy(p.LocalGID[:], b[pathLocalGID:])
	copy(p.RemoteGID[:], b[pathRemoteGID:])
	w := binary.BigEndian.Uint32(b[pathFlowLabel:])
	p.FlowLabel = w >> pathFlowShift
	p.SL = b[pathSL] >> pathSLShift
	p.SubnetLocal = b[pathSL]&pathSubnetLocal != 0
	p.ACKTimeout = b[pathACKTimeout] >> cmTimeoutShift
	return w
}

func (p *CMPath) putCommon(b []byte, behindFlowLabel uint32) {
	binary.BigEndian.PutUint16(b, p.LocalLID)
	binary.BigEndian.PutUint16(b[pathRemoteLID:], p.RemoteLID)
	copy(b[pathLocalGID:], p.LocalGID[:])
	copy(b[pathRemoteGID:], p.RemoteGID[:])
	binary.BigEndian.PutUint32(b[pathFlowLabel:], p.FlowLabel&pathFlowMask<<pathFlowShift|behindFlowLabel)
	b[pathSL] = p.SL<<pathSLShift | flag(p.SubnetLocal, pathSubnetLocal)
	b[pathACKTimeout] = p.ACKTimeout << cmTimeoutShift
}

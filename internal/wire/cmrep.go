package wire

import "encoding/binary"

// REP answers a REQ: the passive side agrees to the connection and gives its part of the parameters.
type REP struct {
	LocalCommID, RemoteCommID uint32
	LocalQKey                 uint32
	LocalQPN                  uint32 // 24 bits
	LocalEECN                 uint32 // 24 bits; reliable datagrams only
	StartingPSN               uint32 // 24 bits: the first one that the receiver is to send
	ResponderResources        uint8  // READs and atomics that the sender takes at a time
	InitiatorDepth            uint8  // READs and atomics that the sender will have under way at a time
	TargetACKDelay            uint8  // 5 bits: how late the sender's acknowledgements may be
	Failover                  uint8  // 2 bits: 0 if the alternate path was accepted
	FlowControl               bool   // end to end
	RNRRetryCount             uint8  // 3 bits: of the receiver's QP
	SRQ                       bool   // the sender's QP has a shared receive queue
	LocalGUID                 uint64 // of the channel adapter
	PrivateData               [REPPrivateDataSize]byte
}

// REPPrivateDataSize is the length of a REP's private data.
const REPPrivateDataSize = 196

// Where the fields of a REP stand.
const (
	repLocalQKey          = 8
	repLocalQPN           = 12
	repLocalEECN          = 16
	repStartingPSN        = 20
	repResponderResources = 24
	repInitiatorDepth     = 25
	repTargetACKDelay     = 26 // and failover, flow control
	repRNRRetryCount      = 27 // and SRQ
	repLocalGUID          = 28
	repPrivateData        = 36

	repFailoverShift = 1 // in byte 26
	repFailoverMask  = 0x3
	repFlowControl   = 0x01
	repRNRRetryShift = 5 // in byte 27
	repSRQ           = 0x10
)

// DecodeREP reads a REP from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeREP(data []byte) (m REP, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	m.LocalCommID, m.RemoteCommID = getCommIDs(data)
	m.LocalQKey = binary.BigEndian.Uint32(data[repLocalQKey:])
	m.LocalQPN, _ = get24(data[repLocalQPN:])
	m.LocalEECN, _ = get24(data[repLocalEECN:])
	m.StartingPSN, _ = get24(data[repStartingPSN:])
	m.ResponderResources = data[repResponderResources]
	m.InitiatorDepth = data[repInitiatorDepth]
	m.TargetACKDelay = data[repTargetACKDelay] >> cmTimeoutShift
	m.Failover = data[repTargetACKDelay] >> repFailoverShift & repFailoverMask
	m.FlowControl = data[repTargetACKDelay]&repFlowControl != 0
	m.RNRRetryCount = data[repRNRRetryCount] >> repRNRRetryShift
	m.SRQ = data[repRNRRetryCount]&repSRQ != 0
	m.LocalGUID = binary.BigEndian.Uint64(data[repLocalGUID:])
	copy(m.PrivateData[:], data[repPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *REP) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	putCommIDs(data, m.LocalCommID, m.RemoteCommID)
	binary.BigEndian.PutUint32(data[repLocalQKey:], m.LocalQKey)
	put24(data[repLocalQPN:], m.LocalQPN, 0)
	put24(data[repLocalEECN:], m.LocalEECN, 0)
	put24(data[repStartingPSN:], m.StartingPSN, 0)
	data[repResponderResources] = m.ResponderResources
	data[repInitiatorDepth] = m.InitiatorDepth
	data[repTargetACKDelay] = m.TargetACKDelay<<cmTimeoutShift |
		m.Failover&repFailoverMask<<repFailoverShift | flag(m.FlowControl, repFlowControl)
	data[repRNRRetryCount] = m.RNRRetryCount<<repRNRRetryShift | flag(m.SRQ, repSRQ)
	binary.BigEndian.PutUint64(data[repLocalGUID:], m.LocalGUID)
	copy(data[repPrivateData:], m.PrivateData[:])
	return b
}

// RTU tells the passive side that the REP has come and that the active side's QP is ready.
type RTU struct {
	LocalCommID, RemoteCommID uint32
	PrivateData               [RTUPrivateDataSize]byte
}

// RTUPrivateDataSize is the length of an RTU's private data.
const RTUPrivateDataSize = 224

const rtuPrivateData = 8

// DecodeRTU reads an RTU from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeRTU(data []byte) (m RTU, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	m.LocalCommID, m.RemoteCommID = getCommIDs(data)
	copy(m.PrivateData[:], data[rtuPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *RTU) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	putCommIDs(data, m.LocalCommID, m.RemoteCommID)
	copy(data[rtuPrivateData:], m.PrivateData[:])
	return b
}

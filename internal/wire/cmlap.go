package wire

// LAP asks the passive side of a connection to take another alternate path. Linux drops it on RoCE.
type LAP struct {
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 uint32 // 24 bits: the receiver's QP
	RemoteCMTimeout           uint8  // 5 bits: the receiver is to answer within this time
	Alternate                 CMPath
	PrivateData               [LAPPrivateDataSize]byte
}

// APR answers a LAP.
type APR struct {
	LocalCommID, RemoteCommID uint32
	AddInfoLen                uint8 // length of AddInfo as the sender says it, which may be more than AddInfo has room for
	Status                    uint8 // see [APRSuccess]
	AddInfo                   [APRInfoSize]byte
	PrivateData               [APRPrivateDataSize]byte
}

// Values of APR.Status.
const (
	APRSuccess           = 0
	APRInvalidCommID     = 1
	APRUnsupported       = 2
	APRRejected          = 3 // by the program
	APRRedirect          = 4
	APRIsCurrentPath     = 5
	APRInvalidQPN        = 6
	APRInvalidLID        = 7
	APRInvalidGID        = 8
	APRInvalidFlowLabel  = 9
	APRInvalidTClass     = 10
	APRInvalidHopLimit   = 11
	APRInvalidPacketRate = 12
	APRInvalidSL         = 13
)

// Lengths of private data.
const (
	LAPPrivateDataSize = 168
	APRPrivateDataSize = 148
	APRInfoSize        = 72 // room for additional information in an APR
)

// Where the fields of a LAP and an APR stand.
const (
	lapRemoteQPN   = 12 // and remote CM timeout
	lapAlternate   = 20
	lapPrivateData = 64

	lapPathHopLimit = 40 // within the path
	lapPathRate     = 41

	aprAddInfoLen  = 8
	aprStatus      = 9
	aprAddInfo     = 12
	aprPrivateData = 84
)

// DecodeLAP reads a LAP from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeLAP(data []byte) (m LAP, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	m.LocalCommID, m.RemoteCommID = getCommIDs(data)
	qpn, low := get24(data[lapRemoteQPN:])
	m.RemoteQPN = qpn
	m.RemoteCMTimeout = low >> cmTimeoutShift
	m.Alternate.decodeLAP(data[lapAlternate:])
	copy(m.PrivateData[:], data[lapPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *LAP) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	putCommIDs(data, m.LocalCommID, m.RemoteCommID)
	put24(data[lapRemoteQPN:], m.RemoteQPN, m.RemoteCMTimeout<<cmTimeoutShift)
	m.Alternate.putLAP(data[lapAlternate:])
	copy(data[lapPrivateData:], m.PrivateData[:])
	return b
}

// decodeLAP reads a path in the form of a LAP.
func (p *CMPath) decodeLAP(b []byte) {
	_ = b[pathSize-1]
	w := p.decodeCommon(b)
	p.TrafficClass = uint8(w)
	p.HopLimit = b[lapPathHopLimit]
	p.Rate = b[lapPathRate] & pathRateMask
}

func (p *CMPath) putLAP(b []byte) {
	_ = b[pathSize-1]
	p.putCommon(b, uint32(p.TrafficClass))
	b[lapPathHopLimit] = p.HopLimit
	b[lapPathRate] = p.Rate & pathRateMask
}

// DecodeAPR reads an APR from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeAPR(data []byte) (m APR, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	m.LocalCommID, m.RemoteCommID = getCommIDs(data)
	m.AddInfoLen = data[aprAddInfoLen]
	m.Status = data[aprStatus]
	copy(m.AddInfo[:], data[aprAddInfo:])
	copy(m.PrivateData[:], data[aprPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *APR) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	putCommIDs(data, m.LocalCommID, m.RemoteCommID)
	data[aprAddInfoLen] = m.AddInfoLen
	data[aprStatus] = m.Status
	copy(data[aprAddInfo:], m.AddInfo[:])
	copy(data[aprPrivateData:], m.PrivateData[:])
	return b
}

package wire

// DREQ asks the peer to end a connection.
type DREQ struct {
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 uint32 // 24 bits: the receiver's QP
	PrivateData               [DREQPrivateDataSize]byte
}

// DREP answers a DREQ: the connection is gone at the sender.
type DREP struct {
	LocalCommID, RemoteCommID uint32
	PrivateData               [DREPPrivateDataSize]byte
}

// Lengths of private data.
const (
	DREQPrivateDataSize = 220
	DREPPrivateDataSize = 224
)

// Where the fields of a DREQ and a DREP stand.
const (
	dreqRemoteQPN   = 8
	dreqPrivateData = 12

	drepPrivateData = 8
)

// DecodeDREQ reads a DREQ from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeDREQ(data []byte) (m DREQ, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	m.LocalCommID, m.RemoteCommID = getCommIDs(data)
	m.RemoteQPN, _ = get24(data[dreqRemoteQPN:])
	copy(m.PrivateData[:], data[dreqPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *DREQ) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	putCommIDs(data, m.LocalCommID, m.RemoteCommID)
	put24(data[dreqRemoteQPN:], m.RemoteQPN, 0)
	copy(data[dreqPrivateData:], m.PrivateData[:])
	return b
}

// DecodeDREP reads a DREP from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeDREP(data []byte) (m DREP, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	m.LocalCommID, m.RemoteCommID = getCommIDs(data)
	copy(m.PrivateData[:], data[drepPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *DREP) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	putCommIDs(data, m.LocalCommID, m.RemoteCommID)
	copy(data[drepPrivateData:], m.PrivateData[:])
	return b
}

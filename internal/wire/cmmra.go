package wire

// MRA says that a message has come and that its answer will take a while. The peer should wait rather than repeat the
// message.
type MRA struct {
	LocalCommID, RemoteCommID uint32
	Message                   uint8 // 2 bits, see [CMMessageREQ]: which message has come
	ServiceTimeout            uint8 // 5 bits: time until the answer
	PrivateData               [MRAPrivateDataSize]byte
}

// MRAPrivateDataSize is the length of an MRA's private data.
const MRAPrivateDataSize = 222

// Where the fields of an MRA stand.
const (
	mraMessage        = 8
	mraServiceTimeout = 9
	mraPrivateData    = 10
)

// DecodeMRA reads an MRA from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeMRA(data []byte) (m MRA, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	m.LocalCommID, m.RemoteCommID = getCommIDs(data)
	m.Message = data[mraMessage] >> cmMessageShift
	m.ServiceTimeout = data[mraServiceTimeout] >> cmTimeoutShift
	copy(m.PrivateData[:], data[mraPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *MRA) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	putCommIDs(data, m.LocalCommID, m.RemoteCommID)
	data[mraMessage] = m.Message << cmMessageShift
	data[mraServiceTimeout] = m.ServiceTimeout << cmTimeoutShift
	copy(data[mraPrivateData:], m.PrivateData[:])
	return b
}

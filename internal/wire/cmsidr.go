package wire

import (
	"encoding/binary"
	"strconv"
)

// SIDRREQ asks for the UD queue pair behind a service ID. It makes no connection.
type SIDRREQ struct {
	RequestID   uint32 // comes back in the reply
	PKey        uint16
	ServiceID   uint64 // see [RDMAServiceID]
	PrivateData [SIDRREQPrivateDataSize]byte
}

// SIDRREP answers a SIDRREQ.
type SIDRREP struct {
	RequestID   uint32 // of the request
	Status      SIDRStatus
	AddInfoLen  uint8  // length of AddInfo as the sender says it, which may be more than AddInfo has room for
	QPN         uint32 // 24 bits
	ServiceID   uint64 // of the request
	QKey        uint32
	AddInfo     [SIDRInfoSize]byte // its meaning depends on the status
	PrivateData [SIDRREPPrivateDataSize]byte
}

// Lengths of private data. The private data of a SIDR_REQ may begin with an [IPCMHeader].
const (
	SIDRREQPrivateDataSize = 216
	SIDRREPPrivateDataSize = 136
	SIDRInfoSize           = 72 // room for additional information in a SIDR_REP
)

// Where the fields of a SIDR_REQ and a SIDR_REP stand.
const (
	sidrRequestID = 0

	sidrReqPKey        = 4
	sidrReqServiceID   = 8
	sidrReqPrivateData = 16

	sidrRepStatus      = 4
	sidrRepAddInfoLen  = 5
	sidrRepQPN         = 8
	sidrRepServiceID   = 12
	sidrRepQKey        = 20
	sidrRepAddInfo     = 24
	sidrRepPrivateData = 96
)

// DecodeSIDRREQ reads a SIDR_REQ from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeSIDRREQ(data []byte) (m SIDRREQ, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	m.RequestID = binary.BigEndian.Uint32(data[sidrRequestID:])
	m.PKey = binary.BigEndian.Uint16(data[sidrReqPKey:])
	m.ServiceID = binary.BigEndian.Uint64(data[sidrReqServiceID:])
	copy(m.PrivateData[:], data[sidrReqPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *SIDRREQ) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	binary.BigEndian.PutUint32(data[sidrRequestID:], m.RequestID)
	binary.BigEndian.PutUint16(data[sidrReqPKey:], m.PKey)
	binary.BigEndian.PutUint64(data[sidrReqServiceID:], m.ServiceID)
	copy(data[sidrReqPrivateData:], m.PrivateData[:])
	return b
}

// DecodeSIDRREP reads a SIDR_REP from the data of a MAD. Its only error is [ErrShortMAD].
func DecodeSIDRREP(data []byte) (m SIDRREP, err error) {
	if len(data) < CMDataSize {
		return m, ErrShortMAD
	}
	m.RequestID = binary.BigEndian.Uint32(data[sidrRequestID:])
	m.Status = SIDRStatus(data[sidrRepStatus])
	m.AddInfoLen = data[sidrRepAddInfoLen]
	m.QPN, _ = get24(data[sidrRepQPN:])
	m.ServiceID = binary.BigEndian.Uint64(data[sidrRepServiceID:])
	m.QKey = binary.BigEndian.Uint32(data[sidrRepQKey:])
	copy(m.AddInfo[:], data[sidrRepAddInfo:])
	copy(m.PrivateData[:], data[sidrRepPrivateData:])
	return m, nil
}

// AppendTo appends the message's 232 bytes to b.
func (m *SIDRREP) AppendTo(b []byte) []byte {
	b, data := appendCMData(b)
	binary.BigEndian.PutUint32(data[sidrRequestID:], m.RequestID)
	data[sidrRepStatus] = uint8(m.Status)
	data[sidrRepAddInfoLen] = m.AddInfoLen
	put24(data[sidrRepQPN:], m.QPN, 0)
	binary.BigEndian.PutUint64(data[sidrRepServiceID:], m.ServiceID)
	binary.BigEndian.PutUint32(data[sidrRepQKey:], m.QKey)
	copy(data[sidrRepAddInfo:], m.AddInfo[:])
	copy(data[sidrRepPrivateData:], m.PrivateData[:])
	return b
}

// A SIDRStatus is the result of a SIDR_REQ.
type SIDRStatus uint8

const (
	SIDRSuccess            SIDRStatus = 0
	SIDRUnsupported        SIDRStatus = 1 // nobody listens
	SIDRRejected           SIDRStatus = 2 // the program has said no
	SIDRNoQP               SIDRStatus = 3
	SIDRRedirect           SIDRStatus = 4
	SIDRUnsupportedVersion SIDRStatus = 5
)

var sidrStatuses = [...]string{
	SIDRSuccess:            "success",
	SIDRUnsupported:        "nobody listens on the service ID",
	SIDRRejected:           "rejected by the program",
	SIDRNoQP:               "no queue pair free",
	SIDRRedirect:           "ask another port",
	SIDRUnsupportedVersion: "version not supported",
}

// String returns the status in a few words.
func (s SIDRStatus) String() string {
	if int(s) < len(sidrStatuses) {
		return sidrStatuses[s]
	}
	return "unknown status " + strconv.Itoa(int(s))
}

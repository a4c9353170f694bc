package wire

import "encoding/binary"

// Attributes of subnet administration, and bits of a query's component mask.
const (
	AttrClassPort      = 0x01
	AttrPathRecord     = 0x35
	AttrMCMemberRecord = 0x38

	PathDGID       = 1 << 2
	PathSGID       = 1 << 3
	PathDLID       = 1 << 4
	PathSLID       = 1 << 5
	PathReversible = 1 << 11
	PathNumb       = 1 << 12
	PathPKey       = 1 << 13
	PathSL         = 1 << 15

	MemberMGID         = 1 << 0
	MemberPort         = 1 << 1
	MemberQKey         = 1 << 2
	MemberMLID         = 1 << 3
	MemberTrafficClass = 1 << 6
	MemberPKey         = 1 << 7
	MemberSL           = 1 << 12
	MemberFlowLabel    = 1 << 13
	MemberState        = 1 << 16
)

// Bits of a member's JoinState.
const (
	JoinFull         = 1 << 0 // sends and receives; the group exists while it has such a member
	JoinNonMember    = 1 << 1 // sends and receives
	JoinSendOnly     = 1 << 2 // sends
	JoinSendOnlyFull = 1 << 3 // sends; the group exists while it has such a member
)

// Statuses of subnet administration's answers.
const (
	SAStatusNoResources = 1 << 8
	SAStatusInvalid     = 2 << 8
	SAStatusNoRecords   = 3 << 8
	SAStatusBadGID      = 5 << 8
	SAStatusMissing     = 6 << 8
)

const (
	SADataSize = 200

	saAttrOffset = 44
	saMask       = 48
	saData       = 56
)

// SAMAD is a message of subnet administration, whose records have one packet's room: RMPP is not used.
type SAMAD struct {
	MADHeader
	RecordWords uint16 // the length of a record, in units of 8 bytes
	Mask        uint64 // the fields of the record that a question gives
	Data        [SADataSize]byte
}

// DecodeSAMAD reads a message. Its only error is [ErrShortMAD].
func DecodeSAMAD(b []byte) (s SAMAD, err error) {
	if len(b) < MADSize {
		return s, ErrShortMAD
	}
	if s.MADHeader, err = DecodeMADHeader(b); err != nil {
		return s, err
	}
	s.RecordWords = binary.BigEndian.Uint16(b[saAttrOffset:])
	s.Mask = binary.BigEndian.Uint64(b[saMask:])
	s.Data = [SADataSize]byte(b[saData:])
	return s, nil
}

// AppendTo appends the message's 256 bytes to b.
func (s *SAMAD) AppendTo(b []byte) []byte {
	at := len(b)
	b = s.MADHeader.AppendTo(b)
	b = append(b, make([]byte, MADSize-MADHeaderSize)...)
	m := b[at:]
	m[MADHeaderSize] = 1 // version of RMPP
	binary.BigEndian.PutUint16(m[saAttrOffset:], s.RecordWords)
	binary.BigEndian.PutUint64(m[saMask:], s.Mask)
	copy(m[saData:], s.Data[:])
	return b
}

// begin returns the room of a record, which has so many words.
func (s *SAMAD) begin(words uint16) *[SADataSize]byte {
	s.RecordWords = words
	clear(s.Data[:])
	return &s.Data
}

// PathRecord is a path between two ports. MTU, Rate and Lifetime are codes; in an answer they are exact.
type PathRecord struct {
	Service      uint64
	DGID, SGID   [16]byte
	DLID, SLID   uint16
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	TrafficClass uint8
	Reversible   bool
	Count        uint8 // of the paths that are asked for
	PKey         uint16
	SL           uint8
	MTU          uint8
	Rate         uint8
	Lifetime     uint8
}

const (
	pathRecordWords = 8 // of 8 bytes
	selectExactly   = 2 << 6
)

// DecodePathRecord reads a record.
func DecodePathRecord(b *[SADataSize]byte) PathRecord {
	be := binary.BigEndian
	word := be.Uint32(b[44:])
	return PathRecord{
		Service: be.Uint64(b[0:]), DGID: [16]byte(b[8:]), SGID: [16]byte(b[24:]), DLID: be.Uint16(b[40:]), SLID: be.Uint16(b[42:]),
		FlowLabel: word >> 8 & (1<<flowLabelBits - 1), HopLimit: uint8(word), TrafficClass: b[48], Reversible: b[49]&0x80 != 0, Count: b[49] & 0x7f,
		PKey: be.Uint16(b[50:]), SL: b[53] & 0xf, MTU: b[54] & 0x3f, Rate: b[55] & 0x3f, Lifetime: b[56] & 0x3f,
	}
}

// Put writes the record, and the words it has.
func (p *PathRecord) Put(s *SAMAD) {
	be, b := binary.BigEndian, s.begin(pathRecordWords)
	be.PutUint64(b[0:], p.Service)
	copy(b[8:], p.DGID[:])
	copy(b[24:], p.SGID[:])
	be.PutUint16(b[40:], p.DLID)
	be.PutUint16(b[42:], p.SLID)
	be.PutUint32(b[44:], p.FlowLabel<<8&0xfffff00|uint32(p.HopLimit))
	b[48], b[49] = p.TrafficClass, bit(p.Reversible, 7)|p.Count&0x7f
	be.PutUint16(b[50:], p.PKey)
	b[53] = p.SL & 0xf
	for i, v := range []uint8{p.MTU, p.Rate, p.Lifetime} {
		if v != 0 {
			b[54+i] = selectExactly | v&0x3f
		}
	}
}

// MCMemberRecord is a port's membership in a multicast group.
type MCMemberRecord struct {
	MGID, Port   [16]byte
	QKey         uint32
	MLID         uint16
	MTU          uint8
	TrafficClass uint8
	PKey         uint16
	Rate         uint8
	Lifetime     uint8
	SL           uint8
	FlowLabel    uint32
	HopLimit     uint8
	Scope        uint8
	JoinState    uint8 // bits of Join…
}

const mcMemberWords = 7 // 52 bytes, and 4 to fill the last

// DecodeMCMemberRecord reads a record.
func DecodeMCMemberRecord(b *[SADataSize]byte) MCMemberRecord {
	be := binary.BigEndian
	word := be.Uint32(b[44:])
	return MCMemberRecord{
		MGID: [16]byte(b[0:]), Port: [16]byte(b[16:]), QKey: be.Uint32(b[32:]), MLID: be.Uint16(b[36:]), MTU: b[38] & 0x3f,
		TrafficClass: b[39], PKey: be.Uint16(b[40:]), Rate: b[42] & 0x3f, Lifetime: b[43] & 0x3f,
		SL: uint8(word >> 28), FlowLabel: word >> 8 & (1<<flowLabelBits - 1), HopLimit: uint8(word), Scope: b[48] >> 4, JoinState: b[48] & 0xf,
	}
}

// Put writes the record, and the words it has.
func (m *MCMemberRecord) Put(s *SAMAD) {
	be, b := binary.BigEndian, s.begin(mcMemberWords)
	copy(b[0:], m.MGID[:])
	copy(b[16:], m.Port[:])
	be.PutUint32(b[32:], m.QKey)
	be.PutUint16(b[36:], m.MLID)
	be.PutUint16(b[40:], m.PKey)
	b[39] = m.TrafficClass
	for _, v := range [][2]uint8{{38, m.MTU}, {42, m.Rate}, {43, m.Lifetime}} {
		if v[1] != 0 {
			b[v[0]] = selectExactly | v[1]&0x3f
		}
	}
	be.PutUint32(b[44:], uint32(m.SL)<<28|m.FlowLabel<<8&0xfffff00|uint32(m.HopLimit))
	b[48] = m.Scope<<4 | m.JoinState&0xf
}

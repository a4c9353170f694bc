package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// Code is the layer, type and code of an error that ends a connection: 4, 4 and 8 bits.
type Code uint16

// The codes of RFC 5040 (RDMAP), RFC 5041 (DDP) and of MPA, as RFC 6580 registers them.
const (
	rdmapCatastrophic Code = 0x0000

	rdmapInvalidSTag       Code = 0x0100
	rdmapBounds            Code = 0x0101
	rdmapAccess            Code = 0x0102
	rdmapNotAssociated     Code = 0x0103
	rdmapWrap              Code = 0x0104
	rdmapCannotInvalidate  Code = 0x0109
	rdmapProtectionUnknown Code = 0x01ff

	rdmapVersion          Code = 0x0205
	rdmapOpcode           Code = 0x0206
	rdmapStream           Code = 0x0207
	rdmapGlobal           Code = 0x0208
	rdmapOperationInval   Code = 0x0209
	rdmapOperationUnknown Code = 0x02ff

	ddpCatastrophic Code = 0x1000

	taggedInvalidSTag   Code = 0x1100
	taggedBounds        Code = 0x1101
	taggedNotAssociated Code = 0x1102
	taggedWrap          Code = 0x1103
	taggedVersion       Code = 0x1104

	untaggedQueue    Code = 0x1201
	untaggedNoBuffer Code = 0x1202
	untaggedMSN      Code = 0x1203
	untaggedOffset   Code = 0x1204
	untaggedTooLong  Code = 0x1205
	untaggedVersion  Code = 0x1206

	mpaLost  Code = 0x2001
	mpaCRC   Code = 0x2002
	mpaFrame Code = 0x2003
)

// meanings explain a code to the end that has the code from its peer, and name the closest completion
// status.
var meanings = map[Code]struct {
	text   string
	status verbs.WCStatus
}{
	rdmapCatastrophic:      {"local catastrophic error", verbs.WCRemOpErr},
	rdmapInvalidSTag:       {"invalid STag: no such memory region", verbs.WCRemAccessErr},
	rdmapBounds:            {"base or bounds violation", verbs.WCRemAccessErr},
	rdmapAccess:            {"access rights violation", verbs.WCRemAccessErr},
	rdmapNotAssociated:     {"STag of another protection domain", verbs.WCRemAccessErr},
	rdmapWrap:              {"tagged offset wraps", verbs.WCRemAccessErr},
	rdmapCannotInvalidate:  {"STag cannot be invalidated", verbs.WCRemAccessErr},
	rdmapProtectionUnknown: {"protection error without a code", verbs.WCRemAccessErr},
	rdmapVersion:           {"invalid RDMAP version", verbs.WCRemInvReqErr},
	rdmapOpcode:            {"unexpected opcode", verbs.WCRemInvReqErr},
	rdmapStream:            {"catastrophic error, of the connection", verbs.WCRemOpErr},
	rdmapGlobal:            {"catastrophic error, of the device", verbs.WCRemOpErr},
	rdmapOperationInval:    {"STag cannot be invalidated", verbs.WCRemAccessErr},
	rdmapOperationUnknown:  {"operation error without a code", verbs.WCRemOpErr},
	ddpCatastrophic:        {"local catastrophic error of DDP", verbs.WCRemOpErr},
	taggedInvalidSTag:      {"invalid STag: no such memory region", verbs.WCRemAccessErr},
	taggedBounds:           {"base or bounds violation", verbs.WCRemAccessErr},
	taggedNotAssociated:    {"STag of another protection domain", verbs.WCRemAccessErr},
	taggedWrap:             {"tagged offset wraps", verbs.WCRemAccessErr},
	taggedVersion:          {"invalid DDP version", verbs.WCRemInvReqErr},
	untaggedQueue:          {"invalid queue number", verbs.WCRemInvReqErr},
	untaggedNoBuffer:       {"no buffer: it had no receive posted, or no room for a READ", verbs.WCRNRRetryExceeded},
	untaggedMSN:            {"message sequence number out of range", verbs.WCRemInvReqErr},
	untaggedOffset:         {"invalid message offset", verbs.WCRemInvReqErr},
	untaggedTooLong:        {"message too long for its receive", verbs.WCRemInvReqErr},
	untaggedVersion:        {"invalid DDP version", verbs.WCRemInvReqErr},
	mpaLost:                {"TCP connection closed or lost", verbs.WCRetryExceeded},
	mpaCRC:                 {"CRC error", verbs.WCRemOpErr},
	mpaFrame:               {"MPA framing error", verbs.WCRemInvReqErr},
}

// String returns the code's meaning and numbers.
func (c Code) String() string {
	m := meanings[c].text
	if m == "" {
		m = "unknown error"
	}
	return fmt.Sprintf("%s (layer %d, type %d, code %#02x)", m, uint8(c>>12), uint8(c>>8&0xf), uint8(c))
}

// status returns the completion status that is closest to the code.
func (c Code) status() verbs.WCStatus {
	if m, ok := meanings[c]; ok {
		return m.status
	}
	return verbs.WCRemOpErr
}

// Fault is a fault that this end finds in the peer's bytes. A Terminate message tells the peer.
type Fault struct {
	Code Code
	err  error
}

func (f *Fault) Error() string { return f.err.Error() }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.err }

func fault(c Code, format string, args ...any) *Fault { return &Fault{c, fmt.Errorf(format, args...)} }

// TermMsg is a Terminate message: an error, and the headers of the segment that it is about.
type TermMsg struct {
	Code    Code
	Header  *Header  // or nil
	Segment uint16   // the size of that segment, with Header
	Read    *ReadReq // the request, if the segment is one, or nil
}

const (
	termSegment = 0x80 // the size of the segment is there
	termDDP     = 0x40 // its DDP header
	termRDMAP   = 0x20 // its RDMAP header: a READ request's
)

// AppendTo appends the message to b.
func (m *TermMsg) AppendTo(b []byte) []byte {
	control := byte(0)
	if m.Header != nil {
		control = termSegment | termDDP
		if m.Read != nil {
			control |= termRDMAP
		}
	}
	b = append(b, byte(m.Code>>8), byte(m.Code), control, 0)
	if m.Header == nil {
		return b
	}
	b = binary.BigEndian.AppendUint16(b, m.Segment)
	b = m.Header.AppendTo(b)
	if m.Read != nil {
		b = m.Read.AppendTo(b)
	}
	return b
}

// errTerminate is the error of a Terminate message that does not decode.
var errTerminate = errors.New("the Terminate message is cut short")

// DecodeTermMsg decodes a message. Linux's siw has the control word's fields in another order on
// little-endian machines: layer and type change places, and the bits of the headers are the lowest of
// their byte, which RFC 5040 reserves. By those bits it is recognized. Without them the RFC's order counts.
func DecodeTermMsg(b []byte) (m TermMsg, err error) {
	if len(b) < 4 {
		return m, errTerminate
	}
	layerType, control := b[0], b[2]
	const siwBits = 7
	if control&(termSegment|termDDP|termRDMAP) == 0 && control&siwBits != 0 {
		layerType = layerType<<4 | layerType>>4
		control = control&1<<7 | control&2<<5 | control&4<<3
	}
	m.Code = Code(layerType)<<8 | Code(b[1])
	b = b[4:]
	if control&termSegment != 0 {
		if len(b) < 2 {
			return m, errTerminate
		}
		m.Segment, b = binary.BigEndian.Uint16(b), b[2:]
	}
	if control&termDDP == 0 {
		return m, nil
	}
	h, n, herr := DecodeHeader(b)
	if herr != nil { // the segment is about a broken header, perhaps
		return m, nil
	}
	m.Header, b = &h, b[n:]
	if control&termRDMAP != 0 && len(b) >= readRequestSize {
		r, err := DecodeReadReq(b[:readRequestSize])
		if err == nil {
			m.Read = &r
		}
	}
	return m, nil
}

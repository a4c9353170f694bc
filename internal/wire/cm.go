package wire

import "encoding/binary"

// The messages of the communication manager (CM) fill the 232 bytes of data after a [MADHeader]. Each has a type with
// its fields, a function that decodes those bytes, and a method AppendTo that appends them. A decoder's only error is
// [ErrShortMAD], since any 232 bytes are some message. The protocol refuses messages without sense. Reserved bits are
// ignored and sent as zero. Of each field as many low bits are sent as the field has on the wire.
//
// A timeout in these messages is a code of 5 bits that stands for 4.096 µs × 2^code.

// A CMAttr is the attribute ID of a CM message: the kind of message.
type CMAttr uint16

const (
	CMREQ     CMAttr = 0x10 // request for a connection
	CMMRA     CMAttr = 0x11 // message receipt acknowledgement: the answer takes longer
	CMREJ     CMAttr = 0x12 // reject
	CMREP     CMAttr = 0x13 // reply to a REQ
	CMRTU     CMAttr = 0x14 // ready to use: the REP has come
	CMDREQ    CMAttr = 0x15 // request to disconnect
	CMDREP    CMAttr = 0x16 // reply to a DREQ
	CMSIDRREQ CMAttr = 0x17 // request to resolve a service ID to a UD queue pair
	CMSIDRREP CMAttr = 0x18 // reply to a SIDR_REQ
	CMLAP     CMAttr = 0x19 // load alternate path
	CMAPR     CMAttr = 0x1a // alternate path response
)

var cmNames = [...]string{
	CMREQ:     "REQ",
	CMMRA:     "MRA",
	CMREJ:     "REJ",
	CMREP:     "REP",
	CMRTU:     "RTU",
	CMDREQ:    "DREQ",
	CMDREP:    "DREP",
	CMSIDRREQ: "SIDR_REQ",
	CMSIDRREP: "SIDR_REP",
	CMLAP:     "LAP",
	CMAPR:     "APR",
}

// String returns the message's abbreviation, such as "REQ" or "SIDR_REP".
func (a CMAttr) String() string {
	if int(a) < len(cmNames) && cmNames[a] != "" {
		return cmNames[a]
	}
	return "CM attribute " + string(appendHex(nil, uint64(a), 4))
}

// Values of the field Message of a [REJ] and an [MRA]: which message is rejected, or will be
// answered later.
const (
	CMMessageREQ   = 0
	CMMessageREP   = 1
	CMMessageOther = 2 // in an MRA: a LAP
)

// Values of REQ.Transport. With CMTransportExtended the field ExtTransport tells.
const (
	CMTransportRC       = 0
	CMTransportUC       = 1
	CMTransportRD       = 2
	CMTransportExtended = 3

	CMExtTransportXRC = 1
)

// Most messages begin with the two communication IDs, the sender's first.
const (
	cmLocalCommID  = 0
	cmRemoteCommID = 4
)

// Fields narrower than their bytes.
const (
	cmTimeoutShift = 3 // a timeout has the upper 5 bits of its byte
	cmMessageShift = 6 // Message has the upper 2 bits
	cm24Shift      = 8 // a number of 24 bits has the upper 3 bytes of a word
)

// appendCMData appends zeros for the data of a CM message to b. It returns the whole slice and the appended part.
func appendCMData(b []byte) (all, data []byte) {
	n := len(b)
	all = append(b, make([]byte, CMDataSize)...)
	return all, all[n:]
}

// getCommIDs reads the two communication IDs which most messages begin with.
func getCommIDs(b []byte) (local, remote uint32) {
	return binary.BigEndian.Uint32(b[cmLocalCommID:]), binary.BigEndian.Uint32(b[cmRemoteCommID:])
}

func putCommIDs(b []byte, local, remote uint32) {
	binary.BigEndian.PutUint32(b[cmLocalCommID:], local)
	binary.BigEndian.PutUint32(b[cmRemoteCommID:], remote)
}

// get24 and put24 read and write a number of 24 bits and the 8 bits after it, with which the number shares a word.
func get24(b []byte) (v uint32, low uint8) {
	w := binary.BigEndian.Uint32(b)
	return w >> cm24Shift, uint8(w)
}

func put24(b []byte, v uint32, low uint8) {
	binary.BigEndian.PutUint32(b, v<<cm24Shift|uint32(low))
}

// flag returns mask if set, else 0.
func flag(set bool, mask uint8) uint8 {
	if set {
		return mask
	}
	return 0
}

package iwarp

import (
	"encoding/binary"
	"fmt"
)

// Opcode is the operation of a message (RFC 5040, and RFC 7306 from Immediate on).
type Opcode uint8

// The operations.
const (
	Write Opcode = iota
	ReadRequest
	ReadResponse
	Send
	SendInvalidate
	SendSolicited
	SendSolicitedInvalidate
	Terminate
	Immediate
	ImmediateSolicited
	AtomicRequest
	AtomicResponse
)

var opcodeNames = [...]string{
	"RDMA Write", "RDMA Read Request", "RDMA Read Response", "Send", "Send with Invalidate", "Send with SE",
	"Send with SE and Invalidate", "Terminate", "Immediate Data", "Immediate Data with SE", "Atomic Request", "Atomic Response",
}

// String returns the name that the RFCs have.
func (o Opcode) String() string {
	if int(o) < len(opcodeNames) {
		return opcodeNames[o]
	}
	return fmt.Sprintf("opcode %d", uint8(o))
}

// solicited reports whether the message asks for an event at the receiver.
func (o Opcode) solicited() bool {
	return o == SendSolicited || o == SendSolicitedInvalidate || o == ImmediateSolicited
}

func (o Opcode) invalidates() bool { return o == SendInvalidate || o == SendSolicitedInvalidate }

// isSend reports whether the message's data go to a receive.
func (o Opcode) isSend() bool { return o >= Send && o <= SendSolicitedInvalidate }

// tagged reports whether the message goes to memory that it names.
func (o Opcode) tagged() bool { return o == Write || o == ReadResponse }

// Queues of untagged messages.
const (
	queueSend      = 0
	queueRequest   = 1 // READ and atomic requests
	queueTerminate = 2
	queueAtomic    = 3 // atomic responses
	numQueues      = 4
)

// queueOf returns the queue of an untagged operation.
func queueOf(o Opcode) uint32 {
	switch o {
	case ReadRequest, AtomicRequest:
		return queueRequest
	case Terminate:
		return queueTerminate
	case AtomicResponse:
		return queueAtomic
	}
	return queueSend
}

// Sizes of headers, in bytes.
const (
	taggedSize         = 14
	untaggedSize       = 18
	readRequestSize    = 28
	atomicRequestSize  = 52
	atomicResponseSize = 12
	immediateSize      = 8
)

// version is that of DDP and of RDMAP.
const version = 1

// Header is that of a DDP segment, with RDMAP's part of it.
type Header struct {
	Tagged bool
	Last   bool // of its message
	Op     Opcode
	STag   uint32 // the memory into which a tagged segment goes, else the region that the message invalidates
	TO     uint64 // tagged offset
	QN     uint32 // untagged: queue, sequence number of the message in it, and offset in the message
	MSN    uint32
	MO     uint32
}

const (
	bitTagged = 0x80
	bitLast   = 0x40
)

// AppendTo appends the header to b.
func (h *Header) AppendTo(b []byte) []byte {
	ddp := byte(version)
	if h.Last {
		ddp |= bitLast
	}
	rdmap := byte(version<<6) | byte(h.Op)
	if h.Tagged {
		b = append(b, ddp|bitTagged, rdmap)
		b = binary.BigEndian.AppendUint32(b, h.STag)
		return binary.BigEndian.AppendUint64(b, h.TO)
	}
	b = append(b, ddp, rdmap)
	b = binary.BigEndian.AppendUint32(b, h.STag)
	b = binary.BigEndian.AppendUint32(b, h.QN)
	b = binary.BigEndian.AppendUint32(b, h.MSN)
	return binary.BigEndian.AppendUint32(b, h.MO)
}

// headerSize returns the size of the header whose first byte is given.
func headerSize(first byte) int {
	if first&bitTagged != 0 {
		return taggedSize
	}
	return untaggedSize
}

// DecodeHeader decodes the header at the beginning of b, and returns its size. The error is a *Fault.
func DecodeHeader(b []byte) (h Header, n int, err error) {
	if len(b) < 2 || len(b) < headerSize(b[0]) {
		return h, 0, fault(ddpCatastrophic, "a segment of %d bytes has no room for its header", len(b))
	}
	h.Tagged, h.Last, h.Op = b[0]&bitTagged != 0, b[0]&bitLast != 0, Opcode(b[1]&0xf)
	if v := b[0] & 3; v != version {
		code := untaggedVersion
		if h.Tagged {
			code = taggedVersion
		}
		return h, 0, fault(code, "version %d of DDP: adverb speaks %d", v, version)
	}
	if v := b[1] >> 6; v != version {
		return h, 0, fault(rdmapVersion, "version %d of RDMAP: adverb speaks %d", v, version)
	}
	if h.Op > AtomicResponse || h.Op.tagged() != h.Tagged {
		return h, 0, fault(rdmapOpcode, "%v in a segment whose tagged bit is %v", h.Op, h.Tagged)
	}
	h.STag = binary.BigEndian.Uint32(b[2:])
	if h.Tagged {
		h.TO = binary.BigEndian.Uint64(b[6:])
		return h, taggedSize, nil
	}
	h.QN, h.MSN, h.MO = binary.BigEndian.Uint32(b[6:]), binary.BigEndian.Uint32(b[10:]), binary.BigEndian.Uint32(b[14:])
	return h, untaggedSize, nil
}

// ReadReq is the body of a READ request.
type ReadReq struct {
	SinkSTag uint32
	SinkTO   uint64
	Size     uint32 // bytes
	SrcSTag  uint32
	SrcTO    uint64
}

// AppendTo appends the request to b.
func (r *ReadReq) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.SinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.SinkTO)
	b = binary.BigEndian.AppendUint32(b, r.Size)
	b = binary.BigEndian.AppendUint32(b, r.SrcSTag)
	return binary.BigEndian.AppendUint64(b, r.SrcTO)
}

// DecodeReadReq decodes a request of its exact size.
func DecodeReadReq(b []byte) (r ReadReq, err error) {
	if len(b) != readRequestSize {
		return r, fault(ddpCatastrophic, "an RDMA Read Request of %d bytes: it has %d", len(b), readRequestSize)
	}
	be := binary.BigEndian
	return ReadReq{be.Uint32(b), be.Uint64(b[4:]), be.Uint32(b[12:]), be.Uint32(b[16:]), be.Uint64(b[20:])}, nil
}

// AtomicOp is the operation of an atomic request.
type AtomicOp uint8

// The operations.
const (
	FetchAdd    AtomicOp = 0
	Swap        AtomicOp = 1
	CompareSwap AtomicOp = 2
)

// AtomicReq is an atomic request. The masks say which bits of the word take part: an add whose mask is
// zero is a plain one of 64 bits.
type AtomicReq struct {
	Op          AtomicOp
	ID          uint32
	STag        uint32
	TO          uint64
	Data        uint64 // to add, or to store
	DataMask    uint64
	Compare     uint64
	CompareMask uint64
}

// AppendTo appends the request to b.
func (r *AtomicReq) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(r.Op))
	b = binary.BigEndian.AppendUint32(b, r.ID)
	b = binary.BigEndian.AppendUint32(b, r.STag)
	for _, v := range [...]uint64{r.TO, r.Data, r.DataMask, r.Compare, r.CompareMask} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// DecodeAtomicReq decodes a request of its exact size.
func DecodeAtomicReq(b []byte) (r AtomicReq, err error) {
	if len(b) != atomicRequestSize {
		return r, fault(ddpCatastrophic, "an Atomic Request of %d bytes: it has %d", len(b), atomicRequestSize)
	}
	be := binary.BigEndian
	r = AtomicReq{
		Op: AtomicOp(b[3] & 0xf), ID: be.Uint32(b[4:]), STag: be.Uint32(b[8:]), TO: be.Uint64(b[12:]),
		Data: be.Uint64(b[20:]), DataMask: be.Uint64(b[28:]), Compare: be.Uint64(b[36:]), CompareMask: be.Uint64(b[44:]),
	}
	return r, nil
}

// AtomicResp is the answer to an atomic request.
type AtomicResp struct {
	ID       uint32 // of the request
	Original uint64 // the word's value before
}

// AppendTo appends the answer to b.
func (r *AtomicResp) AppendTo(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, r.ID), r.Original)
}

// DecodeAtomicResp decodes an answer of its exact size.
func DecodeAtomicResp(b []byte) (r AtomicResp, err error) {
	if len(b) != atomicResponseSize {
		return r, fault(ddpCatastrophic, "an Atomic Response of %d bytes: it has %d", len(b), atomicResponseSize)
	}
	return AtomicResp{binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])}, nil
}

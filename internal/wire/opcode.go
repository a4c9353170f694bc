package wire

// An Opcode is the first byte of the BTH. Its upper three bits name the service, the lower five the
// operation.
type Opcode uint8

// Opcodes of the reliable connected service.
const (
	RCSendFirst              Opcode = 0x00
	RCSendMiddle             Opcode = 0x01
	RCSendLast               Opcode = 0x02
	RCSendLastWithImm        Opcode = 0x03
	RCSendOnly               Opcode = 0x04
	RCSendOnlyWithImm        Opcode = 0x05
	RCRDMAWriteFirst         Opcode = 0x06
	RCRDMAWriteMiddle        Opcode = 0x07
	RCRDMAWriteLast          Opcode = 0x08
	RCRDMAWriteLastWithImm   Opcode = 0x09
	RCRDMAWriteOnly          Opcode = 0x0a
	RCRDMAWriteOnlyWithImm   Opcode = 0x0b
	RCRDMAReadRequest        Opcode = 0x0c
	RCRDMAReadResponseFirst  Opcode = 0x0d
	RCRDMAReadResponseMiddle Opcode = 0x0e
	RCRDMAReadResponseLast   Opcode = 0x0f
	RCRDMAReadResponseOnly   Opcode = 0x10
	RCAcknowledge            Opcode = 0x11
	RCAtomicAcknowledge      Opcode = 0x12
	RCCompareSwap            Opcode = 0x13
	RCFetchAdd               Opcode = 0x14
	RCSendLastWithInvalidate Opcode = 0x16
	RCSendOnlyWithInvalidate Opcode = 0x17
	RCFlush                  Opcode = 0x1c // answered by an RDMA READ response without payload
	RCAtomicWrite            Opcode = 0x1d // RETH and 8 bytes; answered by an RDMA READ response without payload
)

// Opcodes of the unreliable connected service.
const (
	UCSendFirst            Opcode = 0x20
	UCSendMiddle           Opcode = 0x21
	UCSendLast             Opcode = 0x22
	UCSendLastWithImm      Opcode = 0x23
	UCSendOnly             Opcode = 0x24
	UCSendOnlyWithImm      Opcode = 0x25
	UCRDMAWriteFirst       Opcode = 0x26
	UCRDMAWriteMiddle      Opcode = 0x27
	UCRDMAWriteLast        Opcode = 0x28
	UCRDMAWriteLastWithImm Opcode = 0x29
	UCRDMAWriteOnly        Opcode = 0x2a
	UCRDMAWriteOnlyWithImm Opcode = 0x2b
)

// XRC is the distance between the opcodes of the XRC service and those of RC: an XRC opcode is XRC plus the RC opcode of
// the operation.
const XRC Opcode = 0xa0

// Opcodes of the unreliable datagram service, and the congestion notification packet of RoCEv2.
const (
	UDSendOnly        Opcode = 0x64
	UDSendOnlyWithImm Opcode = 0x65
	CNP               Opcode = 0x81
)

// Opcodes of our own, from the range that the specification leaves to manufacturers (0xc0 to 0xff). A peer drops
// opcodes that it does not know. See [Ranges], [Hello] and [PiggybackACK].
const (
	RCHello     Opcode = 0xe0 // says that its sender understands the others
	RCAckRanges Opcode = 0xe1 // selective acknowledgement: an acknowledgement, and the ranges that have come beyond it
	RCAnswer    Opcode = 0xe2 // a message with a piggybacked acknowledgement: see [PiggybackACK]
)

// A Service is the transport service of an opcode: its upper three bits.
type Service uint8

const (
	ServiceRC  Service = 0 // reliable connected
	ServiceUC  Service = 1 // unreliable connected
	ServiceUD  Service = 3 // unreliable datagram
	ServiceCNP Service = 4 // congestion notification
	ServiceXRC Service = 5 // extended reliable connected, annex A14

	// ServiceSecured is the first of two that are left to manufacturers. We use it for [Secured].
	ServiceSecured Service = 6
	// ServiceOwn is the second. See [RCHello].
	ServiceOwn Service = 7
)

func (s Service) String() string {
	switch s {
	case ServiceRC:
		return "RC"
	case ServiceUC:
		return "UC"
	case ServiceUD:
		return "UD"
	case ServiceCNP:
		return "CNP"
	case ServiceXRC:
		return "XRC"
	case ServiceSecured:
		return "SECURED"
	case ServiceOwn:
		return "ADVERB"
	}
	return "service " + string(appendHex(nil, uint64(s), 1))
}

// OpcodeFlags say which operation an opcode is part of, and the packet's position in its message.
type OpcodeFlags uint32

// Each valid opcode has exactly one of the four positions. Each but CNP and Secured is a request or a
// response.
const (
	FlagRequest  OpcodeFlags = 1 << iota // goes to a responder
	FlagResponse                         // goes back to a requester

	FlagFirst  // opens a message of several packets
	FlagMiddle // is neither its first nor its last packet
	FlagLast   // ends it
	FlagOnly   // is the whole message

	FlagSend        // SEND in any form
	FlagWrite       // RDMA WRITE in any form
	FlagRead        // RDMA READ request or response
	FlagAtomic      // COMPARE_SWAP, FETCH_ADD or their acknowledgement
	FlagAtomicWrite // ATOMIC WRITE
	FlagFlush       // FLUSH
	FlagAck         // ACKNOWLEDGE, which has an AETH and nothing else
	FlagOwn         // an opcode of our own

	FlagImm        // carries immediate data
	FlagInvalidate // carries the R_Key to invalidate
	FlagPayload    // may carry a payload
)

// A HeaderSet is the set of extended transport headers behind the BTH.
type HeaderSet uint16

// In the order in which they stand in a packet.
const (
	HeaderDETH HeaderSet = 1 << iota
	HeaderXRCETH
	HeaderFETH
	HeaderRETH
	HeaderAtomicETH
	HeaderImmDt
	HeaderIETH
	HeaderAETH
	HeaderAtomicAckETH
	HeaderCNP // the reserved bytes of a congestion notification
	HeaderSETH
)

var headerSizes = [...]int{
	DETHSize, XRCETHSize, FETHSize, RETHSize, AtomicETHSize, ImmDtSize, IETHSize, AETHSize, AtomicAckETHSize, CNPReservedSize, SETHSize,
}

// Len returns the bytes that the headers of s take, the BTH not counted.
func (s HeaderSet) Len() int {
	n := 0
	for i, size := range headerSizes {
		if s&(1<<i) != 0 {
			n += size
		}
	}
	return n
}

// opcodeInfo is the opcode table's entry for one opcode.
type opcodeInfo struct {
	Name      string // such as "RC RDMA_WRITE_FIRST"
	Service   Service
	Flags     OpcodeFlags
	Headers   HeaderSet
	HeaderLen int // bytes of the BTH and the extended headers
}

// opcodes has an entry for each value of a byte, so that no opcode off the wire needs a range
// check. The entry of an invalid opcode is zero: it has no name, flags or headers.
var opcodes = buildOpcodes()

func buildOpcodes() (table [256]opcodeInfo) {
	const (
		req  = FlagRequest
		resp = FlagResponse
		data = FlagPayload
	)
	set := func(op Opcode, name string, flags OpcodeFlags, headers HeaderSet) {
		if headers&HeaderImmDt != 0 {
			flags |= FlagImm
		}
		if headers&HeaderIETH != 0 {
			flags |= FlagInvalidate
		}
		s := Service(op >> 5)
		if s != ServiceCNP && s != ServiceSecured {
			name = s.String() + " " + name
		}
		table[op] = opcodeInfo{
			Name: name, Service: s, Flags: flags, Headers: headers, HeaderLen: BTHSize + headers.Len(),
		}
	}

	// SEND and RDMA WRITE have the same form over RC and UC.
	for _, base := range []Opcode{RCSendFirst, UCSendFirst} {
		const send, write = req | FlagSend | data, req | FlagWrite | data
		set(base|RCSendFirst, "SEND_FIRST", send|FlagFirst, 0)
		set(base|RCSendMiddle, "SEND_MIDDLE", send|FlagMiddle, 0)
		set(base|RCSendLast, "SEND_LAST", send|FlagLast, 0)
		set(base|RCSendLastWithImm, "SEND_LAST_WITH_IMM", send|FlagLast, HeaderImmDt)
		set(base|RCSendOnly, "SEND_ONLY", send|FlagOnly, 0)
		set(base|RCSendOnlyWithImm, "SEND_ONLY_WITH_IMM", send|FlagOnly, HeaderImmDt)
		set(base|RCRDMAWriteFirst, "RDMA_WRITE_FIRST", write|FlagFirst, HeaderRETH)
		set(base|RCRDMAWriteMiddle, "RDMA_WRITE_MIDDLE", write|FlagMiddle, 0)
		set(base|RCRDMAWriteLast, "RDMA_WRITE_LAST", write|FlagLast, 0)
		set(base|RCRDMAWriteLastWithImm, "RDMA_WRITE_LAST_WITH_IMM", write|FlagLast, HeaderImmDt)
		set(base|RCRDMAWriteOnly, "RDMA_WRITE_ONLY", write|FlagOnly, HeaderRETH)
		set(base|RCRDMAWriteOnlyWithImm, "RDMA_WRITE_ONLY_WITH_IMM", write|FlagOnly, HeaderRETH|HeaderImmDt)
	}

	set(RCSendLastWithInvalidate, "SEND_LAST_WITH_INVALIDATE", req|FlagSend|data|FlagLast, HeaderIETH)
	set(RCSendOnlyWithInvalidate, "SEND_ONLY_WITH_INVALIDATE", req|FlagSend|data|FlagOnly, HeaderIETH)

	set(RCRDMAReadRequest, "RDMA_READ_REQUEST", req|FlagRead|FlagOnly, HeaderRETH)
	set(RCRDMAReadResponseFirst, "RDMA_READ_RESPONSE_FIRST", resp|FlagRead|data|FlagFirst, HeaderAETH)
	set(RCRDMAReadResponseMiddle, "RDMA_READ_RESPONSE_MIDDLE", resp|FlagRead|data|FlagMiddle, 0)
	set(RCRDMAReadResponseLast, "RDMA_READ_RESPONSE_LAST", resp|FlagRead|data|FlagLast, HeaderAETH)
	set(RCRDMAReadResponseOnly, "RDMA_READ_RESPONSE_ONLY", resp|FlagRead|data|FlagOnly, HeaderAETH)

	set(RCAcknowledge, "ACKNOWLEDGE", resp|FlagAck|FlagOnly, HeaderAETH)
	set(RCAtomicAcknowledge, "ATOMIC_ACKNOWLEDGE", resp|FlagAtomic|FlagOnly, HeaderAETH|HeaderAtomicAckETH)
	set(RCCompareSwap, "COMPARE_SWAP", req|FlagAtomic|FlagOnly, HeaderAtomicETH)
	set(RCFetchAdd, "FETCH_ADD", req|FlagAtomic|FlagOnly, HeaderAtomicETH)
	set(RCFlush, "FLUSH", req|FlagFlush|FlagOnly, HeaderFETH|HeaderRETH)
	set(RCAtomicWrite, "ATOMIC_WRITE", req|FlagAtomicWrite|data|FlagOnly, HeaderRETH)

	// XRC has the operations of RC but for ATOMIC WRITE, and an XRCETH in each request.
	for op := RCSendFirst; op <= RCFlush; op++ {
		info := table[op]
		if info.HeaderLen == 0 {
			continue
		}
		headers := info.Headers
		if info.Flags&req != 0 {
			headers |= HeaderXRCETH
		}
		set(op|XRC, info.Name[len("RC "):], info.Flags, headers)
	}

	set(UDSendOnly, "SEND_ONLY", req|FlagSend|data|FlagOnly, HeaderDETH)
	set(UDSendOnlyWithImm, "SEND_ONLY_WITH_IMM", req|FlagSend|data|FlagOnly, HeaderDETH|HeaderImmDt)

	set(CNP, "CNP", FlagOnly, HeaderCNP)
	set(Secured, "SECURED", FlagOnly|FlagPayload, HeaderSETH)

	set(RCHello, "HELLO", req|FlagOwn|data|FlagOnly, 0)
	set(RCAckRanges, "ACKNOWLEDGE_RANGES", resp|FlagOwn|data|FlagOnly, HeaderAETH)
	return table
}

// Valid reports whether this package knows o.
func (o Opcode) Valid() bool { return opcodes[o].HeaderLen != 0 }

// String returns service and operation, such as "RC RDMA_WRITE_FIRST", or "opcode 0x15" for an
// unknown one.
func (o Opcode) String() string {
	if o.Valid() {
		return opcodes[o].Name
	}
	return "opcode " + string(appendHex(nil, uint64(o), 2))
}

// Service returns o's upper three bits, which name the service whether or not o is valid.
func (o Opcode) Service() Service { return Service(o >> 5) }

// Flags returns all flags of o. It is 0 for an invalid opcode.
func (o Opcode) Flags() OpcodeFlags { return opcodes[o].Flags }

// Headers returns the extended headers that o has, none for an invalid opcode.
func (o Opcode) Headers() HeaderSet { return opcodes[o].Headers }

// HeaderLen returns how many bytes BTH and extended headers take. It is 0 for an invalid opcode.
func (o Opcode) HeaderLen() int { return opcodes[o].HeaderLen }

func (o Opcode) has(f OpcodeFlags) bool { return opcodes[o].Flags&f != 0 }

// For an invalid opcode each of these returns false.

func (o Opcode) IsRequest() bool     { return o.has(FlagRequest) }
func (o Opcode) IsResponse() bool    { return o.has(FlagResponse) }
func (o Opcode) IsFirst() bool       { return o.has(FlagFirst) }
func (o Opcode) IsMiddle() bool      { return o.has(FlagMiddle) }
func (o Opcode) IsLast() bool        { return o.has(FlagLast) }
func (o Opcode) IsSend() bool        { return o.has(FlagSend) }
func (o Opcode) IsWrite() bool       { return o.has(FlagWrite) }
func (o Opcode) IsRead() bool        { return o.has(FlagRead) }
func (o Opcode) IsAtomic() bool      { return o.has(FlagAtomic) }
func (o Opcode) HasImm() bool        { return o.has(FlagImm) }
func (o Opcode) HasInvalidate() bool { return o.has(FlagInvalidate) }
func (o Opcode) HasPayload() bool    { return o.has(FlagPayload) }

// StartsMessage reports whether the packet is the first or only one of its message.
func (o Opcode) StartsMessage() bool { return o.has(FlagFirst | FlagOnly) }

// EndsMessage reports whether the packet is the last or only one of its message.
func (o Opcode) EndsMessage() bool { return o.has(FlagLast | FlagOnly) }

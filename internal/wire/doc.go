// Package wire holds the packet formats of RoCEv2. These are the base and extended transport
// headers, the opcode table that says which of them a packet carries, packet sequence numbers, the
// codes that headers use for credits and times, and the invariant CRC that closes each packet. The
// package also holds the management datagrams by which connections are made: [MADHeader], the
// messages of the connection manager ([REQ], [REP], …) and the [IPCMHeader] in their private data.
//
// A datagram (the payload of a UDP packet to port [UDPPort]: IBTA CA17-2) is
//
//	BTH | DETH | FETH | RETH | AtomicETH | ImmDt | IETH | AETH | AtomicAckETH | payload | pad | ICRC
//
// The opcode in the BTH says which of the extended headers are there. Their order is the one above.
// [Secured] packets, which only our own peers exchange, hide it. All fields are big-endian, and only
// the ICRC is little-endian. Nothing here holds state or allocates: decoders read from the caller's
// bytes, and encoders append to the caller's slice.
//
// On InfiniBand's own link, which only simulations have here, an [LRH] and perhaps a [GRH] take the place of IP and UDP
// headers, and a VCRC follows the ICRC. [SMP] and [SAMAD] are the messages of the manager of a subnet. Every byte may come from a hostile peer, so no
// decoder panics.
package wire

// The specification fixes these.
const (
	UDPPort  = 4791 // the UDP destination port of RoCEv2
	ICRCSize = 4    // the invariant CRC after payload and pad

	BTHSize          = 12
	DETHSize         = 8
	XRCETHSize       = 4
	FETHSize         = 4
	RETHSize         = 16
	AtomicETHSize    = 28
	ImmDtSize        = 4
	IETHSize         = 4
	AETHSize         = 4
	AtomicAckETHSize = 8
	CNPReservedSize  = 16 // a congestion notification carries these bytes instead of extended headers
	SETHSize         = 8  // ours: see [Secured]

	// MaxHeaderLen is the longest run of headers that any opcode has: BTH, XRCETH and AtomicETH.
	MaxHeaderLen = BTHSize + XRCETHSize + AtomicETHSize
	// MinDatagramLen is the length of the shortest datagram: BTH and ICRC.
	MinDatagramLen = BTHSize + ICRCSize

	MaxQPN      = 1<<24 - 1 // queue pair numbers have 24 bits
	MaxMSN      = 1<<24 - 1 // message sequence numbers have 24 bits
	DefaultPKey = 0xffff    // full member of the default partition
	PKeyBase    = 0x7fff    // masks a P_Key's membership bit
)

package wire

import "encoding/binary"

// RETH is the RDMA extended transport header. It names the remote memory that a READ, WRITE or
// FLUSH is about.
type RETH struct {
	VA     uint64 // address in the responder's region
	RKey   uint32
	Length uint32 // bytes of the whole message, at most 2^31
}

// DecodeRETH reads a RETH from the front of b. Its only error is [ErrShort].
func DecodeRETH(b []byte) (h RETH, err error) {
	if len(b) < RETHSize {
		return h, ErrShort
	}
	h.decode(b)
	return h, nil
}

func (h *RETH) decode(b []byte) {
	_ = b[RETHSize-1]
	h.VA = binary.BigEndian.Uint64(b)
	h.RKey = binary.BigEndian.Uint32(b[8:])
	h.Length = binary.BigEndian.Uint32(b[12:])
}

// AppendTo appends the header's 16 bytes to b.
func (h *RETH) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	return binary.BigEndian.AppendUint32(b, h.Length)
}

// FETH is the flush extended transport header. It stands before the RETH that names the range to
// flush.
type FETH struct {
	Placement   uint8  // 4 bits: how far the flush must reach, see FlushGlobal and FlushPersistent
	Selectivity uint8  // 2 bits: how much is to be flushed, see FlushRange and FlushMR
	Resv        uint32 // 26 reserved bits, kept so that a decoded header encodes to the same bytes
}

// Values of FETH.Placement (flags) and FETH.Selectivity.
const (
	FlushGlobal     = 1 // visible to all
	FlushPersistent = 2 // survives a loss of power

	FlushRange = 0 // the range that the RETH names
	FlushMR    = 1 // the whole memory region
)

// Bits of a FETH.
const (
	fethPlacementMask    = 0xf
	fethSelectivityShift = 4
	fethSelectivityMask  = 0x3
	fethResvShift        = 6
)

// DecodeFETH reads a FETH from the front of b. Its only error is [ErrShort].
func DecodeFETH(b []byte) (h FETH, err error) {
	if len(b) < FETHSize {
		return h, ErrShort
	}
	h.decode(b)
	return h, nil
}

func (h *FETH) decode(b []byte) {
	v := binary.BigEndian.Uint32(b)
	h.Placement = uint8(v & fethPlacementMask)
	h.Selectivity = uint8(v >> fethSelectivityShift & fethSelectivityMask)
	h.Resv = v >> fethResvShift
}

// AppendTo appends the header's 4 bytes to b.
func (h *FETH) AppendTo(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, h.Resv<<fethResvShift|
		uint32(h.Selectivity&fethSelectivityMask)<<fethSelectivityShift|
		uint32(h.Placement&fethPlacementMask))
}

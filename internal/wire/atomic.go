package wire

import "encoding/binary"

// AtomicETH is the atomic extended transport header of COMPARE_SWAP and FETCH_ADD.
type AtomicETH struct {
	VA      uint64 // address of the 8 bytes, a multiple of 8
	RKey    uint32
	SwapAdd uint64 // the value to store (COMPARE_SWAP) or to add (FETCH_ADD)
	Compare uint64 // the value that memory must have for COMPARE_SWAP to store; FETCH_ADD ignores it
}

// DecodeAtomicETH reads an AtomicETH from the front of b. Its only error is [ErrShort].
func DecodeAtomicETH(b []byte) (h AtomicETH, err error) {
	if len(b) < AtomicETHSize {
		return h, ErrShort
	}
	h.decode(b)
	return h, nil
}

func (h *AtomicETH) decode(b []byte) {
	_ = b[AtomicETHSize-1]
	h.VA = binary.BigEndian.Uint64(b)
	h.RKey = binary.BigEndian.Uint32(b[8:])
	h.SwapAdd = binary.BigEndian.Uint64(b[12:])
	h.Compare = binary.BigEndian.Uint64(b[20:])
}

// AppendTo appends the header's 28 bytes to b.
func (h *AtomicETH) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.VA)
	b = binary.BigEndian.AppendUint32(b, h.RKey)
	b = binary.BigEndian.AppendUint64(b, h.SwapAdd)
	return binary.BigEndian.AppendUint64(b, h.Compare)
}

// AtomicAckETH carries the result of an atomic operation: the memory's value before it. The number is the same at
// both ends, so neither needs to know the other's byte order.
type AtomicAckETH struct {
	Orig uint64
}

// DecodeAtomicAckETH reads an AtomicAckETH from the front of b. Its only error is [ErrShort].
func DecodeAtomicAckETH(b []byte) (h AtomicAckETH, err error) {
	if len(b) < AtomicAckETHSize {
		return h, ErrShort
	}
	h.decode(b)
	return h, nil
}

func (h *AtomicAckETH) decode(b []byte) { h.Orig = binary.BigEndian.Uint64(b) }

// AppendTo appends the header's 8 bytes to b.
func (h *AtomicAckETH) AppendTo(b []byte) []byte { return binary.BigEndian.AppendUint64(b, h.Orig) }

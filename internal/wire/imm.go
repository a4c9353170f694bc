package wire

import "encoding/binary"

// ImmDt is the immediate data of a SEND or RDMA WRITE. On the wire it is big-endian, as imm_data in
// the C API is.
type ImmDt uint32

// DecodeImmDt reads an ImmDt from the front of b. Its only error is [ErrShort].
func DecodeImmDt(b []byte) (ImmDt, error) {
	if len(b) < ImmDtSize {
		return 0, ErrShort
	}
	return ImmDt(binary.BigEndian.Uint32(b)), nil
}

// AppendTo appends the 4 bytes to b.
func (i ImmDt) AppendTo(b []byte) []byte { return binary.BigEndian.AppendUint32(b, uint32(i)) }

// IETH is the invalidate extended transport header of a SEND WITH INVALIDATE.
type IETH struct {
	RKey uint32 // the receiver's key that is to be invalidated
}

// DecodeIETH reads an IETH from the front of b. Its only error is [ErrShort].
func DecodeIETH(b []byte) (h IETH, err error) {
	if len(b) < IETHSize {
		return h, ErrShort
	}
	return IETH{RKey: binary.BigEndian.Uint32(b)}, nil
}

// AppendTo appends the 4 bytes to b.
func (h IETH) AppendTo(b []byte) []byte { return binary.BigEndian.AppendUint32(b, h.RKey) }

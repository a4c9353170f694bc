package wire

import "encoding/binary"

// DETH is the datagram extended transport header. It names the sender, and the Q_Key that shows the sender's right to
// send.
type DETH struct {
	QKey  uint32
	Resv  uint8  // 8 reserved bits, kept so that a decoded header encodes to the same bytes
	SrcQP uint32 // 24 bits
}

// DecodeDETH reads a DETH from the front of b. Its only error is [ErrShort].
func DecodeDETH(b []byte) (h DETH, err error) {
	if len(b) < DETHSize {
		return h, ErrShort
	}
	h.decode(b)
	return h, nil
}

func (h *DETH) decode(b []byte) {
	_ = b[DETHSize-1]
	h.QKey = binary.BigEndian.Uint32(b)
	h.Resv = b[4]
	h.SrcQP = binary.BigEndian.Uint32(b[4:]) & MaxQPN
}

// AppendTo appends the header's 8 bytes to b.
func (h *DETH) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, h.QKey)
	return binary.BigEndian.AppendUint32(b, uint32(h.Resv)<<24|h.SrcQP&MaxQPN)
}

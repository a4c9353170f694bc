package wire

import "encoding/binary"

// XRCETH is the extended transport header of a request to an XRC target QP: annex A14.
type XRCETH struct {
	Resv uint8  // 8 reserved bits, kept as those of DETH are
	SRQN uint32 // the XRC SRQ whose receives, and whose protection domain, the request uses; 24 bits
}

// DecodeXRCETH reads an XRCETH from the front of b. Its only error is [ErrShort].
func DecodeXRCETH(b []byte) (h XRCETH, err error) {
	if len(b) < XRCETHSize {
		return h, ErrShort
	}
	h.decode(b)
	return h, nil
}

func (h *XRCETH) decode(b []byte) {
	h.Resv, h.SRQN = b[0], binary.BigEndian.Uint32(b)&MaxQPN
}

// AppendTo appends the header's 4 bytes to b.
func (h *XRCETH) AppendTo(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(h.Resv)<<24|h.SRQN&MaxQPN)
}

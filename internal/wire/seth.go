package wire

import "encoding/binary"

// Secured marks packets whose contents are encrypted. No specification has it: it is the first of the
// opcodes that are left to manufacturers, so that others drop it as unknown.
//
//	BTH | SETH | encrypted: first word of the packet's own BTH, extended headers, payload, pad | tag | ICRC
//
// The BTH in front has the P_Key, destination QPN, AckReq and PSN of the packet inside, so that hosts and
// captures find their way by it. The tag authenticates it too.
const Secured Opcode = 0xc0

// SETH is the security extended transport header, the only one of a packet that is [Secured].
type SETH struct {
	// Number counts the packets of one direction of a connection. No two packets have the same, whatever
	// their PSNs.
	Number uint64
}

// DecodeSETH reads a SETH from the front of b. Its only error is [ErrShort].
func DecodeSETH(b []byte) (h SETH, err error) {
	if len(b) < SETHSize {
		return h, ErrShort
	}
	h.decode(b)
	return h, nil
}

func (h *SETH) decode(b []byte) { h.Number = binary.BigEndian.Uint64(b) }

// AppendTo appends the header's 8 bytes to b.
func (h *SETH) AppendTo(b []byte) []byte { return binary.BigEndian.AppendUint64(b, h.Number) }

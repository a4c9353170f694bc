package wire

import "encoding/binary"

// BTH is the base transport header, the first 12 bytes of each packet. Reserved bits are kept, so
// that a decoded header encodes to the same bytes. A sender leaves them zero.
type BTH struct {
	Opcode    Opcode
	Solicited bool  // solicited event: the receiver's CQ may be armed for these alone
	MigReq    bool  // migration state
	PadCount  uint8 // bytes of pad after the payload, 0 to 3
	TVer      uint8 // transport header version, 4 bits; 0 is the only one there is
	FECN      bool  // congestion met on the way here; not covered by the ICRC; RoCEv2 ignores both: IBTA CA17-29
	BECN      bool  // congestion met on the way back; not covered by the ICRC
	Resv6     uint8 // 6 reserved bits next to BECN; not covered by the ICRC
	AckReq    bool  // the responder is to acknowledge this packet
	Resv7     uint8 // 7 reserved bits next to AckReq, see [ResvAdaptiveRouting]
	PKey      uint16
	DestQP    uint32 // 24 bits
	PSN       PSN
}

// ResvAdaptiveRouting is the uppermost bit of BTH.Resv7. Senders that let switches route each packet by itself
// (adaptive routing) are said to set it. The public specification does not have it. A QP sets and heeds that bit, or
// another, only if it was told to: verbs.AdaptiveRouting.
const ResvAdaptiveRouting = 0x40

// Reserved returns the reserved bits that a QP may use as a mark: Resv6 in the upper byte and Resv7 in the lower.
func (h *BTH) Reserved() uint16 { return uint16(h.Resv6)<<8 | uint16(h.Resv7) }

// SetReserved sets these bits.
func (h *BTH) SetReserved(bits uint16) { h.Resv6, h.Resv7 = uint8(bits>>8), uint8(bits) }

// Bits of the BTH's second, fifth and ninth byte.
const (
	bthSolicited = 0x80
	bthMigReq    = 0x40
	bthPadShift  = 4
	bthPadMask   = 0x3
	bthTVerMask  = 0x0f

	bthFECN      = 0x80
	bthBECN      = 0x40
	bthResv6Mask = 0x3f

	bthAckReq    = 0x80
	bthResv7Mask = 0x7f
)

// DecodeBTH reads a BTH from the front of b. Its only error is [ErrShort]. The caller
// checks whether opcode and version are known.
func DecodeBTH(b []byte) (h BTH, err error) {
	if len(b) < BTHSize {
		return h, ErrShort
	}
	h.decode(b)
	return h, nil
}

func (h *BTH) decode(b []byte) {
	_ = b[BTHSize-1]
	h.Opcode = Opcode(b[0])
	h.Solicited = b[1]&bthSolicited != 0
	h.MigReq = b[1]&bthMigReq != 0
	h.PadCount = b[1] >> bthPadShift & bthPadMask
	h.TVer = b[1] & bthTVerMask
	h.PKey = binary.BigEndian.Uint16(b[2:])
	h.FECN = b[4]&bthFECN != 0
	h.BECN = b[4]&bthBECN != 0
	h.Resv6 = b[4] & bthResv6Mask
	h.DestQP = binary.BigEndian.Uint32(b[4:]) & MaxQPN
	h.AckReq = b[8]&bthAckReq != 0
	h.Resv7 = b[8] & bthResv7Mask
	h.PSN = PSN(binary.BigEndian.Uint32(b[8:])) & PSNMask
}

// AppendTo appends the header's 12 bytes to b. Of each field it sends as many low bits as the field has on the wire.
func (h *BTH) AppendTo(b []byte) []byte {
	b1 := h.PadCount&bthPadMask<<bthPadShift | h.TVer&bthTVerMask
	if h.Solicited {
		b1 |= bthSolicited
	}
	if h.MigReq {
		b1 |= bthMigReq
	}
	b4 := h.Resv6 & bthResv6Mask
	if h.FECN {
		b4 |= bthFECN
	}
	if h.BECN {
		b4 |= bthBECN
	}
	b8 := h.Resv7 & bthResv7Mask
	if h.AckReq {
		b8 |= bthAckReq
	}
	b = binary.BigEndian.AppendUint64(b, uint64(h.Opcode)<<56|uint64(b1)<<48|uint64(h.PKey)<<32|uint64(b4)<<24|uint64(h.DestQP&MaxQPN))
	return binary.BigEndian.AppendUint32(b, uint32(b8)<<24|uint32(h.PSN&PSNMask))
}

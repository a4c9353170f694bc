package wire

import (
	"encoding/binary"
)

// The specification fixes these of InfiniBand's own link.
const (
	LRHSize  = 8
	GRHSize  = 40
	VCRCSize = 2

	GRHNextHeader = 0x1b // what follows a GRH is a BTH

	SMIQPN        = 0      // the subnet management interface: the QP that sends and receives SMPs
	PermissiveLID = 0xffff // every port takes a packet to it for its own, if the packet is for QP0
	MulticastLID  = 0xc000 // the lowest LID of a group
	ManagementVL  = 15     // the virtual lane of SMPs, which needs no credits
)

// LNH is what follows a local route header.
type LNH uint8

// The headers that follow an LRH. Raw packets, of the other two codes, are not known here.
const (
	LNHLocal  LNH = 2 // BTH
	LNHGlobal LNH = 3 // GRH, then BTH
)

// LRH is InfiniBand's local route header, by which switches forward a packet within its subnet.
type LRH struct {
	VL     uint8 // virtual lane, 4 bits
	SL     uint8 // service level, 4 bits
	LNH    LNH
	DLID   uint16
	Length uint16 // 11 bits: words of 4 bytes, from the LRH up to the ICRC
	SLID   uint16
}

const lrhLengthMask = 1<<11 - 1

// DecodeLRH reads the header from the front of b. Its errors are [ErrShort] and [ErrLinkVersion].
func DecodeLRH(b []byte) (h LRH, err error) {
	if len(b) < LRHSize {
		return h, ErrShort
	}
	if b[0]&0xf != 0 {
		return h, ErrLinkVersion
	}
	h.VL, h.SL, h.LNH = b[0]>>4, b[1]>>4, LNH(b[1]&3)
	h.DLID = binary.BigEndian.Uint16(b[2:])
	h.Length = binary.BigEndian.Uint16(b[4:]) & lrhLengthMask
	h.SLID = binary.BigEndian.Uint16(b[6:])
	return h, nil
}

// AppendTo appends the header's 8 bytes to b.
func (h *LRH) AppendTo(b []byte) []byte {
	b = append(b, h.VL<<4, h.SL<<4|uint8(h.LNH)&3)
	b = binary.BigEndian.AppendUint16(b, h.DLID)
	b = binary.BigEndian.AppendUint16(b, h.Length&lrhLengthMask)
	return binary.BigEndian.AppendUint16(b, h.SLID)
}

// GRH is the global route header, by which routers forward a packet between subnets.
type GRH struct {
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits
	Length       uint16 // bytes from behind the GRH up to the ICRC
	NextHeader   uint8
	HopLimit     uint8
	SGID, DGID   [16]byte
}

// DecodeGRH reads the header from the front of b. Its errors are [ErrShort] and [ErrLinkVersion].
func DecodeGRH(b []byte) (h GRH, err error) {
	if len(b) < GRHSize {
		return h, ErrShort
	}
	word := binary.BigEndian.Uint32(b)
	if word>>28 != 6 {
		return h, ErrLinkVersion
	}
	h.TrafficClass, h.FlowLabel = uint8(word>>20), word&(1<<flowLabelBits-1)
	h.Length = binary.BigEndian.Uint16(b[4:])
	h.NextHeader, h.HopLimit = b[6], b[7]
	h.SGID, h.DGID = [16]byte(b[8:24]), [16]byte(b[24:40])
	return h, nil
}

// AppendTo appends the header's 40 bytes to b.
func (h *GRH) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 6<<28|uint32(h.TrafficClass)<<20|h.FlowLabel&(1<<flowLabelBits-1))
	b = binary.BigEndian.AppendUint16(b, h.Length)
	b = append(b, h.NextHeader, h.HopLimit)
	b = append(b, h.SGID[:]...)
	return append(b, h.DGID[:]...)
}

// vcrcPoly is the generator of the VCRC, x^16 + x^12 + x^3 + x + 1, with its lowest power in the highest bit.
const vcrcPoly = 0xd008

var vcrcTable = func() (t [256]uint16) {
	for i := range t {
		c := uint16(i)
		for range 8 {
			c = c>>1 ^ vcrcPoly&-(c&1)
		}
		t[i] = c
	}
	return t
}()

// VCRC returns the variant CRC of a packet, which reaches from the LRH to the ICRC. Each link has its own: a switch
// that changes the virtual lane computes it anew.
func VCRC(packet []byte) uint16 {
	c := ^uint16(0)
	for _, v := range packet {
		c = c>>8 ^ vcrcTable[uint8(c)^v]
	}
	return ^c
}

// AppendVCRC appends a packet's VCRC to it.
func AppendVCRC(packet []byte) []byte { return binary.LittleEndian.AppendUint16(packet, VCRC(packet)) }

// CutVCRC returns a packet without its VCRC. ok says that the VCRC is right.
func CutVCRC(packet []byte) (rest []byte, ok bool) {
	n := len(packet) - VCRCSize
	if n < LRHSize {
		return nil, false
	}
	return packet[:n], binary.LittleEndian.Uint16(packet[n:]) == VCRC(packet[:n])
}

package wire

import (
	"encoding/binary"
	"net/netip"
)

// Sizes and places of the bytes that the ICRC covers before the BTH.
const (
	icrcLRHSize = 8 // bytes of ones in the place of InfiniBand's local route header
	ipv4Size    = 20
	ipv6Size    = 40
	udpSize     = 8

	maxDatagramLen = 1<<16 - 1 - udpSize // the most that the UDP header can express

	bthCongestion = 4 // the BTH's fifth byte, with FECN and BECN

	protocolUDP      = 17
	ipv4DontFragment = 0x4000

	// Bytes between a field and the BTH.
	behindUDPLength = 2                      // its checksum
	behindIPv4ID    = ipv4Size - 6 + udpSize // flags and all that follows
	behindIPv4Total = ipv4Size - 4 + udpSize
	behindIPv6Len   = ipv6Size - 6 + udpSize
)

// A Flow computes the ICRCs of the datagrams from one address and port to another. It is made once, and holds the CRC
// of the bytes that all datagrams of the flow have in common. Any number of goroutines may use it.
//
// The ICRC is the CRC-32 of Ethernet over eight bytes of ones, the IP header, the UDP header and the datagram up to
// the ICRC. All fields that routers may change count as ones: type of service, time to live and header checksum (over
// IPv6 traffic class, flow label and hop limit), the UDP checksum, and the BTH's fifth byte with FECN and BECN. The
// IPv4 identification and the don't-fragment flag are covered, see [Flow.SolveID]. IBTA CA17-22.
type Flow struct {
	// base is the CRC up to the BTH, with lengths and identification zero and DF set.
	base  uint32
	label uint32 // the IPv6 flow label, flowIPv4, or one of InfiniBand; 0 of no flow
}

const flowIPv4 = 1 << flowLabelBits // is no label

// NewFlow returns the flow from src to dst. IPv4 addresses in IPv6 form count as IPv4. Zones do not
// count. If an address is missing or the two are not of one family, no datagram can belong to the
// flow, and it is not [Flow.Valid].
//
// If both ports are 0, the flow is one of RoCEv1, between the GIDs that the addresses stand for. Its ICRC covers the GRH
// in place of the headers of IP and UDP.
func NewFlow(src, dst netip.AddrPort) Flow {
	if src.Port()|dst.Port() == 0 {
		return newFlowV1(src.Addr(), dst.Addr())
	}
	srcIP, dstIP := src.Addr().Unmap(), dst.Addr().Unmap()
	if !srcIP.IsValid() || srcIP.BitLen() != dstIP.BitLen() {
		return Flow{}
	}

	var buf [icrcLRHSize + ipv6Size + udpSize]byte
	b := buf[:0]
	b = binary.BigEndian.AppendUint64(b, 1<<64-1)
	label := uint32(flowIPv4)
	if srcIP.Is4() {
		b = append(b, 0x45, 0xff, 0, 0) // version, header length, type of service, total length
		b = binary.BigEndian.AppendUint32(b, ipv4DontFragment)
		b = append(b, 0xff, protocolUDP, 0xff, 0xff) // time to live, protocol, checksum
	} else {
		label = flowLabel(srcIP.As16(), dstIP.As16(), src.Port())
		b = append(b, 0x6f, 0xff, 0xff, 0xff)  // version, traffic class, flow label
		b = append(b, 0, 0, protocolUDP, 0xff) // payload length, next header, hop limit
	}
	b = appendAddr(b, srcIP)
	b = appendAddr(b, dstIP)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = append(b, 0, 0, 0xff, 0xff) // length, checksum

	return Flow{base: crcOf(b), label: label}
}

// newFlowV1 is NewFlow for RoCEv1, whose headers from the GRH on are those of InfiniBand.
func newFlowV1(src, dst netip.Addr) Flow {
	if !src.IsValid() || !dst.IsValid() {
		return Flow{}
	}
	sgid, dgid := src.As16(), dst.As16()
	return NewGlobalFlow(sgid, dgid, 0, flowLabel(sgid, dgid, 0))
}

// appendAddr appends the 4 or 16 bytes of a to b.
func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		a4 := a.As4()
		return append(b, a4[:]...)
	}
	a16 := a.As16()
	return append(b, a16[:]...)
}

// Valid reports whether the flow joins two addresses of one family.
func (f *Flow) Valid() bool { return f.label != 0 }

// ICRC returns the ICRC of datagram, which reaches from the BTH to the end of the space for the
// ICRC. The last four bytes are not covered. id is the IPv4 identification that the packet is sent
// with. Over IPv6 it is ignored. The don't-fragment flag counts as set. ICRC panics if datagram is
// shorter than [MinDatagramLen].
func (f *Flow) ICRC(id uint16, datagram []byte) uint32 {
	_ = datagram[MinDatagramLen-1]
	return fromBTH(f.upToBTH(id, len(datagram)), datagram[:len(datagram)-ICRCSize])
}

// upToBTH returns the CRC up to the BTH of a datagram of n bytes.
func (f *Flow) upToBTH(id uint16, n int) uint32 {
	c := f.base ^ crcHalfBehind(uint16(n+udpSize), behindUDPLength)
	if f.label != flowIPv4 {
		if f.label >= flowLocal {
			return f.upToBTHOnIB(n)
		}
		return c ^ crcHalfBehind(uint16(n+udpSize), behindIPv6Len)
	}
	c ^= crcHalfBehind(uint16(n+udpSize+ipv4Size), behindIPv4Total)
	if id != 0 {
		c ^= crcHalfBehind(id, behindIPv4ID)
	}
	return c
}

// fromBTH goes on from the CRC up to the BTH over covered, which begins with the BTH.
func fromBTH(c uint32, covered []byte) uint32 {
	if isFew(len(covered)) {
		return foldICRC(c, covered)
	}
	if isMany(len(covered)) {
		return foldLong(c, covered)
	}
	if len(covered) < crcStep || len(covered) >= BTHSize+shortCRC { // if many bytes are left, a whole payload goes at once
		bth := [BTHSize]byte(covered)
		bth[bthCongestion] = 0xff
		return updateCRC(^moveBTH(^c, &bth), covered[BTHSize:])
	}
	// Most packets have little more than one step, so the BTH goes with the bytes behind it.
	front := [crcStep]byte(covered)
	front[bthCongestion] = 0xff
	return updateShort(^move16(^c, &front), covered[crcStep:])
}

// Seal writes the ICRC into the last four bytes of datagram. See [Flow.ICRC] for the arguments.
func (f *Flow) Seal(id uint16, datagram []byte) { putICRC(datagram, f.ICRC(id, datagram)) }

// SealFolded is Seal for a datagram that ends with the payload that fold has copied, if any.
func (f *Flow) SealFolded(id uint16, datagram []byte, fold *Fold) {
	if fold.n == 0 {
		f.Seal(id, datagram)
		return
	}
	headers := datagram[:len(datagram)-ICRCSize-fold.n]
	putICRC(datagram, foldHeaders(f.upToBTH(id, len(datagram)), headers, fold.n, &fold.sum))
}

// putICRC writes the ICRC in the order in which Ethernet sends its CRC: the low byte first.
func putICRC(datagram []byte, icrc uint32) {
	binary.LittleEndian.PutUint32(datagram[len(datagram)-ICRCSize:], icrc)
}

// Verify reports whether datagram ends in the right ICRC, for a packet with the IPv4 identification id and the
// don't-fragment flag. A datagram that is shorter than [MinDatagramLen] or too long for UDP fails, and so does any on
// a flow that is not valid.
func (f *Flow) Verify(id uint16, datagram []byte) bool {
	if len(datagram) < MinDatagramLen || len(datagram) > maxDatagramLen || f.label == 0 {
		return false
	}
	return foundICRC(datagram) == f.ICRC(id, datagram)
}

// SolveID verifies datagram for a receiver that sees neither the IPv4 identification nor the don't-fragment flag, as
// behind a UDP socket, and returns the two. ok says that an identification fits. A damaged datagram passes with a
// probability of 2^-15, since 15 of the ICRC's 32 bits are left to check with. A receiver that expects or sees the
// identification can compare it, and so checks all 32 bits. Over IPv6, where neither field exists, id is 0, df is
// false, and ok is the result of [Flow.Verify].
func (f *Flow) SolveID(datagram []byte) (id uint16, df, ok bool) {
	if len(datagram) < MinDatagramLen || len(datagram) > maxDatagramLen || f.label == 0 {
		return 0, false, false
	}
	diff := foundICRC(datagram) ^ f.ICRC(0, datagram)
	if f.label != flowIPv4 {
		return 0, false, diff == 0
	}
	if diff == 0 {
		return 0, true, true
	}
	behind := behindIPv4ID - 2 + len(datagram) - ICRCSize // bytes after the flags
	if behind%4 != 0 {
		return 0, false, false // no RoCEv2 packet has such a length
	}
	// Identification and flags are one word of the covered bytes. It has entered the CRC with a
	// factor of x^32 for itself and x^8 for each byte after it. Dividing by these gives the word's
	// difference, with its first byte lowest.
	word := unshiftWords(diff, 1+behind/4)
	id = uint16(word&0xff)<<8 | uint16(word>>8&0xff)
	switch flags := uint16(word>>16&0xff)<<8 | uint16(word>>24); flags {
	case 0:
		return id, true, true
	case ipv4DontFragment:
		return id, false, true
	}
	return 0, false, false
}

// foundICRC returns the ICRC that datagram ends in.
func foundICRC(datagram []byte) uint32 {
	return binary.LittleEndian.Uint32(datagram[len(datagram)-ICRCSize:])
}

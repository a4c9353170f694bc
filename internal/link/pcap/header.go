package pcap

import (
	"encoding/binary"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Sizes and numbers of IPv4, IPv6, UDP and TCP, which their RFCs fix.
const (
	protocolTCP = 6
	protocolUDP = 17

	ipv4Size = 20
	ipv6Size = 40
	udpSize  = 8
	tcpSize  = 20

	ipv4DontFragment = 0x4000

	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpPSH = 0x08
	tcpACK = 0x10
)

// ipHeader has the fields of a packet's IP header. The header is IPv4's if both addresses are, and IPv6's otherwise.
type ipHeader struct {
	src, dst     netip.Addr
	trafficClass uint8
	id           uint16 // of IPv4, where DF is always set
	flowLabel    uint32 // of IPv6
}

func (h *ipHeader) is4() bool { return h.src.Is4() && h.dst.Is4() }

// appendTo appends the header of a packet with n bytes behind it.
func (h *ipHeader) appendTo(b []byte, protocol uint8, n int) []byte {
	be := binary.BigEndian
	if h.is4() {
		start := len(b)
		b = append(b, 4<<4|ipv4Size/4, h.trafficClass)
		b = be.AppendUint16(b, uint16(ipv4Size+n))
		b = be.AppendUint16(b, h.id)
		b = be.AppendUint16(b, ipv4DontFragment)
		b = append(b, hopLimit, protocol, 0, 0)
		b = append(append(b, h.src.AsSlice()...), h.dst.AsSlice()...)
		be.PutUint16(b[start+10:], ^fold(sum(0, b[start:])))
		return b
	}
	src, dst := h.src.As16(), h.dst.As16()
	b = be.AppendUint32(b, 6<<28|uint32(h.trafficClass)<<20|h.flowLabel)
	b = be.AppendUint16(b, uint16(n))
	b = append(b, protocol, hopLimit)
	return append(append(b, src[:]...), dst[:]...)
}

// pseudo is the sum of the pseudo header, which the checksums of UDP and TCP cover besides their n bytes.
func (h *ipHeader) pseudo(protocol uint8, n int) uint32 {
	s := uint32(protocol) + uint32(n)
	if h.is4() {
		return sum(sum(s, h.src.AsSlice()), h.dst.AsSlice())
	}
	src, dst := h.src.As16(), h.dst.As16()
	return sum(sum(s, src[:]), dst[:])
}

// appendUDP appends a UDP packet.
func appendUDP(b []byte, h *ipHeader, srcPort, dstPort uint16, payload []byte) []byte {
	n := udpSize + len(payload)
	b = h.appendTo(b, protocolUDP, n)
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, srcPort)
	b = binary.BigEndian.AppendUint16(b, dstPort)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	b = append(b, 0, 0)
	b = append(b, payload...)
	c := ^fold(sum(h.pseudo(protocolUDP, n), b[start:]))
	if c == 0 { // would mean that there is no checksum
		c = 0xffff
	}
	binary.BigEndian.PutUint16(b[start+6:], c)
	return b
}

// tcpHeader has the fields that vary in the TCP headers that this package makes up.
type tcpHeader struct {
	srcPort, dstPort uint16
	seq, ack         uint32
	flags            uint8
}

// appendTCP appends a TCP packet.
func appendTCP(b []byte, h *ipHeader, t *tcpHeader, payload []byte) []byte {
	n := tcpSize + len(payload)
	b = h.appendTo(b, protocolTCP, n)
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, t.srcPort)
	b = binary.BigEndian.AppendUint16(b, t.dstPort)
	b = binary.BigEndian.AppendUint32(b, t.seq)
	b = binary.BigEndian.AppendUint32(b, t.ack)
	b = append(b, tcpSize/4<<4, t.flags, 0xff, 0xff) // the window is the largest
	b = append(b, 0, 0, 0, 0)                        // checksum and urgent pointer
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[start+16:], ^fold(sum(h.pseudo(protocolTCP, n), b[start:])))
	return b
}

// sum adds the 16-bit words of b to s, as the Internet checksum does. Packets are too short for s to overflow.
func sum(s uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) > 0 {
		s += uint32(b[0]) << 8
	}
	return s
}

// fold makes 16 bits of a sum, with the carries added.
func fold(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

// appendV1 appends a frame of RoCEv1.
func appendV1(b []byte, d *link.Datagram, payload []byte) []byte {
	b = appendMAC(appendMAC(b, d.Dst.Addr()), d.Src.Addr())
	b = binary.BigEndian.AppendUint16(b, link.EtherTypeV1)
	return append(link.AppendGRH(b, d, len(payload)), payload...)
}

// appendMAC appends the MAC address of a RoCEv1 address.
func appendMAC(b []byte, a netip.Addr) []byte {
	mac, ok := link.MACOf(a)
	if !ok {
		a16 := a.As16()
		mac = [6]byte{0: 0x02} // locally administered
		copy(mac[2:], a16[12:])
	}
	return append(b, mac[:]...)
}

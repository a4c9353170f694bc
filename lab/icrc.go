package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The lab checks ICRCs with an implementation of its own, which shares no code with the one in
// internal/wire. It follows the definition: an ICRC is the CRC-32 of Ethernet over the packet, with
// ones in place of all that may change on the way. It computes the CRC bit by bit.

var errNotRoCE = errors.New("not a RoCE v2 packet")

const (
	etherHeader = 14
	etherIPv4   = 0x0800
	etherIPv6   = 0x86dd
	ip4Header   = 20
	ip6Header   = 40
	udpHeader   = 8
	protoUDP    = 17
	roceport    = 4791
	bthLength   = 12
	icrcLength  = 4
)

// roceIP returns the IP packet in an Ethernet frame, and the length of its IP header. If the frame
// is not RoCE v2, the function returns errNotRoCE.
func roceIP(frame []byte) (ip []byte, header int, err error) {
	if len(frame) < etherHeader {
		return nil, 0, errNotRoCE
	}
	ip = frame[etherHeader:]
	var total int
	switch etherType := binary.BigEndian.Uint16(frame[12:]); {
	case etherType == etherIPv4 && len(ip) >= ip4Header && ip[9] == protoUDP:
		header, total = int(ip[0]&0xf)*4, int(binary.BigEndian.Uint16(ip[2:]))
	case etherType == etherIPv6 && len(ip) >= ip6Header && ip[6] == protoUDP:
		header, total = ip6Header, ip6Header+int(binary.BigEndian.Uint16(ip[4:]))
	default:
		return nil, 0, errNotRoCE
	}
	if len(ip) < header+udpHeader || binary.BigEndian.Uint16(ip[header+2:]) != roceport {
		return nil, 0, errNotRoCE
	}
	if total > len(ip) || total < header+udpHeader+bthLength+icrcLength {
		return nil, 0, fmt.Errorf("an IP packet of %d bytes in a frame of %d", total, len(frame))
	}
	return ip[:total], header, nil
}

// checkICRC checks the ICRC in a frame. If the frame is not RoCE v2, checkICRC returns errNotRoCE.
func checkICRC(frame []byte) error {
	ip, header, err := roceIP(frame)
	if err != nil {
		return err
	}
	if header == ip4Header && binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 && ip[0]>>4 == 4 {
		return errors.New("a fragment of an IP packet")
	}
	body := ip[:len(ip)-icrcLength]
	got := binary.LittleEndian.Uint32(ip[len(ip)-icrcLength:])
	want := icrcOf(body, header)
	const flush = 0x1c
	if bth := body[header+udpHeader:]; got != want && bth[0] == flush { // rxe's goes on over the same headers once more
		want = crcBehind(want, bth)
	}
	if got != want {
		return fmt.Errorf("ICRC %08x, want %08x", got, want)
	}
	return nil
}

// icrcOf computes the ICRC of an IP packet. The packet ends where its ICRC would begin.
func icrcOf(packet []byte, header int) uint32 {
	masked := make([]byte, 8, 8+len(packet)) // the first 8 bytes stand in for an LRH
	masked = append(masked, packet...)
	ones := func(at ...int) {
		for _, i := range at {
			masked[i] = 0xff
		}
	}
	ones(0, 1, 2, 3, 4, 5, 6, 7)
	const ip = 8
	if packet[0]>>4 == 4 {
		ones(ip + 1)       // TOS
		ones(ip + 8)       // TTL
		ones(ip+10, ip+11) // header checksum
	} else {
		masked[ip] |= 0x0f // traffic class and flow label
		ones(ip+1, ip+2, ip+3)
		ones(ip + 7) // hop limit
	}
	udp := ip + header
	ones(udp+6, udp+7)           // checksum
	ones(udp + udpHeader + 4)    // FECN, BECN and reserved bits of the BTH
	return ethernetCRC32(masked) // a packet has the CRC with the least significant byte first
}

// ethernetCRC32 computes the CRC-32 of Ethernet by division, bit by bit. Each byte's least
// significant bit comes first.
func ethernetCRC32(b []byte) uint32 { return crcBehind(0, b) }

// crcBehind goes on from the CRC-32 of what is before b.
func crcBehind(crc uint32, b []byte) uint32 {
	const polynomial = 0xedb88320 // x³²+x²⁶+…+1, reflected
	crc = ^crc
	for _, c := range b {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ polynomial&-(crc&1)
		}
	}
	return ^crc
}

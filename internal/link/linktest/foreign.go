package linktest

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// foreignICRC computes the ICRC of a datagram over IPv4 byte by byte, as the standard says.
func foreignICRC(src, dst netip.AddrPort, id uint16, df bool, datagram []byte) uint32 {
	ones := func(n int) (b []byte) {
		for range n {
			b = append(b, 0xff)
		}
		return b
	}
	n := len(datagram)
	b := ones(8)
	b = append(b, 0x45, 0xff)
	b = binary.BigEndian.AppendUint16(b, uint16(20+8+n))
	b = binary.BigEndian.AppendUint16(b, id)
	flags := uint16(0)
	if df {
		flags = 0x4000
	}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = append(b, 0xff, 17, 0xff, 0xff)
	b = append(b, src.Addr().AsSlice()...)
	b = append(b, dst.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+n))
	b = append(b, 0xff, 0xff)
	b = append(b, datagram[:4]...)
	b = append(b, 0xff)
	b = append(b, datagram[5:n-4]...)
	return crc32.ChecksumIEEE(b)
}

// SealForeign writes the ICRC of a datagram over IPv4, as a sender does that has an identification and a DF flag of its own.
func SealForeign(src, dst netip.AddrPort, id uint16, df bool, datagram []byte) {
	binary.LittleEndian.PutUint32(datagram[len(datagram)-4:], foreignICRC(src, dst, id, df, datagram))
}

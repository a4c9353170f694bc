package wire

import (
	"encoding/binary"
	"net/netip"
)

// IPCMHeader precedes the user's private data in a REQ and a SIDR_REQ for a service ID made of a
// port (IBTA §A11). It has the addresses and the source port that a program asks for. The
// destination's port is in the service ID.
type IPCMHeader struct {
	Version uint8      // both halves, major and minor; 0 is the only one there is
	Src     netip.Addr // of the active side; IPv4 addresses are not mapped to IPv6
	Dst     netip.Addr // of the passive side
	SrcPort uint16
}

// IPCMHeaderSize is the length of an IPCMHeader.
const IPCMHeaderSize = 36

// Where the fields of an IP CM header stand. An IPv4 address has the last 4 of an address's 16
// bytes, after zeros.
const (
	ipcmIPVersion = 1 // upper 4 bits
	ipcmSrcPort   = 2
	ipcmSrc       = 4
	ipcmDst       = 20

	ipcmIPVersionShift = 4
	ipcmIPv4Offset     = 12
)

// DecodeIPCMHeader reads an IP CM header from the front of private data. It fails with
// [ErrShortMAD] or, for versions whose fields it does not know, with [ErrIPCMVersion]. It does not
// check the addresses, which may be unspecified or multicast.
func DecodeIPCMHeader(b []byte) (h IPCMHeader, err error) {
	if len(b) < IPCMHeaderSize {
		return h, ErrShortMAD
	}
	h.Version = b[0]
	if h.Version != 0 {
		return h, ErrIPCMVersion
	}
	h.SrcPort = binary.BigEndian.Uint16(b[ipcmSrcPort:])
	switch b[ipcmIPVersion] >> ipcmIPVersionShift {
	case 4:
		h.Src = netip.AddrFrom4([4]byte(b[ipcmSrc+ipcmIPv4Offset:]))
		h.Dst = netip.AddrFrom4([4]byte(b[ipcmDst+ipcmIPv4Offset:]))
	case 6:
		h.Src = netip.AddrFrom16([16]byte(b[ipcmSrc:])).Unmap()
		h.Dst = netip.AddrFrom16([16]byte(b[ipcmDst:])).Unmap()
	default:
		return h, ErrIPCMVersion
	}
	return h, nil
}

// AppendTo appends the header's 36 bytes to b. Addresses mapped from IPv4 count as IPv4. If one
// address is IPv6, both go out as IPv6. Zones are left out. The zero [netip.Addr] goes out as the
// unspecified address.
func (h *IPCMHeader) AppendTo(b []byte) []byte {
	src, dst := h.Src.Unmap(), h.Dst.Unmap()
	b = append(b, h.Version)
	if src.Is6() || dst.Is6() || !src.IsValid() && !dst.IsValid() {
		b = append(b, 6<<ipcmIPVersionShift)
		b = binary.BigEndian.AppendUint16(b, h.SrcPort)
		return appendIPv6(appendIPv6(b, src), dst)
	}
	b = append(b, 4<<ipcmIPVersionShift)
	b = binary.BigEndian.AppendUint16(b, h.SrcPort)
	return appendIPv4(appendIPv4(b, src), dst)
}

func appendIPv6(b []byte, a netip.Addr) []byte {
	var ip [16]byte
	if a.IsValid() {
		ip = a.As16()
	}
	return append(b, ip[:]...)
}

func appendIPv4(b []byte, a netip.Addr) []byte {
	var ip [16]byte
	if a.IsValid() {
		ip4 := a.As4()
		copy(ip[ipcmIPv4Offset:], ip4[:])
	}
	return append(b, ip[:]...)
}

// Port spaces: the uses of service IDs that are made of ports.
const (
	PortSpaceIPoIB = 0x0002
	PortSpaceTCP   = 0x0106 // connections (RC, UC)
	PortSpaceUDP   = 0x0111 // datagrams (UD), resolved by a SIDR_REQ
	PortSpaceIB    = 0x013f
)

// RDMAServiceID returns the service ID of a port in a port space such as [PortSpaceTCP].
func RDMAServiceID(portSpace, port uint16) uint64 { return uint64(portSpace)<<16 | uint64(port) }

// SplitRDMAServiceID returns port space and port of an ID that [RDMAServiceID] has made. For other
// IDs ok is false.
func SplitRDMAServiceID(id uint64) (portSpace, port uint16, ok bool) {
	return uint16(id >> 16), uint16(id), id>>32 == 0
}

package uapi

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Families of addresses, as Linux numbers them.
const (
	AFInet  = 2
	AFInet6 = 10
	AFIB    = 27
)

// The lengths of a sockaddr_in, a sockaddr_in6 and a sockaddr_ib in bytes.
const (
	SockaddrInSize  = 16
	SockaddrIn6Size = 28
	SockaddrIBSize  = 48
)

// SockaddrSize returns the length in bytes of the sockaddr at the beginning of b, by its family. It is 0 for a family that
// rdma_cm does not know, and for a sockaddr that is cut off.
func SockaddrSize(b []byte) (size int) {
	switch native.Uint16(b) {
	case AFInet:
		size = SockaddrInSize
	case AFInet6:
		size = SockaddrIn6Size
	case AFIB:
		size = SockaddrIBSize
	}
	if size > len(b) {
		return 0
	}
	return size
}

// ErrFamily says that a sockaddr is of a family that has no IP address.
var ErrFamily = errors.New("the address is not one of IP")

// PutSockaddr writes an address, whose zone is the interface of number scope, and returns how many bytes that takes.
func PutSockaddr(b []byte, a netip.AddrPort, scope uint32) int {
	addr := a.Addr()
	binary.BigEndian.PutUint16(b[2:], a.Port())
	if addr.Is4() {
		native.PutUint16(b, AFInet)
		copy(b[4:], addr.AsSlice())
		return SockaddrInSize
	}
	native.PutUint16(b, AFInet6)
	copy(b[8:], addr.AsSlice())
	native.PutUint32(b[24:], scope)
	return SockaddrIn6Size
}

// SockaddrIB is sockaddr_ib. Fields that the header calls __be are arrays of bytes.
type SockaddrIB struct {
	Family   uint16
	PKey     [2]byte `c:"sib_pkey"`
	FlowInfo [4]byte `c:"sib_flowinfo"`
	Addr     [16]byte
	SID      [8]byte
	SIDMask  [8]byte
	ScopeID  uint64 `c:"sib_scope_id"`
}

// ServiceMask and PortMask are the parts of a service ID of port spaces that name the port space and the port:
// RDMA_IB_IP_PS_MASK and RDMA_IB_IP_PORT_MASK.
const (
	ServiceMask = 0xffff_ffff_ffff_0000
	PortMask    = 0xffff
)

// PutSockaddrIB writes a GID with a service ID, of which the bits in mask are meant, and returns how many bytes that takes.
func PutSockaddrIB(b []byte, gid [16]byte, service, mask uint64, pkey uint16) int {
	a := SockaddrIB{Family: AFIB, Addr: gid}
	binary.BigEndian.PutUint16(a.PKey[:], pkey)
	binary.BigEndian.PutUint64(a.SID[:], service)
	binary.BigEndian.PutUint64(a.SIDMask[:], mask)
	return copy(b, Append(nil, a))
}

// ReadSockaddrIB reads a sockaddr_ib. ok is false for one of another family, or cut off.
func ReadSockaddrIB(b []byte) (gid [16]byte, service, mask uint64, pkey uint16, ok bool) {
	var a SockaddrIB
	if Decode(b, &a) != nil || a.Family != AFIB {
		return gid, 0, 0, 0, false
	}
	return a.Addr, binary.BigEndian.Uint64(a.SID[:]), binary.BigEndian.Uint64(a.SIDMask[:]), binary.BigEndian.Uint16(a.PKey[:]), true
}

// Sockaddr reads an address, and the number of the interface that its zone stands for. It fails with ErrFamily for a
// sockaddr_ib.
func Sockaddr(b []byte) (a netip.AddrPort, scope uint32, err error) {
	if SockaddrSize(b) == 0 {
		return a, 0, errors.New("the address is of an unknown family, or cut off")
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch native.Uint16(b) {
	case AFInet:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), port), 0, nil
	case AFInet6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:])), port), native.Uint32(b[24:]), nil
	}
	return a, 0, ErrFamily
}

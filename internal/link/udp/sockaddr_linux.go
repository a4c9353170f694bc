//go:build !adverb_portable

package udp

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A sockaddr is a struct sockaddr_in or sockaddr_in6, as the kernel reads and writes it. It is comparable, because
// most datagrams come from the same address as the one before.
type sockaddr [unix.SizeofSockaddrInet6]byte

// Offsets within sockaddr_in and sockaddr_in6. The family comes first, in the byte order of the
// machine. The port follows, in the byte order of the network.
const (
	sockaddrPort  = 2
	sockaddrAddr4 = 4
	sockaddrFlow  = 4 // flow information, in the byte order of the network
	sockaddrAddr6 = 8
	sockaddrScope = 24
)

// put sets sa, and returns its length. Link-local addresses get the scope.
func (sa *sockaddr) put(to netip.AddrPort, scope uint32) uint32 {
	addr := to.Addr()
	*sa = sockaddr{}
	binary.BigEndian.PutUint16(sa[sockaddrPort:], to.Port())
	if addr.Is4() {
		binary.NativeEndian.PutUint16(sa[:], unix.AF_INET)
		a := addr.As4()
		copy(sa[sockaddrAddr4:], a[:])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(sa[:], unix.AF_INET6)
	a := addr.As16()
	copy(sa[sockaddrAddr6:], a[:])
	if addr.IsLinkLocalUnicast() || addr.IsLinkLocalMulticast() {
		binary.NativeEndian.PutUint32(sa[sockaddrScope:], scope)
	}
	return unix.SizeofSockaddrInet6
}

// label gives datagrams to an IPv6 address a flow label.
func (sa *sockaddr) label(l uint32) { binary.BigEndian.PutUint32(sa[sockaddrFlow:], l&flowLabelMask) }

// unlabel takes the flow label back, and reports whether there was one.
func (sa *sockaddr) unlabel() bool {
	if sa.isIPv4() || binary.BigEndian.Uint32(sa[sockaddrFlow:]) == 0 {
		return false
	}
	sa.label(0)
	return true
}

func (sa *sockaddr) isIPv4() bool { return binary.NativeEndian.Uint16(sa[:]) == unix.AF_INET }

// addrPort returns the address without its zone.
func (sa *sockaddr) addrPort() netip.AddrPort {
	port := binary.BigEndian.Uint16(sa[sockaddrPort:])
	if sa.isIPv4() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(sa[sockaddrAddr4:])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(sa[sockaddrAddr6:])), port)
}

// setIOVec makes v the bytes of b.
func setIOVec(v *unix.Iovec, b []byte) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
}

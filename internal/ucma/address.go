package ucma

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/uapi"
)

// Families of addresses, as Linux numbers them, and what a sockaddr of each takes.
const (
	afInet, sizeInet   = 2, 16
	afInet6, sizeInet6 = 10, 28
	afIB, sizeIB       = 27, 48
)

// sockaddrSize returns how long a sockaddr is by its family. It is 0 for a family that rdma_cm does not know, and for a
// sockaddr that does not fit.
func sockaddrSize(b []byte) int {
	size := map[uint16]int{afInet: sizeInet, afInet6: sizeInet6, afIB: sizeIB}[binary.NativeEndian.Uint16(b)]
	if size > len(b) {
		return 0
	}
	return size
}

// address reads a sockaddr.
func address(b []byte) (netip.AddrPort, error) {
	if sockaddrSize(b) == 0 {
		return netip.AddrPort{}, syscall.EINVAL
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case afInet:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), port), nil
	case afInet6:
		addr := netip.AddrFrom16([16]byte(b[8:]))
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 && (addr.IsLinkLocalUnicast() || addr.IsLinkLocalMulticast()) {
			addr = addr.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(addr, port), nil
	}
	return netip.AddrPort{}, syscall.EAFNOSUPPORT
}

// sockaddr is the opposite of address. It is empty for an ID that has no address yet.
func sockaddr(a netip.AddrPort) []byte {
	addr := a.Addr()
	switch {
	case !addr.IsValid():
		return nil
	case addr.Is4():
		b := make([]byte, sizeInet)
		binary.NativeEndian.PutUint16(b, afInet)
		binary.BigEndian.PutUint16(b[2:], a.Port())
		copy(b[4:], addr.AsSlice())
		return b
	}
	b := make([]byte, sizeInet6)
	binary.NativeEndian.PutUint16(b, afInet6)
	binary.BigEndian.PutUint16(b[2:], a.Port())
	copy(b[8:], addr.AsSlice())
	binary.NativeEndian.PutUint32(b[24:], scopeOf(addr.Zone()))
	return b
}

// scopeOf returns the number of the interface that a zone names.
func scopeOf(zone string) uint32 {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	if ifi, err := net.InterfaceByName(zone); err == nil {
		return uint32(ifi.Index)
	}
	return 0
}

func withPort(a netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), port)
}

func (f *File) bindIP(k *call) error {
	var in uapi.CMBindIPArg
	if err := k.in(&in); err != nil {
		return err
	}
	addr, err := address(in.Addr[:])
	if err != nil {
		return err
	}
	return f.bind(in.ID, addr)
}

func (f *File) bindAddr(k *call) error {
	var in uapi.CMBindArg
	if err := k.in(&in); err != nil {
		return err
	}
	addr, err := address(in.Addr[:])
	switch {
	case in.Reserved != 0 || in.AddrSize == 0 || int(in.AddrSize) != sockaddrSize(in.Addr[:]):
		return syscall.EINVAL
	case err != nil:
		return err
	}
	return f.bind(in.ID, addr)
}

func (f *File) bind(number uint32, addr netip.AddrPort) error {
	c, err := f.get(number)
	if err != nil {
		return err
	}
	if err := c.v.BindAddr(addr); err != nil {
		return err
	}
	f.m.pin(c.v)
	return nil
}

func (f *File) resolveIP(k *call) error {
	var in uapi.CMResolveIPArg
	if err := k.in(&in); err != nil {
		return err
	}
	return f.resolve(in.ID, in.SrcAddr[:], in.DstAddr[:])
}

func (f *File) resolveAddr(k *call) error {
	var in uapi.CMResolveAddrArg
	if err := k.in(&in); err != nil {
		return err
	}
	if in.Reserved != 0 || in.SrcSize != 0 && int(in.SrcSize) != sockaddrSize(in.SrcAddr[:]) || in.DstSize == 0 || int(in.DstSize) != sockaddrSize(in.DstAddr[:]) {
		return syscall.EINVAL
	}
	return f.resolve(in.ID, in.SrcAddr[:], in.DstAddr[:])
}

// resolve finds the way to a peer. An empty from leaves the choice of this end's address to the routes. Linux ignores
// it for an ID that has an address.
func (f *File) resolve(number uint32, from, to []byte) error {
	var src netip.AddrPort
	dst, err := address(to)
	if err != nil {
		return err
	}
	if binary.NativeEndian.Uint16(from) != 0 {
		if src, err = address(from); err != nil {
			return err
		}
	}
	c, err := f.get(number)
	if err != nil {
		return err
	}
	if at := c.v.LocalAddr(); at.IsValid() {
		if at.Addr().Is4() != dst.Addr().Unmap().Is4() {
			return syscall.EINVAL
		}
		src = netip.AddrPort{}
	}
	if f.full() {
		return syscall.ENOMEM
	}
	if err := c.v.ResolveAddr(src, dst); err != nil {
		return err
	}
	f.m.pin(c.v)
	return nil
}

// resolveRoute finds the path, which takes no time on RoCE.
func (f *File) resolveRoute(k *call) error {
	var in uapi.CMResolveRouteArg
	if err := k.in(&in); err != nil {
		return err
	}
	c, err := f.withDevice(in.ID)
	if err != nil {
		return err
	}
	return f.route(c)
}

func (f *File) route(c *cmID) error {
	err := c.v.ResolveRoute()
	if err == nil {
		c.set(f.m, func() { c.phase.routed = true })
	}
	return err
}

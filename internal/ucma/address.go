package ucma

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// address reads a sockaddr.
func address(b []byte) (netip.AddrPort, error) {
	a, scope, err := uapi.Sockaddr(b)
	switch {
	case errors.Is(err, uapi.ErrFamily):
		return netip.AddrPort{}, syscall.EAFNOSUPPORT
	case err != nil:
		return netip.AddrPort{}, syscall.EINVAL
	}
	if addr := a.Addr(); scope != 0 && (addr.IsLinkLocalUnicast() || addr.IsLinkLocalMulticast()) {
		a = netip.AddrPortFrom(addr.WithZone(strconv.FormatUint(uint64(scope), 10)), a.Port())
	}
	return a, nil
}

// sockaddr is the opposite of address. It is empty for an ID that has no address yet.
func sockaddr(a netip.AddrPort) []byte {
	if !a.IsValid() {
		return nil
	}
	b := make([]byte, uapi.SockaddrIn6Size)
	return b[:uapi.PutSockaddr(b, a, scopeOf(a.Addr().Zone()))]
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

// ibAddress reads a sockaddr_ib for an ID of a port space. ok is false for another family. As Linux has it, the service ID
// must be one of the port space, as far as the mask has it count.
func ibAddress(b []byte, ps rdmacm.PortSpace) (a rdmacm.IBAddr, ok bool, err error) {
	gid, service, mask, pkey, ok := uapi.ReadSockaddrIB(b)
	if !ok {
		return a, false, nil
	}
	mask &= uapi.ServiceMask
	whose := ps
	if service&mask != whose.Service(0)&mask && ps == rdmacm.PortSpaceIB {
		whose = rdmacm.PortSpaceTCP // whose services such an ID may have, too
	}
	if service&mask != whose.Service(0)&mask {
		return a, true, syscall.EPROTONOSUPPORT
	}
	return rdmacm.IBAddr{GID: gid, Service: whose.Service(uint16(service)), PKey: verbs.PKey(pkey)}, true, nil
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
	if in.Reserved != 0 || in.AddrSize == 0 || int(in.AddrSize) != uapi.SockaddrSize(in.Addr[:]) {
		return syscall.EINVAL
	}
	addr, err := address(in.Addr[:])
	switch {
	case err == syscall.EAFNOSUPPORT:
		return f.bindIB(in.ID, in.Addr[:])
	case err != nil:
		return err
	}
	return f.bind(in.ID, addr)
}

// bindIB is bind for a sockaddr_ib.
func (f *File) bindIB(number uint32, to []byte) error {
	c, err := f.get(number)
	if err != nil {
		return err
	}
	addr, _, err := ibAddress(to, c.ps)
	if err != nil {
		return err
	}
	if err := c.v.BindIB(addr); err != nil {
		return err
	}
	c.set(f.m, func() { c.ib = true })
	f.m.pin(c.v)
	return nil
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
	if in.Reserved != 0 || in.SrcSize != 0 && int(in.SrcSize) != uapi.SockaddrSize(in.SrcAddr[:]) || in.DstSize == 0 || int(in.DstSize) != uapi.SockaddrSize(in.DstAddr[:]) {
		return syscall.EINVAL
	}
	return f.resolve(in.ID, in.SrcAddr[:], in.DstAddr[:])
}

// resolve finds the way to a peer. An empty from leaves the choice of this end's address to the routes. Linux ignores
// it for an ID that has an address.
func (f *File) resolve(number uint32, from, to []byte) error {
	var src netip.AddrPort
	dst, err := address(to)
	if err == syscall.EAFNOSUPPORT {
		return f.resolveIB(number, from, to)
	}
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

// resolveIB is resolve for sockaddr_ib.
func (f *File) resolveIB(number uint32, from, to []byte) error {
	c, err := f.get(number)
	if err != nil {
		return err
	}
	dst, _, err := ibAddress(to, c.ps)
	if err != nil {
		return err
	}
	var src rdmacm.IBAddr
	if !c.v.LocalAddr().IsValid() && binary.NativeEndian.Uint16(from) != 0 {
		var ok bool
		if src, ok, err = ibAddress(from, c.ps); err != nil || !ok {
			return cmp.Or(err, error(syscall.EINVAL))
		}
	}
	if f.full() {
		return syscall.ENOMEM
	}
	if err := c.v.ResolveIB(src, dst); err != nil {
		return err
	}
	c.set(f.m, func() { c.ib = true })
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

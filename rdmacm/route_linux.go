package rdmacm

import (
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// localAddr returns the address from which the system would send to dst. Nothing is sent. It refuses broadcast
// addresses of networks with EACCES, unless broadcast is set. Package net would do as well, but has the runtime
// wait for the socket, and sets options: a connection's setup would take a tenth longer.
func localAddr(dst netip.Addr, broadcast bool) (netip.Addr, error) {
	var to unix.Sockaddr
	family := unix.AF_INET6
	if dst = dst.Unmap(); dst.Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: routeProbePort, Addr: dst.As4()}
	} else {
		scope, err := scopeOf(dst.Zone())
		if err != nil {
			return netip.Addr{}, err
		}
		to = &unix.SockaddrInet6{Port: routeProbePort, Addr: dst.As16(), ZoneId: scope}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if broadcast {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1); err != nil {
			return netip.Addr{}, os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Connect(fd, to); err != nil {
		return netip.Addr{}, os.NewSyscallError("connect", err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, os.NewSyscallError("getsockname", err)
	}
	switch own := own.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(own.Addr), nil
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(own.Addr), nil
	}
	return netip.Addr{}, os.NewSyscallError("getsockname", unix.EAFNOSUPPORT)
}

// scopeOf returns the number of the interface that a zone names, or is.
func scopeOf(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, err
	}
	return uint32(ifi.Index), nil
}

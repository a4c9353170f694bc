//go:build !linux

package rdmacm

import (
	"net"
	"net/netip"
)

// localAddr returns the address from which the system would send to dst. Nothing is sent. Where it can, it refuses
// broadcast addresses of networks with EACCES, unless broadcast is set.
func localAddr(dst netip.Addr, broadcast bool) (netip.Addr, error) {
	d := net.Dialer{Control: noBroadcast}
	if broadcast {
		d.Control = nil
	}
	c, err := d.Dial("udp", netip.AddrPortFrom(dst, routeProbePort).String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone(""), nil
}

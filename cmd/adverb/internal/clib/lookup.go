package clib

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// Lookup returns the addresses of a host, which is a name or an address, as getaddrinfo finds them. The zone of an address
// stays: package net's LookupNetIP loses it.
func Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs, err
}

// CheckZone returns an error for an address that a socket cannot be bound or connected to, since it lacks the zone that
// says on which network it is. The system calls it an invalid argument.
func CheckZone(a netip.Addr) error {
	if a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
		return fmt.Errorf("%v may be an address on several networks: name the interface, as in %v%%eth0", a, a)
	}
	return nil
}

// DialTCP connects to the first of a host's addresses at which somebody listens, from source, unless that is the zero
// Addr. lookup is the error of the lookup, or nil.
func DialTCP(ctx context.Context, host string, port int, source netip.Addr) (conn net.Conn, lookup, err error) {
	addrs, err := Lookup(ctx, host)
	if err != nil {
		return nil, err, err
	}
	var d net.Dialer
	if source.IsValid() {
		if err := CheckZone(source); err != nil {
			return nil, nil, err
		}
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	conn, err = dialFirst(ctx, &d, addrs, port)
	return conn, nil, err
}

// dialFirst connects to the first of the addresses at which somebody listens.
func dialFirst(ctx context.Context, d *net.Dialer, addrs []netip.Addr, port int) (conn net.Conn, err error) {
	for _, a := range addrs {
		if err = CheckZone(a); err != nil {
			continue
		}
		if conn, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(a, uint16(port)).String()); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

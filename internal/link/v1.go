package link

import "net/netip"

// RoCEv1 is a network of its own beside IP: a GRH in the place of the IP header, behind the Ethernet header, and no
// UDP. Its addresses are GIDs. Here a RoCEv1 address is that of the GID, in 16 bytes, with the zone ZoneV1, so that
// the same GID of RoCEv1 and of RoCEv2 are two addresses. RoCEv1 has no ports: PortV1 stands in their place.
const (
	ZoneV1 = "rocev1"
	PortV1 = 0

	// EtherTypeV1 is the type of Ethernet frames of RoCEv1.
	EtherTypeV1 = 0x8915

	// GRHSize is the length in bytes of a GRH.
	GRHSize = 40
)

// V1 returns the RoCEv1 address of the GID that an address stands for.
func V1(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()).WithZone(ZoneV1) }

// IsV1 reports whether an address is one of RoCEv1.
func IsV1(a netip.Addr) bool { return a.Is6() && a.Zone() == ZoneV1 }

// GIDAddr returns the IP address that the GID of an address stands for, of RoCEv1 or RoCEv2.
func GIDAddr(a netip.Addr) netip.Addr { return a.WithZone("").Unmap() }

// PortOf returns the port at which a link has an address: Port, or PortV1.
func PortOf(a netip.Addr) uint16 {
	if IsV1(a) {
		return PortV1
	}
	return Port
}

// Like returns a, in the form of RoCEv1 if local is one of its addresses.
func Like(local, a netip.Addr) netip.Addr {
	if IsV1(local) {
		return V1(a)
	}
	return a
}

// LinkLocalV1 returns the GID that each port has without an IP address: fe80::/64 and the EUI-64 of the port's MAC
// address. ok is false if there is no such address.
func LinkLocalV1(mac []byte) (a netip.Addr, ok bool) {
	if len(mac) != 6 || [6]byte(mac) == [6]byte{} {
		return a, false
	}
	return V1(netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})), true
}

// GroupV1 returns the address by which the connection manager names an IP multicast group on RoCEv1, which is another GID
// than that of RoCEv2 for a group of IPv4: Linux's has ff0e::ffff:a.b.c.d, with the MAC address of a group of IPv6.
func GroupV1(group netip.Addr) netip.Addr {
	if !group.Is4() {
		return group
	}
	ip := group.As4()
	return netip.AddrFrom16([16]byte{0xff, 0x0e, 10: 0xff, 0xff, ip[0], ip[1], ip[2], ip[3]})
}

// IsGroupV1 reports whether an address is one that GroupV1 makes for a group of IPv4.
func IsGroupV1(a netip.Addr) bool {
	b := a.As16()
	ip := netip.AddrFrom4([4]byte(b[12:]))
	return ip.IsMulticast() && GroupV1(ip) == a
}

// MACOf returns the MAC address that a RoCEv1 address tells by itself: of a link-local GID the one in its EUI-64, and of
// a group the one that its IP address has on Ethernet. Of other addresses the neighbors tell, and ok is false.
func MACOf(a netip.Addr) (mac [6]byte, ok bool) {
	b := a.As16()
	switch ip := GIDAddr(a); {
	case ip.Is4() && ip.IsMulticast():
		return [6]byte{0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}, true
	case ip.IsMulticast():
		return [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]}, true
	case ip.Is6() && ip.IsLinkLocalUnicast() && b[11] == 0xff && b[12] == 0xfe: // an EUI-64
		return [6]byte{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}, true
	}
	return mac, false
}

// Fields of the GRH that all packets of RoCEv1 have alike.
const (
	grhNextHeader = 0x1b // a BTH follows
	grhHopLimit   = 64   // the sender's choice: no router forwards the packet, and the ICRC does not cover it
)

// AppendGRH appends the GRH of a datagram of n bytes, from the BTH to the ICRC.
func AppendGRH(b []byte, d *Datagram, n int) []byte {
	src, dst := d.Src.Addr().As16(), d.Dst.Addr().As16()
	b = append(b, 6<<4|d.TrafficClass>>4, d.TrafficClass<<4|uint8(d.FlowLabel>>16&0xf), uint8(d.FlowLabel>>8), uint8(d.FlowLabel),
		uint8(n>>8), uint8(n), grhNextHeader, grhHopLimit)
	return append(append(b, src[:]...), dst[:]...)
}

// CutGRH returns the datagram behind the GRH at the start of a packet, without what Ethernet fills short frames up with,
// and reads the GRH into d. ok is false if the packet is none of RoCEv1.
func CutGRH(packet []byte, d *Datagram) (datagram []byte, ok bool) {
	if !DecodeGRH(packet, d) {
		return nil, false
	}
	end := GRHSize + int(packet[4])<<8 + int(packet[5])
	if end > len(packet) {
		return nil, false
	}
	return packet[GRHSize:end:end], true
}

// DecodeGRH reads the GRH at the start of b into d: addresses, traffic class and flow label. ok is false if there is none
// of RoCEv1.
func DecodeGRH(b []byte, d *Datagram) (ok bool) {
	if len(b) < GRHSize || b[0]>>4 != 6 || b[6] != grhNextHeader {
		return false
	}
	d.Src = netip.AddrPortFrom(V1(netip.AddrFrom16([16]byte(b[8:]))), PortV1)
	d.Dst = netip.AddrPortFrom(V1(netip.AddrFrom16([16]byte(b[24:]))), PortV1)
	d.TrafficClass = b[0]<<4 | b[1]>>4
	d.FlowLabel = uint32(b[1]&0xf)<<16 | uint32(b[2])<<8 | uint32(b[3])
	return true
}

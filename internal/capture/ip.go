package capture

import (
	"encoding/binary"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Numbers of protocols, and UDP ports of tunnels.
const (
	protocolHopByHop    = 0
	protocolICMP        = 1
	protocolIPv4        = 4
	protocolTCP         = 6
	protocolUDP         = 17
	protocolIPv6        = 41
	protocolRouting     = 43
	protocolFragment    = 44
	protocolGRE         = 47
	protocolICMPv6      = 58
	protocolDestination = 60

	portVXLAN    = 4789
	portOldVXLAN = 8472 // Linux before there was a number
	portGeneve   = 6081

	ipv4Size   = 20
	ipv6Size   = 40
	udpSize    = 8
	vxlanSize  = 8
	geneveSize = 8
	greSize    = 4

	ipv4DontFragment = 0x4000
	ipv4MoreFollow   = 0x2000
	ipv4OffsetMask   = 0x1fff

	maxExtensions = 8 // headers of IPv6 behind one another
)

func (d *Decoder) ip(b []byte, length, depth int) Kind {
	if len(b) == 0 {
		return KindCut
	}
	if depth > maxTunnels {
		return KindOther
	}
	switch b[0] >> 4 {
	case 4:
		return d.ipv4(b, length, depth)
	case 6:
		return d.ipv6(b, length, depth)
	}
	return KindOther
}

func (d *Decoder) ipv4(b []byte, length, depth int) Kind {
	n := int(b[0]&0xf) * 4
	if n < ipv4Size {
		return KindOther
	}
	if len(b) < n {
		return KindCut
	}
	p := &d.p
	p.TrafficClass, p.HopLimit, p.FlowLabel = b[1], b[8], 0
	p.ID = binary.BigEndian.Uint16(b[4:])
	flags := binary.BigEndian.Uint16(b[6:])
	p.DontFragment = flags&ipv4DontFragment != 0
	if flags&(ipv4MoreFollow|ipv4OffsetMask) != 0 {
		p.Src, p.Dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:])), 0), netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:])), 0)
		return KindFragment
	}
	if total := int(binary.BigEndian.Uint16(b[2:])); total >= n && total < length {
		length = total // the rest is padding of Ethernet; 0 is of a sender that leaves segmentation to its card
	}
	src, dst := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	return d.upper(b[9], src, dst, b, n, length, depth)
}

// ipv6Header reads the fields of an IPv6 header, which a GRH has too.
func (d *Decoder) ipv6Header(b []byte) {
	p := &d.p
	first := binary.BigEndian.Uint32(b)
	p.TrafficClass, p.FlowLabel, p.HopLimit = uint8(first>>20), first&0xfffff, b[7]
	p.ID, p.DontFragment = 0, false
	p.Src = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:])).Unmap(), 0)
	p.Dst = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[24:])).Unmap(), 0)
}

func (d *Decoder) ipv6(b []byte, length, depth int) Kind {
	if len(b) < ipv6Size {
		return KindCut
	}
	d.ipv6Header(b)
	src, dst := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	if n := int(binary.BigEndian.Uint16(b[4:])); n > 0 && ipv6Size+n < length {
		length = ipv6Size + n
	}
	next, at := b[6], ipv6Size
	for range maxExtensions {
		switch next {
		case protocolHopByHop, protocolRouting, protocolDestination:
			if len(b) < at+8 {
				return KindCut
			}
			n := 8 * (int(b[at+1]) + 1)
			if len(b) < at+n {
				return KindCut
			}
			next, at = b[at], at+n
			continue
		case protocolFragment:
			d.p.Src, d.p.Dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
			return KindFragment
		}
		break
	}
	return d.upper(next, src, dst, b, at, length, depth)
}

// upper decodes the payload of an IP packet. Its headers take the first n of length bytes of b.
func (d *Decoder) upper(protocol uint8, src, dst netip.Addr, b []byte, n, length, depth int) Kind {
	rest, left := b[n:], length-n
	switch protocol {
	case protocolTCP:
		return d.tcp(src, dst, rest, left)
	case protocolICMP, protocolICMPv6:
		d.p.ICMP.From = src
		d.icmp(rest)
		return KindICMP
	case protocolIPv4, protocolIPv6:
		d.p.Tunnel = IPinIP
		return d.ip(rest, left, depth+1)
	case protocolGRE:
		return d.gre(rest, left, depth)
	case protocolUDP:
		if len(rest) < udpSize {
			return KindCut
		}
		srcPort, dstPort := binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
		if u := int(binary.BigEndian.Uint16(rest[4:])); u >= udpSize && u < left {
			left = u
		}
		body, left := rest[udpSize:], left-udpSize
		switch dstPort {
		case wire.UDPPort:
			d.p.Src, d.p.Dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
			d.p.ip = b[:n+udpSize]
			return d.transport(RoCEv2, body, left)
		case portVXLAN, portOldVXLAN:
			if len(body) < vxlanSize {
				return KindCut
			}
			d.p.Tunnel = VXLAN
			return d.inner(body[vxlanSize:], left-vxlanSize, depth)
		case portGeneve:
			return d.geneve(body, left, depth)
		}
		return KindUDP
	}
	return KindOther
}

// tcp decodes the header of a TCP segment. Src and Dst are not valid if the header is broken.
func (d *Decoder) tcp(src, dst netip.Addr, b []byte, length int) Kind {
	const tcpSize = 20
	if len(b) < tcpSize {
		return KindCut
	}
	at, be := 4*int(b[12]>>4), binary.BigEndian
	if at < tcpSize || at > length {
		return KindTCP
	}
	d.p.Src, d.p.Dst = netip.AddrPortFrom(src, be.Uint16(b)), netip.AddrPortFrom(dst, be.Uint16(b[2:]))
	d.p.TCP = TCP{Seq: be.Uint32(b[4:]), Ack: be.Uint32(b[8:]), Flags: b[13], Window: be.Uint16(b[14:]), Length: length - at}
	if at <= len(b) {
		d.p.Stream = b[at:min(len(b), length)]
	}
	return KindTCP
}

// icmp decodes an error message, which quotes a packet.
func (d *Decoder) icmp(b []byte) {
	const quote = 8
	if len(b) < quote {
		return
	}
	i := &d.p.ICMP
	i.Type, i.Code = b[0], b[1]
	switch {
	case i.From.Is4() && i.Type == 3 && i.Code == 4: // fragmentation needed
		i.TooLong, i.MTU = true, int(binary.BigEndian.Uint16(b[6:]))
	case i.From.Is6() && i.Type == 2: // packet too big
		i.TooLong, i.MTU = true, int(binary.BigEndian.Uint32(b[4:]))
	}
	b = b[quote:]
	protocol, n := uint8(0), 0
	switch {
	case len(b) >= ipv4Size && b[0]>>4 == 4:
		protocol, n = b[9], 4*int(b[0]&0xf)
		i.Src, i.Dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	case len(b) >= ipv6Size && b[0]>>4 == 6:
		protocol, n = b[6], ipv6Size
		i.Src, i.Dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	}
	if protocol == protocolUDP && n >= ipv4Size && len(b) >= n+4 {
		i.Port = binary.BigEndian.Uint16(b[n+2:])
	}
}

// inner decodes an Ethernet frame in a tunnel.
func (d *Decoder) inner(b []byte, length, depth int) Kind {
	if depth >= maxTunnels {
		return KindOther
	}
	d.p.Tagged, d.p.VLAN = false, 0
	return d.ethernet(b, length, depth+1)
}

func (d *Decoder) geneve(b []byte, length, depth int) Kind {
	if len(b) < geneveSize {
		return KindCut
	}
	n := geneveSize + 4*int(b[0]&0x3f)
	if len(b) < n {
		return KindCut
	}
	d.p.Tunnel = Geneve
	t := binary.BigEndian.Uint16(b[2:])
	if t == typeBridged {
		return d.inner(b[n:], length-n, depth)
	}
	return d.network(t, b[n:], length-n, depth+1)
}

// Flags of GRE: a word of four bytes for each of the first three, and the version.
const (
	greChecksum = 0x8000
	greKey      = 0x2000
	greSequence = 0x1000
	greVersion  = 0x0007

	erspan2Size     = 8
	erspan3Size     = 12
	erspan3Platform = 8 // bytes more, if the last bit of the header says so
)

func (d *Decoder) gre(b []byte, length, depth int) Kind {
	if len(b) < greSize {
		return KindCut
	}
	flags, t := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	n := greSize
	for _, f := range []uint16{greChecksum, greKey, greSequence} {
		if flags&f != 0 {
			n += 4
		}
	}
	if flags&greVersion != 0 {
		return KindOther
	}
	d.p.Tunnel = GRE
	switch t {
	case typeERSPAN2:
		d.p.Tunnel = ERSPAN
		if flags&greSequence != 0 { // without a number it is type I, which has no header
			n += erspan2Size
		}
	case typeERSPAN3:
		d.p.Tunnel = ERSPAN
		if len(b) < n+erspan3Size {
			return KindCut
		}
		if b[n+erspan3Size-1]&1 != 0 {
			n += erspan3Platform
		}
		n += erspan3Size
	}
	if len(b) < n {
		return KindCut
	}
	switch t {
	case typeERSPAN2, typeERSPAN3, typeBridged:
		return d.inner(b[n:], length-n, depth)
	}
	if depth >= maxTunnels {
		return KindOther
	}
	return d.network(t, b[n:], length-n, depth+1)
}

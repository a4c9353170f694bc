package capture

import (
	"encoding/binary"
	"net/netip"
)

// Types of Ethernet frames.
const (
	typeIPv4    = 0x0800
	typeARP     = 0x0806
	typeVLAN    = 0x8100
	typeQinQ    = 0x88a8
	typeOldQinQ = 0x9100
	typeIPv6    = 0x86dd
	typePause   = 0x8808
	typeMPLS    = 0x8847
	typeRoCEv1  = 0x8915
	typeBridged = 0x6558 // Ethernet in GRE and Geneve
	typeERSPAN2 = 0x88be
	typeERSPAN3 = 0x22eb
)

// Sizes of headers.
const (
	ethernetSize = 14
	vlanSize     = 4
	mplsSize     = 4
	sllSize      = 16
	sll2Size     = 20
	loopSize     = 4
	grhSize      = 40
	lrhSize      = 8

	maxTags    = 8 // VLAN tags of a frame
	maxTunnels = 8 // tunnels in one another
)

// link decodes a frame by its link type. b has the captured bytes of length bytes, here and below.
func (d *Decoder) link(t LinkType, b []byte, length int) Kind {
	switch t {
	case LinkEthernet:
		return d.ethernet(b, length, 0)
	case LinkRaw, LinkRawOld, LinkRawOpenBSD, LinkIPv4, LinkIPv6:
		return d.ip(b, length, 0)
	case LinkNull, LinkLoop:
		if len(b) < loopSize {
			return KindCut
		}
		return d.ip(b[loopSize:], length-loopSize, 0) // the version in the IP header tells the family too
	case LinkSLL:
		if len(b) < sllSize {
			return KindCut
		}
		d.cooked(binary.BigEndian.Uint16(b))
		return d.network(binary.BigEndian.Uint16(b[14:]), b[sllSize:], length-sllSize, 0)
	case LinkSLL2:
		if len(b) < sll2Size {
			return KindCut
		}
		d.p.Frame.Interface = int(binary.BigEndian.Uint32(b[4:]))
		d.cooked(uint16(b[10]))
		return d.network(binary.BigEndian.Uint16(b), b[sll2Size:], length-sll2Size, 0)
	case LinkERF:
		return d.erf(b, length)
	case LinkInfiniBand:
		return d.infiniBand(b, length)
	}
	return KindOther
}

// cooked takes the packet type of a cooked capture.
func (d *Decoder) cooked(t uint16) {
	const outgoing = 4
	d.p.Frame.Direction = Inbound
	if t == outgoing {
		d.p.Frame.Direction = Outbound
	}
}

func (d *Decoder) ethernet(b []byte, length, depth int) Kind {
	if len(b) < ethernetSize {
		return KindCut
	}
	d.p.DstMAC, d.p.SrcMAC = [6]byte(b), [6]byte(b[6:])
	return d.network(binary.BigEndian.Uint16(b[12:]), b[ethernetSize:], length-ethernetSize, depth)
}

// network decodes the bytes behind an Ethernet type.
func (d *Decoder) network(t uint16, b []byte, length, depth int) Kind {
	for range maxTags {
		if t != typeVLAN && t != typeQinQ && t != typeOldQinQ {
			break
		}
		if len(b) < vlanSize {
			return KindCut
		}
		d.p.VLAN, d.p.Tagged = binary.BigEndian.Uint16(b), true
		t, b, length = binary.BigEndian.Uint16(b[2:]), b[vlanSize:], length-vlanSize
	}
	switch t {
	case typeIPv4, typeIPv6:
		return d.ip(b, length, depth)
	case typeRoCEv1:
		return d.grh(RoCEv1, nil, b, length)
	case typeARP:
		return KindARP
	case typePause:
		return d.pause(b)
	case typeMPLS:
		for bottom := false; !bottom; b, length = b[mplsSize:], length-mplsSize {
			if len(b) < mplsSize {
				return KindCut
			}
			bottom = b[2]&1 != 0
		}
		return d.ip(b, length, depth+1)
	}
	return KindOther
}

// pause decodes a frame of Ethernet's flow control.
func (d *Decoder) pause(b []byte) Kind {
	const opcode, opcodePriority = 0x0001, 0x0101
	be, p := binary.BigEndian, &d.p.Pause
	switch {
	case len(b) >= 4 && be.Uint16(b) == opcode:
		p.Classes = 0xff
		for i := range p.Quanta {
			p.Quanta[i] = be.Uint16(b[2:])
		}
	case len(b) >= 4+2*len(p.Quanta) && be.Uint16(b) == opcodePriority:
		p.Classes = b[3]
		for i := range p.Quanta {
			p.Quanta[i] = be.Uint16(b[4+2*i:])
		}
	}
	return KindPause
}

// grh decodes a GRH and the packet behind it. before is the LRH in front of it, if any.
func (d *Decoder) grh(version Version, before, b []byte, length int) Kind {
	if len(b) < grhSize {
		return KindCut
	}
	d.ipv6Header(b)
	d.p.ip = b[:grhSize]
	if before != nil {
		d.p.ip = before[:len(before)+grhSize]
	}
	n := int(binary.BigEndian.Uint16(b[4:])) // from the BTH to the ICRC
	if n == 0 || n > length-grhSize {
		n = length - grhSize
	}
	return d.transport(version, b[grhSize:], n)
}

// The headers that follow an LRH, by its field LNH, and its length.
const (
	lnhMask   = 0x3
	lnhLocal  = 2
	lnhGlobal = 3

	lrhLengthMask = 0x7ff // in units of 4 bytes, from the LRH to the ICRC
)

func (d *Decoder) infiniBand(b []byte, length int) Kind {
	if len(b) < lrhSize {
		return KindCut
	}
	d.p.DLID, d.p.SLID = binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint16(b[6:])
	if n := 4 * int(binary.BigEndian.Uint16(b[4:])&lrhLengthMask); n >= lrhSize && n < length {
		length = n // without the VCRC
	}
	lrh, rest := b[:lrhSize], b[lrhSize:]
	switch b[1] & lnhMask {
	case lnhLocal:
		d.p.ip = lrh
		d.p.Src, d.p.Dst = netip.AddrPortFrom(LIDAddr(d.p.SLID), 0), netip.AddrPortFrom(LIDAddr(d.p.DLID), 0)
		return d.transport(InfiniBand, rest, length-lrhSize)
	case lnhGlobal:
		return d.grh(InfiniBand, b[:lrhSize:len(b)], rest, length-lrhSize)
	}
	return KindOther
}

// Types of ERF records.
const (
	erfTypeMask   = 0x7f
	erfExtended   = 0x80 // headers of 8 bytes follow, each with this bit if another one follows
	erfEthernet   = 2
	erfColorEth   = 11
	erfDSMEth     = 16
	erfDSMColor   = 20
	erfInfiniBand = 21
	erfIPv4       = 22
	erfIPv6       = 23

	erfSize       = 16
	erfExtension  = 8
	erfEthernetAt = 2 // bytes before the Ethernet header
)

func (d *Decoder) erf(b []byte, length int) Kind {
	if len(b) < erfSize {
		return KindCut
	}
	t, more := b[8]&erfTypeMask, b[8]&erfExtended != 0
	wire := int(binary.BigEndian.Uint16(b[14:])) // the frame's length on the wire
	b, length = b[erfSize:], length-erfSize
	for more {
		if len(b) < erfExtension {
			return KindCut
		}
		more = b[0]&erfExtended != 0
		b, length = b[erfExtension:], length-erfExtension
	}
	length = max(length, 0)
	switch t {
	case erfEthernet, erfColorEth, erfDSMEth, erfDSMColor:
		if len(b) < erfEthernetAt {
			return KindCut
		}
		return d.ethernet(b[erfEthernetAt:], max(length-erfEthernetAt, wire), 0)
	case erfInfiniBand:
		// The sniffer of a RoCE card's device has Ethernet frames in such records.
		if len(b) >= ethernetSize {
			switch binary.BigEndian.Uint16(b[12:]) {
			case typeIPv4, typeIPv6, typeRoCEv1, typeVLAN, typeQinQ:
				return d.ethernet(b, max(length, wire), 0)
			}
		}
		return d.infiniBand(b, max(length, wire))
	case erfIPv4, erfIPv6:
		return d.ip(b, max(length, wire), 0)
	}
	return KindOther
}

package hca

import (
	"encoding/binary"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/verbs"
)

// ah is an address handle: where a datagram goes.
type ah struct {
	path
	dev *Device
}

// CreateAH implements verbs.ProviderPD.
func (p *pd) CreateAH(attr verbs.AHAttr) (verbs.ProviderAH, error) {
	if !limits.Take(&p.dev.ahs, maxAH) {
		return nil, verbs.Errorf(verbs.ErrLimit, "the device has its %d AHs (max_ah)", maxAH)
	}
	to, err := p.dev.resolve(p.dev.shards[0], &attr, true)
	if err != nil {
		p.dev.ahs.Add(-1)
		return nil, err
	}
	if !p.gsi.Load() { // MADs are repeated, and strangers choose whom QP1 answers: QP1 must not wait for strangers
		p.dev.meet(to)
	}
	return &ah{to, p.dev}, nil
}

func (a *ah) Close() error {
	a.dev.ahs.Add(-1)
	return nil
}

// listen makes a UD QP reachable on all addresses of the device.
func (q *qp) listen() error {
	var first error
	n := 0
	for i := range gidTableLen {
		addr, err := q.dev.port.addr(i)
		if err != nil {
			continue
		}
		if _, err = q.dev.engine(q.shard, addr); err == nil {
			n++
		} else if first == nil {
			first = err
		}
	}
	if n == 0 && first == nil {
		first = verbs.Errorf(verbs.ErrNotFound, "the port's GID table is empty: the network interface has no address")
	}
	if n > 0 {
		return nil
	}
	return first
}

// Lengths and fields of the IP headers in a GRH.
const (
	ipv4Size     = 20
	ipv6Size     = 40
	udpSize      = 8
	protocolUDP  = 17
	grhHopLimit  = 64 // of the sender's choice; a UDP socket does not tell
	ipv4DontFrag = 0x40
)

// putGRH writes the 40 bytes before the payload in the buffer of a UD receive: the packet's GRH, its IPv6
// header or, in the last 20 bytes, its IPv4 header (IBTA §A17.4.5.2). A UDP socket does not tell the
// identification and the hop limit, so these fields are made up.
func putGRH(b *[verbs.GRHSize]byte, d *link.Datagram, payload int) {
	clear(b[:])
	src, dst := d.Src.Addr(), d.Dst.Addr()
	if d.Src.Port()|d.Dst.Port() == link.PortV1 {
		link.AppendGRH(b[:0], d, payload)
		return
	}
	if !src.Is4() {
		b[0] = 6<<4 | d.TrafficClass>>4
		b[1] = d.TrafficClass<<4 | uint8(d.FlowLabel>>16)
		binary.BigEndian.PutUint16(b[2:], uint16(d.FlowLabel))
		binary.BigEndian.PutUint16(b[4:], uint16(udpSize+payload))
		b[6], b[7] = protocolUDP, grhHopLimit
		putAddr(b[8:24], src)
		putAddr(b[24:40], dst)
		return
	}
	ip := b[verbs.GRHSize-ipv4Size:]
	ip[0], ip[1] = 4<<4|ipv4Size/4, d.TrafficClass
	binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Size+udpSize+payload))
	binary.BigEndian.PutUint16(ip[4:], d.ID)
	ip[6] = ipv4DontFrag
	ip[8], ip[9] = grhHopLimit, protocolUDP
	putAddr(ip[12:16], src)
	putAddr(ip[16:20], dst)
	binary.BigEndian.PutUint16(ip[10:], ipChecksum(ip))
}

func putAddr(b []byte, a netip.Addr) {
	if len(b) == 4 {
		v := a.As4()
		copy(b, v[:])
		return
	}
	v := a.As16()
	copy(b, v[:])
}

func ipChecksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

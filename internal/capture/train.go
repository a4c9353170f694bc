package capture

import (
	"encoding/binary"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// A system may leave it to the card to cut a long datagram into packets (UDP segmentation), and may join packets that it
// receives. Captures on the host then have a train: packets of one size behind one another, the last one perhaps shorter,
// below one IP header.

// train is the datagram that Part takes packets from.
type train struct {
	p    Packet
	size int // of each packet but the last
	head [maxMasked]byte
}

const maxMTU = 4096 // of a path, by the specification

// maxPacket is the length of the longest packet: a path MTU of 4096 bytes, the longest headers and an ICRC, with room for
// the headers of manufacturers.
const maxPacket = maxMTU + wire.MaxHeaderLen + wire.PiggybackSize + wire.ICRCSize + 64

// Long reports whether the datagram is longer than any packet, as that of a train may be.
func (p *Packet) Long() bool { return p.Length > maxPacket }

// Train returns how many packets are joined in the datagram that was decoded last: 1 unless it is a train. Their ICRCs
// prove it. A packet of Part is no train, whatever is in it.
func (d *Decoder) Train() int {
	p := &d.p
	n := len(p.Datagram)
	if p.part || p.Version != RoCEv2 || p.Cut() || n < 2*wire.MinDatagramLen || len(p.ip) > maxMasked || !p.Long() && p.ICRC() != ICRCBad {
		return 1
	}
	flow := wire.NewFlow(p.Src, p.Dst)
	for size := wire.MinDatagramLen; size <= min(n-wire.MinDatagramLen, maxMTU+wire.MaxHeaderLen+wire.ICRCSize); size += 4 {
		second := p.Datagram[size:]
		bth, _ := wire.DecodeBTH(second)
		if bth.PKey != p.Transport.PKey {
			continue
		}
		if _, _, ok := flow.SolveID(p.Datagram[:size]); !ok {
			continue
		}
		if _, _, ok := flow.SolveID(second[:min(size, len(second))]); ok {
			d.train.p, d.train.size = *p, size
			return (n + size - 1) / size
		}
	}
	return 1
}

// Part decodes the i-th packet of a train, counted from 0, as if it had been captured by itself. It holds until the next
// call.
func (d *Decoder) Part(i int) *Packet {
	t := &d.train
	b := t.p.Datagram[i*t.size:]
	b = b[:min(len(b), t.size)]
	d.p = t.p
	p := &d.p
	p.part, p.Transport, p.Err, p.checked = true, wire.Packet{}, nil, false
	p.ip = append(t.head[:0], t.p.ip...)
	udp := len(p.ip) - udpSize
	if p.Src.Addr().Is4() {
		p.ID += uint16(i)
		binary.BigEndian.PutUint16(p.ip[2:], uint16(len(p.ip)+len(b)))
		binary.BigEndian.PutUint16(p.ip[4:], p.ID)
	} else {
		binary.BigEndian.PutUint16(p.ip[4:], uint16(len(p.ip)-ipv6Size+len(b)))
	}
	binary.BigEndian.PutUint16(p.ip[udp+4:], uint16(udpSize+len(b)))
	d.transport(RoCEv2, b, len(b))
	return p
}

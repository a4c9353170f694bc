package capture

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Verdict says whether a packet's ICRC is right.
type Verdict uint8

// The verdicts.
const (
	ICRCUnknown Verdict = iota // the packet was cut, or is of a form that has none
	ICRCGood
	ICRCOtherID // it is right for another IPv4 identification or another don't-fragment flag: the capture does not show the sender's
	ICRCBad
)

// ICRC checks the packet's ICRC. Over IPv4 the header as captured counts first. Captures at a receiver's socket show
// identification 0, so others are tried then: that leaves 15 bits to check with.
func (p *Packet) ICRC() Verdict {
	if !p.checked {
		p.asLinux = false
		p.verdict, p.checked = p.checkICRC(), true
	}
	return p.verdict
}

func (p *Packet) checkICRC() Verdict {
	n := len(p.Datagram)
	if p.Cut() || n < wire.MinDatagramLen {
		return ICRCUnknown
	}
	front, ok := p.masked(p.front[:0])
	if !ok {
		return ICRCUnknown
	}
	at := len(front)
	front = append(front, p.Datagram[:wire.BTHSize]...)
	front[at+bthCongestion] = 0xff
	crc := crc32.Update(crc32.ChecksumIEEE(front), crc32.IEEETable, p.Datagram[wire.BTHSize:n-wire.ICRCSize])
	if crc == binary.LittleEndian.Uint32(p.Datagram[n-wire.ICRCSize:]) {
		return ICRCGood
	}
	if p.solves(p.Datagram) {
		return ICRCOtherID
	}
	if n != wire.FlushLen {
		return ICRCBad
	}
	flush := append(p.front[:0], p.Datagram...)
	switch {
	case !wire.UnsealLinuxFlush(flush):
	case crc == binary.LittleEndian.Uint32(flush[n-wire.ICRCSize:]):
		p.asLinux = true
		return ICRCGood
	case p.solves(flush):
		p.asLinux = true
		return ICRCOtherID
	}
	return ICRCBad
}

// SealedAsLinux reports whether the packet is a FLUSH with the ICRC that Linux gives it, which counts as right. Software devices
// send each FLUSH with both to a peer that may be Linux.
func (p *Packet) SealedAsLinux() bool {
	p.ICRC()
	return p.asLinux
}

// solves reports whether the ICRC of a datagram is right with another identification.
func (p *Packet) solves(datagram []byte) bool {
	if p.Version != RoCEv2 || !p.Src.Addr().Is4() {
		return false
	}
	flow := wire.NewFlow(p.Src, p.Dst)
	_, _, ok := flow.SolveID(datagram)
	return ok
}

const (
	maskedLRH = 8
	maxMasked = maskedLRH + 60 + udpSize // an IPv4 header with options is the longest

	bthCongestion = 4 // the BTH's byte with FECN, BECN and the reserved bits beside them
)

// masked appends the bytes that the ICRC covers before the BTH, with the fields as ones that routers may change.
func (p *Packet) masked(b []byte) ([]byte, bool) {
	ip := p.ip
	if p.Version == InfiniBand {
		if len(ip) < lrhSize {
			return nil, false
		}
		if len(ip) == lrhSize {
			b = append(b, ip...)
			b[0] |= 0xf0 // the virtual lane
			return b, true
		}
		ip = ip[lrhSize:] // routers make the LRH anew
	}
	b = binary.BigEndian.AppendUint64(b, 1<<64-1)
	if len(ip) > maxMasked-maskedLRH {
		return nil, false // IPv6 with extension headers
	}
	at := len(b)
	b = append(b, ip...)
	h := b[at:]
	switch {
	case len(h) >= ipv4Size+udpSize && h[0]>>4 == 4:
		h[1], h[8], h[10], h[11] = 0xff, 0xff, 0xff, 0xff
	case len(h) == grhSize || len(h) == ipv6Size+udpSize:
		h[0], h[1], h[2], h[3], h[7] = h[0]|0x0f, 0xff, 0xff, 0xff, 0xff
	default:
		return nil, false
	}
	if p.Version == RoCEv2 {
		h[len(h)-2], h[len(h)-1] = 0xff, 0xff // the UDP checksum
	}
	return b, true
}

package diagnose

import (
	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// tooLong takes a router's message that a packet does not fit into its link.
func (a *Analyzer) tooLong(h *hosts, p *capture.Packet) {
	if mtu := p.ICMP.MTU; mtu > 0 && (h.linkMTU == 0 || mtu < h.linkMTU) {
		h.linkMTU = mtu
	}
	x := a.onHosts(h, mtuICMP, &h.tooLong, p.Frame.Number)
	if x == nil {
		return
	}
	if x.Count == 1 {
		x.Severity = Warning // until a request is not answered
		x.from = a.names.addr(p.ICMP.From)
	}
	h.judgeTooLong()
	if !a.names.redact {
		x.Filter = "icmp || icmpv6"
	}
}

// judgeTooLong puts the numbers into what a router has said.
func (h *hosts) judgeTooLong() {
	x := h.tooLong
	if x == nil {
		return
	}
	x.Words = words("%s answers with ICMP: a packet is too long for its link, and must not be fragmented.", x.from)
	if h.linkMTU > 0 {
		x.Words = words("%s answers with ICMP: the MTU of its link is %d.", x.from, h.linkMTU)
	}
	if n := pathMTUOf(h.longest); n > 0 {
		x.Words += words(" The path MTU in use is %d", n)
		if fit := h.pathMTUThatFits(); fit > 0 && fit < n {
			x.Words += words("; %d would fit", fit)
		}
		x.Words += "."
	}
	if x.silent {
		x.Words += " Long requests are repeated, and not answered."
	}
}

const minPathMTU, maxPathMTU = 256, 4096

// pathMTUOf is the least path MTU with which a packet can have so much payload; 0 if there is none.
func pathMTUOf(n int) int {
	for mtu := minPathMTU; n > 0 && mtu <= maxPathMTU; mtu *= 2 {
		if n <= mtu {
			return mtu
		}
	}
	return 0
}

// pathMTUThatFits is the greatest path MTU whose packets fit into the link of which a router has told; 0 if none is known.
func (h *hosts) pathMTUThatFits() int {
	const (
		ipv4, ipv6, udp = 20, 40, 8
		extensions      = 24 // at most beside payload: XRCETH, RETH and immediate data
	)
	room := h.linkMTU - ipv4 - udp - wire.BTHSize - extensions - wire.ICRCSize
	if h.key.src.Is6() {
		room += ipv4 - ipv6
	}
	for mtu := maxPathMTU; mtu >= minPathMTU; mtu /= 2 {
		if mtu <= room {
			return mtu
		}
	}
	return 0
}

// doesNotFit reports whether a router has said that a packet with so much payload is too long.
func (h *hosts) doesNotFit(payload int) bool {
	return h.tooLong != nil && payload > max(minPathMTU, h.pathMTUThatFits())
}

// explainMTU reports whether a router has said that packets as long as the one that is not answered do not fit.
func (a *Analyzer) explainMTU(f *flow) bool {
	x := f.hosts.tooLong
	if !f.hosts.doesNotFit(f.silentLen) {
		return false
	}
	x.Severity, x.silent = Error, true
	f.explained = true
	f.drop(rcSilent, rcDied, mtuBlackhole, lossAck, lossTimeout, lateAnswer)
	return true
}

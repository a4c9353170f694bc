package diagnose

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// icrc checks a packet's ICRC, and reports whether to look at the packet further.
func (a *Analyzer) icrc(h *hosts, p *capture.Packet) bool {
	c := &a.count
	switch p.ICRC() {
	case capture.ICRCUnknown:
		c.uncheckedICRC++
		return true
	case capture.ICRCGood:
		c.good++
		h.good++
		return true
	case capture.ICRCOtherID:
		c.otherID++
		h.good++
		return true
	}
	if end := p.Datagram[p.Length-wire.ICRCSize : p.Length]; end[0]|end[1]|end[2]|end[3] == 0 {
		c.zero++ // the card fills it in later
		return true
	}
	if a.translated(h, p) {
		h.good++
		x := a.onHosts(h, nat, &h.natFinding, p.Frame.Number)
		if x != nil {
			x.Words = words("The ICRC fits %s, the GIDs of the REQ.", a.names.hosts(h.translatedSrc, h.translatedDst))
		}
		return true
	}
	c.bad++
	a.onHosts(h, icrcBad, &h.badFinding, p.Frame.Number)
	h.noteDamage(p)
	return h.good == 0 // where no packet is right, the capture may differ from the packets that were sent
}

// translated reports whether a packet's ICRC fits the GIDs of a REQ in place of the packet's addresses.
func (a *Analyzer) translated(h *hosts, p *capture.Packet) bool {
	if p.Version != capture.RoCEv2 {
		return false
	}
	src, dst := h.translatedSrc, h.translatedDst
	if !src.IsValid() {
		if p.Err != nil || p.Transport.DestQP != wire.GSIQPN {
			return false
		}
		req, ok := decodeREQ(p.Transport.Payload)
		if !ok {
			return false
		}
		if src, dst = gid(req.Primary.LocalGID), gid(req.Primary.RemoteGID); src == p.Src.Addr() && dst == p.Dst.Addr() {
			return false
		}
	}
	flow := wire.NewFlow(netip.AddrPortFrom(src, p.Src.Port()), netip.AddrPortFrom(dst, p.Dst.Port()))
	if _, _, ok := flow.SolveID(p.Datagram); !ok {
		return false
	}
	h.translatedSrc, h.translatedDst = src, dst
	return true
}

// network takes facts about the network from the headers.
func (a *Analyzer) network(h *hosts, p *capture.Packet, bth *wire.BTH) {
	if p.Version == capture.RoCEv2 && p.TrafficClass&ecnMask == notECT {
		h.notECT++
	}
	if isMarked(p, bth) {
		a.marked(h, p)
	}
	if bth.Opcode == wire.CNP {
		a.count.cnps++
		h.cnps++
		h.cnpAt, h.cnpDSCP = p.Frame.Time, p.TrafficClass>>2
		a.congestion(a.hostsOf(h.key.dst, h.key.src), p.Frame.Number)
		return
	}
	if bth.DestQP != wire.GSIQPN {
		h.data++
		h.dataDSCP = p.TrafficClass >> 2
	}
	for i := range h.nports {
		if h.ports[i] == p.Src.Port() {
			return
		}
	}
	if h.nports < len(h.ports) {
		h.ports[h.nports] = p.Src.Port()
		h.nports++
	}
}

// finishHosts judges the packets between two hosts, in one direction.
func (a *Analyzer) finishHosts(h *hosts) {
	const (
		several  = 4
		lowPorts = 1024
	)
	a.finishPath(h)
	h.judgeDamage()
	h.judgeTooLong()
	if x := h.train; x != nil {
		x.Words = words("%d datagrams are several packets each, which were judged one by one.", x.Count)
	}
	back := h.back
	if h.congested != nil {
		a.judgeCongestion(h)
	}
	if h.losses > 0 && h.ce == 0 && h.notECT == h.packets && a.lossesSeen {
		var x *Finding
		a.onHosts(h, ecnOff, &x, 0)
	}
	if h.cnps > 0 && back != nil && h.data > 0 && h.cnpDSCP == h.dataDSCP {
		var x *Finding
		if a.onHosts(h, cnpDSCP, &x, 0); x != nil {
			x.Words = words("CNPs and data have DSCP %d.", h.cnpDSCP)
		}
	}
	if h.kind == capture.RoCEv2 && h.qps >= several && h.nports == 1 && h.data > 0 {
		var x *Finding
		if a.onHosts(h, ecmp, &x, 0); x != nil {
			x.Words = words("%d queue pairs send from port %d.", h.qps, h.ports[0])
		}
	}
	if h.v1 > 0 && back != nil && back.v2 > 0 && h.v2 == 0 {
		var x *Finding
		if a.onHosts(h, gidLL, &x, 0); x != nil {
			x.Words = "One direction is RoCE v1 and the other RoCE v2."
		}
	}
	if h.kind == capture.RoCEv2 && h.nports > 0 && h.ports[0] != 0 && h.ports[0] < lowPorts {
		var x *Finding
		if a.onHosts(h, portSrc, &x, 0); x != nil {
			x.Words = words("UDP source port %d.", h.ports[0])
		}
	}
}

// icmp looks at errors that quote RoCE packets.
func (a *Analyzer) icmp(p *capture.Packet) {
	if p.ICMP.Port != wire.UDPPort {
		return
	}
	h := a.hostsOf(p.ICMP.Src, p.ICMP.Dst)
	if p.ICMP.TooLong {
		a.tooLong(h, p)
		return
	}
	x := a.onHosts(h, cmICMP, &h.icmp, p.Frame.Number)
	if x == nil {
		return
	}
	x.Words = words("%s answers with ICMP: %s.", a.names.addr(p.ICMP.From), icmpText(p))
	if !a.names.redact {
		x.Filter = "icmp || icmpv6"
	}
}

// icmpText says what an ICMP message means.
func icmpText(p *capture.Packet) string {
	const (
		unreachable, unreachable6, exceeded, exceeded6 = 3, 1, 11, 3
	)
	codes := map[uint8]string{0: "network unreachable", 1: "host unreachable", 2: "protocol unreachable", 3: "port unreachable", 9: "network administratively prohibited", 10: "host administratively prohibited", 13: "administratively prohibited"}
	codes6 := map[uint8]string{0: "no route", 1: "administratively prohibited", 3: "address unreachable", 4: "port unreachable"}
	switch {
	case p.ICMP.From.Is4() && p.ICMP.Type == unreachable && codes[p.ICMP.Code] != "":
		return codes[p.ICMP.Code]
	case p.ICMP.From.Is6() && p.ICMP.Type == unreachable6 && codes6[p.ICMP.Code] != "":
		return codes6[p.ICMP.Code]
	case p.ICMP.From.Is4() && p.ICMP.Type == exceeded, p.ICMP.From.Is6() && p.ICMP.Type == exceeded6:
		return "time to live exceeded"
	}
	return words("type %d, code %d", p.ICMP.Type, p.ICMP.Code)
}

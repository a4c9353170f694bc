package diagnose

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// UC and UD have no acknowledgements. All that shows a loss are the PSNs of what arrives.

// A udSource is a queue pair of the UD service that sends. It numbers its packets to all its peers together.
type udSource struct {
	addr netip.Addr
	qpn  uint32
}

// udPSNs are the PSNs of a source.
type udPSNs struct {
	next    wire.PSN
	missing int
}

// unreliable takes a packet of the UC service.
func (a *Analyzer) unreliable(f *flow, p *capture.Packet, w *wire.Packet) {
	a.learn(f, p, w, payloadLen(p, w))
	a.count.unacknowledged++
	if f.started {
		if d := w.PSN.Diff(f.nxt); d > 0 && d < jump {
			if x := a.mark(f, udDrop, p.Frame.Number); x != nil {
				x.Severity = Warning // each message over UC has its PSNs to itself
				f.losses += d
				x.Words = words("%d PSNs of this UC queue pair are missing.", f.losses)
			}
		} else if d < 0 && d > -jump {
			a.mark(f, reorder, p.Frame.Number)
			return
		}
	}
	f.started = true
	f.nxt = w.PSN.Add(1)
}

// datagram takes a packet of the UD service.
func (a *Analyzer) datagram(f *flow, p *capture.Packet, w *wire.Packet) {
	a.learn(f, p, w, payloadLen(p, w))
	if w.DestQP == 0 {
		return // subnet management: who asks repeats
	}
	a.count.unacknowledged++
	a.missing(f, p, w)
	const perSender = 0x80000000 // a Q_Key that only the sender's system may choose
	to := flowKey{dst: p.Dst.Addr(), qpn: w.DestQP}
	switch first, ok := a.udKeys[to]; {
	case !ok && len(a.udKeys) < maxFlows:
		a.udKeys[to] = w.DETH.QKey
	case ok && first != w.DETH.QKey && w.DETH.QKey&perSender == 0:
		if x := a.mark(f, qKey, p.Frame.Number); x != nil {
			x.Words = words("This packet has %s, and the first one to the queue pair had %s.", a.names.key("%#08x", uint64(w.DETH.QKey)), a.names.key("%#08x", uint64(first)))
		}
	}
}

func missing(n int) string {
	if n == 1 {
		return "1 PSN is missing"
	}
	return words("%d PSNs are missing", n)
}

// missing counts the PSNs that a source of datagrams has skipped, to whomever it sends.
func (a *Analyzer) missing(f *flow, p *capture.Packet, w *wire.Packet) {
	k := udSource{p.Src.Addr(), w.DETH.SrcQP}
	s := a.udFrom[k]
	if s == nil {
		if len(a.udFrom) >= maxFlows {
			clear(a.udFrom) // a scan: nothing of use is lost
		}
		a.udFrom[k] = &udPSNs{next: w.PSN.Add(1)}
		return
	}
	switch d := w.PSN.Diff(s.next); {
	case d < 0 && d > -jump:
		s.missing = max(0, s.missing-1) // it was overtaken
		return
	case d > 0 && d < jump:
		s.missing += d
		if x := a.mark(f, udDrop, p.Frame.Number); x != nil {
			x.Words = words("Of source QP 0x%06x %s in all, the last before PSN %v.", k.qpn, missing(s.missing), w.PSN)
		}
	}
	s.next = w.PSN.Add(1)
}

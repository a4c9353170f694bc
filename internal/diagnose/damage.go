package diagnose

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// A receiver drops a packet whose ICRC is wrong. If it acknowledges the packet though it does not come again, then it got it
// whole: the capture, or a mirror, has done the damage.

// damage is a request with a wrong ICRC.
type damage struct {
	qpn   uint32
	psn   wire.PSN
	at    int64
	again bool // it came again
	taken bool // it was acknowledged, and did not
}

// noteDamage remembers a damaged packet, if it is a request whose fate the PSNs show.
func (h *hosts) noteDamage(p *capture.Packet) {
	w := &p.Transport
	if len(h.damaged) < maxFrames && p.Err == nil && w.Opcode.IsRequest() && (w.Opcode.Service() == wire.ServiceRC || w.Opcode.Service() == wire.ServiceXRC) {
		h.damaged = append(h.damaged, damage{qpn: w.DestQP, psn: w.PSN, at: p.Frame.Time})
	}
}

// cameAgain takes a request that is whole.
func (h *hosts) cameAgain(f *flow, psn wire.PSN) {
	for i := range h.damaged {
		if d := &h.damaged[i]; d.qpn == f.key.qpn && d.psn == psn && !d.taken {
			d.again = true
		}
	}
}

// damageAcknowledged takes an acknowledgement of requests of the flow.
func (f *flow) damageAcknowledged(psn wire.PSN) {
	for i := range f.hosts.damaged {
		d := &f.hosts.damaged[i]
		if d.qpn != f.key.qpn || d.again || d.taken || psn.Less(d.psn) || psn.Diff(d.psn) > longAgo {
			continue
		}
		d.taken = true
		f.inGap(d.psn) // and no hole of the capture
	}
}

// judgeDamage judges the damaged packets of a direction.
func (h *hosts) judgeDamage() {
	x := h.badFinding
	if x == nil {
		return
	}
	taken := 0
	for _, d := range h.damaged {
		if d.taken {
			taken++
		}
	}
	x.Words = words("%d of %d packets.", x.Count, h.good+x.Count)
	switch {
	case h.good == 0 && h.answered:
		x.Severity, x.Certainty = Info, Hint
		x.Words += " All of this direction, and the receiver took them: so the capture differs from what was sent."
	case taken == x.Count:
		x.Severity, x.Certainty = Info, Hint
		x.Words += " The receiver acknowledged what did not come again: so it arrived whole, and the capture or a mirror has damaged it."
		x.Remedy = []string{"Capture at another point, as at the receiver: there the packets are whole. Then look at the mirror's port, or at the card that captures."}
	case taken > 0:
		x.Words += words(" The receiver acknowledged %d of them though they did not come again: those arrived whole.", taken)
	}
}

// damageIsOpen reports whether the next packets may show that the capture has damaged a packet.
func (h *hosts) damageIsOpen(now int64) bool {
	const soon = int64(time.Second)
	h.judgeDamage()
	for _, d := range h.damaged {
		if !d.again && !d.taken && now-d.at < soon {
			return true
		}
	}
	return h.badFinding.note()
}

package transport

import "github.com/adverb-rdma/adverb/internal/wire"

// Expectation says how well a packet's PSN fits the PSNs that a peer may send now.
type Expectation uint8

const (
	Unexpected Expectation = iota // no peer of this QP sends it now
	Ahead                         // an earlier packet is missing, or the PSN proves nothing for another reason
	Expected                      // it is next, repeats an earlier packet, or answers an outstanding request
)

const (
	// repeatedPSNs is how far back a peer may begin to repeat. windowPSNs is how far its window may reach. ucLostPSNs
	// is how many packets of a UC peer may be lost before one that is Expected.
	repeatedPSNs = 1 << 13
	windowPSNs   = 1 << 13
	ucLostPSNs   = 16
	// answeredPSNs is how far behind una an acknowledgement may lie, which repeats earlier ones.
	answeredPSNs = 64
)

// Expect says how well a packet fits, and changes nothing. base moves on whenever a packet of the same kind makes
// progress.
func (q *QP) Expect(p *wire.Packet) (fit Expectation, base wire.PSN) { return q.service.expect(p) }

func (r *rc) expect(p *wire.Packet) (Expectation, wire.PSN) {
	base := r.qp.receiver.epsn
	if p.Opcode.IsRequest() {
		d := p.PSN.Diff(base)
		if d < -repeatedPSNs && d >= -repeatedPSNs-r.responder.responses.reach(base) {
			return r.repeatsFar(p), base
		}
		return expectation(d, -repeatedPSNs, 0, windowPSNs), base
	}
	base = psn(r.recovery.Una())
	return expectation(p.PSN.Diff(base), -answeredPSNs, int(r.recovery.Max()-r.recovery.Una())-1, 0), base
}

// repeatsFar says how well a request fits that may repeat a long READ, or a request before the READ: a READ has as
// many PSNs as its response has packets. So far back a PSN alone proves little, but a READ must be the one that came.
func (r *rc) repeatsFar(p *wire.Packet) Expectation {
	if p.Opcode.IsRead() {
		if e := r.responder.readEntry(p); r.responder.responses.repeatsRead(&e, r.qp.mtu) {
			return Expected
		}
		return Unexpected
	}
	return Ahead // the packet neither proves nor disproves anything
}

func (u *uc) expect(p *wire.Packet) (Expectation, wire.PSN) {
	base := u.qp.receiver.epsn
	return expectation(p.PSN.Diff(base), 0, ucLostPSNs, windowPSNs), base
}

// expect implements service. Anybody may send to a UD QP.
func (*ud) expect(*wire.Packet) (Expectation, wire.PSN) { return Expected, 0 }

func expectation(d, first, last, ahead int) Expectation {
	switch {
	case d < first || d > max(last, ahead):
		return Unexpected
	case d <= last:
		return Expected
	}
	return Ahead
}

package transport

import "github.com/adverb-rdma/adverb/internal/wire"

// Expectation says how well a packet's PSN fits what a peer can be about to send.
type Expectation uint8

const (
	Unexpected Expectation = iota // no peer of this QP sends it now
	Ahead                         // it is behind others that are missing, or proves nothing for another reason
	Expected                      // it is next, repeats what came, or answers what is outstanding
)

const (
	// repeatedPSNs is how far back a peer may begin to repeat, windowPSNs how far its window may reach,
	// and ucLostPSNs how many packets of a UC peer may be lost before one that is Expected.
	repeatedPSNs = 1 << 13
	windowPSNs   = 1 << 13
	ucLostPSNs   = 16
	// answeredPSNs is by how much an acknowledgement may repeat what earlier ones have acknowledged.
	answeredPSNs = 64
)

// Expect says how well a packet fits, and changes nothing. base moves on whenever a packet of its kind
// makes progress.
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

// repeatsFar says how well a request fits that may be a repeat of what goes before a long READ, or of the
// READ: a READ has as many PSNs as its response has packets. So far back a PSN alone proves little, but a
// READ must be the one that came.
func (r *rc) repeatsFar(p *wire.Packet) Expectation {
	if p.Opcode.IsRead() {
		if e := r.responder.readEntry(p); r.responder.responses.repeatsRead(&e, r.qp.mtu) {
			return Expected
		}
		return Unexpected
	}
	return Ahead // it neither proves nor disproves anything
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

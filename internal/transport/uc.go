package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// uc is an unreliable connection: SENDs and WRITEs of any length, without acknowledgements.
type uc struct{ sender }

func newUC(q *QP) *uc { return &uc{sender{qp: q}} }

func (u *uc) transmit(_ time.Duration, buf []byte) int {
	w := u.next()
	if w == nil {
		return 0
	}
	q := u.qp
	n, f := q.dataPacket(q.header(0, psn(w.seq+u.sent)), w, u.sent, buf)
	return u.wrote(w, n, f)
}

// handle takes a packet. A message of which a packet is missing, or that cannot be placed, is dropped
// without a word, and its receive serves the next one. Such a packet makes no progress, and neither
// does one behind a gap.
func (u *uc) handle(_ time.Duration, p *wire.Packet) (progress bool) {
	q := u.qp
	if p.Opcode == wire.CNP {
		q.counters.CongestionNotifications++ // nothing paces a UC QP
		return
	}
	if p.Opcode.Service() != wire.ServiceUC {
		q.counters.Unexpected++
		return false
	}
	if !q.receives() {
		return false
	}
	in := &q.receiver
	in.established()
	inSequence := p.PSN == in.epsn
	if !inSequence || p.Opcode.StartsMessage() {
		in.dropMessage()
	}
	in.epsn = p.PSN.Add(1)
	r := in.checkSequence(p)
	switch {
	case r != nil:
	case p.Opcode.IsSend():
		r = in.send(p)
	default:
		r = in.write(p)
	}
	switch {
	case r == nil:
		return inSequence
	case in.msg.recv != nil && r.status == verbs.WCLocProtErr:
		in.fail(r) // the receive itself is at fault, and would be for the next message
		return false
	case r.rnr:
		q.counters.NoReceive++
	default:
		q.counters.Unexpected++
	}
	in.dropMessage()
	return false
}

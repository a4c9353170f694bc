package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// uc is an unreliable connection: SENDs and WRITEs of any length, without acknowledgements.
type uc struct {
	sender
	counted bool // the message whose packets are coming was dropped, and counted
}

func newUC(q *QP) *uc { return &uc{sender: sender{qp: q}} }

func (u *uc) transmit(now time.Duration, buf []byte) int {
	if u.qp.rate.Holds(now) {
		return 0
	}
	w := u.next()
	if w == nil {
		return 0
	}
	q := u.qp
	n, f := q.dataPacket(q.header(0, psn(w.seq+u.sent)), w, u.sent, 1, buf)
	if q.rate.IsPaced() && f == nil {
		q.sent(now, n)
	}
	return u.wrote(w, n, f)
}

func (u *uc) nextTimeout() time.Duration      { return u.qp.rate.NextTimeout() }
func (u *uc) handleTimeout(now time.Duration) { u.qp.rate.Served(now) }
func (u *uc) stop()                           { u.qp.rate.Reset() }

// handle takes a packet. A message of which a packet is missing, or that cannot be placed, is dropped without an
// answer, and its receive serves the next one. Such a packet makes no progress, and neither does a packet behind a
// gap.
func (u *uc) handle(now time.Duration, p *wire.Packet) (progress bool) {
	q := u.qp
	if p.Opcode == wire.CNP {
		if q.receives() && q.attr.State != verbs.QPStateRTR {
			q.notified(now)
		}
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
	missed := p.PSN.Diff(in.epsn) // below 0: the packet is a repeat, or late
	q.counters.MissedPackets += uint64(max(0, missed))
	if !inSequence || p.Opcode.StartsMessage() {
		if in.msg.kind != noMessage {
			u.lose()
		}
		in.dropMessage()
	}
	in.start(p.PSN.Add(1))
	if p.Opcode.StartsMessage() {
		u.counted = false
	} else if in.msg.kind == noMessage && p.Opcode.EndsMessage() && missed >= 0 {
		u.lose()
	}
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
	case r.nak == wire.NAKRemoteOperationalError:
		q.counters.refused(r)
		in.fail(r) // memory at this end is at fault, and would fail the next message too
		return false
	case r.rnr:
		q.counters.NoReceive++
	case in.msg.kind != noMessage || p.Opcode.StartsMessage():
		q.counters.refused(r)
	default:
		q.counters.Unexpected++
	}
	u.counted = true
	in.dropMessage()
	return false
}

// lose counts a message of which a packet is missing, once: when the message is dropped or, if its first packet was
// lost already, when its last one comes.
func (u *uc) lose() {
	if !u.counted {
		u.qp.counters.LostMessages++
	}
	u.counted = true
}

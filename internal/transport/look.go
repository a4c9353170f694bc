package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Look is how a QP stands, in all parts that a page can draw. Nothing of the protocol depends on it. PSNs have 24 bits.
type Look struct {
	State verbs.QPState
	Sends []SendLook // in the send queue, the oldest first

	// Of the requester, if the QP is RC and was in RTS.
	Una, Nxt, Max        wire.PSN // not acknowledged; next to send; new
	Unacknowledged       []FateLook
	Window               uint64
	RTT                  time.Duration // smoothed; 0 while unknown
	Timers               recovery.Timers
	Retries, RNRRetries  uint8 // left
	PeerSACKs            bool  // the peer acknowledges selectively: both are adverbs
	Credits              int64 // messages that the peer has receives for, beyond those sent; -1 where it sets no limit
	OutstandingResponses int   // READs and atomics that wait for their answers

	// Of the receive side.
	Expected wire.PSN   // the PSN that is expected next
	MSN      uint32     // messages complete
	Refused  bool       // a NAK for Expected was sent, and all else is dropped until that packet comes
	Held     []wire.PSN // came before an earlier one, and wait or are placed
	GapTimer time.Duration
	InUse    bool   // a receive has a part of its message
	Receive  uint64 // its ID
	Received uint32 // bytes of the message under way
	Pending  int    // READs and atomics to answer
}

// SendLook is a work request in the send queue.
type SendLook struct {
	ID       uint64
	Op       verbs.Opcode
	Length   uint32
	First    wire.PSN
	Packets  uint64
	Sent     uint64 // of Packets, how many left at least once
	Acked    uint64 // of Packets, how many are acknowledged
	Signaled bool
}

// FateLook is a run of packets that are not acknowledged.
type FateLook struct {
	First   wire.PSN
	Packets uint64
	recovery.Fate
}

// Look returns how the QP stands.
func (q *QP) Look() Look {
	l := Look{State: q.attr.State, Expected: q.receiver.epsn, Received: q.receiver.msg.off, Credits: -1,
		Timers: recovery.Timers{Ack: Never, Probe: Never, Wait: Never, Loss: Never}, GapTimer: Never}
	for _, r := range []interface{ receiveID() (uint64, bool) }{&q.receiver.msg, &q.receiver} {
		if id, ok := r.receiveID(); ok {
			l.InUse, l.Receive = true, id
			break
		}
	}
	r, isRC := q.service.(*rc)
	for at := q.sq.head; at != q.sq.tail; at++ {
		w := q.sq.at(at)
		s := SendLook{ID: w.id, Op: w.op, Length: w.length, First: psn(w.seq), Packets: w.packets, Signaled: w.flags&verbs.SendSignaled != 0}
		if isRC {
			s.Sent, s.Acked = within(w, r.recovery.Max()), within(w, r.recovery.Una())
		}
		l.Sends = append(l.Sends, s)
	}
	if isRC {
		lookAtRC(&l, r)
	}
	return l
}

// within returns how many of w's packets are before seq.
func within(w *sendWQE, seq uint64) uint64 { return min(max(seq, w.seq)-w.seq, w.packets) }

func (m *message) receiveID() (uint64, bool) {
	if m.recv == nil {
		return 0, false
	}
	return m.recv.ID, true
}

func (s *receiver) receiveID() (uint64, bool) {
	if s.unused == nil {
		return 0, false
	}
	return s.unused.ID, true
}

// lookAtRC fills in what RC has beyond the other services.
func lookAtRC(l *Look, r *rc) {
	rec, s := &r.recovery, &r.responder
	l.Una, l.Nxt, l.Max = psn(rec.Una()), psn(rec.Nxt()), psn(rec.Max())
	for _, f := range rec.Fates() {
		l.Unacknowledged = append(l.Unacknowledged, FateLook{psn(f.From), f.To - f.From, f})
	}
	l.Window, l.RTT, l.Timers = rec.Limit(), rec.SRTT(), rec.Timers()
	l.Retries, l.RNRRetries = rec.RetriesLeft()
	l.OutstandingResponses = len(r.requester.outstanding)
	if r.requester.creditLimit != noCreditLimit {
		sent := uint64(0)
		if sq := &r.qp.sq; r.requester.cur != sq.tail {
			sent = sq.at(r.requester.cur).message
		} else {
			sent = sq.messages
		}
		l.Credits = max(0, int64(r.requester.creditLimit-sent))
	}
	l.MSN, l.Refused, l.PeerSACKs, l.GapTimer = s.msn, s.refused, r.peerSACKs(), s.gapTimer
	l.Pending = len(s.responses.pending) - int(s.responses.first)
	for k := 1; s.reorder.n > 0 && k < wire.MaxRanges; k++ {
		if p := l.Expected.Add(k); s.reorder.has(p) {
			l.Held = append(l.Held, p)
		}
	}
}

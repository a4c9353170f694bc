package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// notify sends congestion notifications (CNPs). A packet that comes with an ECN mark is answered by a CNP, at most
// one in recovery.NotifyInterval: IBTA CA17-44. Only packets whose sender has allowed marks are marked, so a peer
// that does not know CNPs gets none, unless its program asked for marks.
type notify struct {
	due  bool          // a CNP is to be sent
	next time.Duration // when the next CNP may be due
}

// marked takes note of a packet that came with the mark of congestion. A response may be marked as well, but nothing
// answers a CNP.
func (q *QP) marked(now time.Duration, p *wire.Packet) {
	n := &q.notify
	if n.due || now < n.next || p.Opcode == wire.CNP {
		return
	}
	switch q.attr.State {
	case verbs.QPStateRTR, verbs.QPStateRTS, verbs.QPStateSQD:
		n.due, n.next = true, now+recovery.NotifyInterval
	}
}

// sendCNP writes the CNP that is due into buf.
func (q *QP) sendCNP(buf []byte) int {
	q.notify.due = false
	q.counters.SentNotifications++
	q.out = wire.NewCNP(uint32(q.attr.DestQPN), wire.DefaultPKey)
	return len(q.out.AppendHeaders(buf[:0])) + wire.ICRCSize
}

package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// notify is what a QP knows of congestion on the way to it. A packet that comes marked is answered by a
// congestion notification (CNP), at most one in recovery.NotifyInterval: IBTA CA17-44. Only packets whose sender
// has allowed it are marked, so a peer that does not know CNPs gets none, unless its program asked for
// marks.
type notify struct {
	due  bool          // a CNP is to be sent
	next time.Duration // when there may be another one
}

// marked takes note of a packet that came with the mark of congestion. What answers a mark may be marked as
// well, but a CNP is answered by nothing.
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

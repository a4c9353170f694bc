package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/verbs"
)

// controlOf is recovery's constant for a kind of congestion control. A UD QP has many peers, and so no rate.
func (q *QP) controlOf(kind verbs.CongestionControl) recovery.Control {
	switch {
	case kind == verbs.CongestionDCQCN && q.cfg.Type != verbs.QPTypeUD:
		return recovery.DCQCN
	case kind == verbs.CongestionDelay:
		return recovery.Delay
	}
	return recovery.Window
}

// SetCongestionControl changes how the QP finds the rate at which it may send. RESET brings back Config.Control.
func (q *QP) SetCongestionControl(kind verbs.CongestionControl) error {
	if kind == verbs.CongestionDelay && q.cfg.Type != verbs.QPTypeRC {
		return verbs.Errorf(verbs.ErrUnsupported, "a %v QP has no acknowledgements, so it cannot measure round trips: use dcqcn", q.cfg.Type)
	}
	q.setControl(kind)
	return nil
}

func (q *QP) setControl(kind verbs.CongestionControl) {
	r, ok := q.service.(*rc)
	if !ok {
		q.rate.Use(q.controlOf(kind), q.cfg.LineRate, nil)
		return
	}
	q.rate.Use(q.controlOf(kind), q.cfg.LineRate, &r.recovery)
	r.endSlowStart()
}

// AllowsMarks reports whether the QP's packets allow ECN marks, whatever its traffic class says.
func (q *QP) AllowsMarks() bool { return q.rate.Kind() == recovery.DCQCN }

// notified takes a CNP. A forged CNP would slow the connection down. So a CNP counts only if a genuine one is
// possible: if the QP's packets allow marks.
func (q *QP) notified(now time.Duration) {
	if !q.AllowsMarks() && q.attr.AH.TrafficClass&ecnMask == 0 {
		q.counters.IgnoredNotifications++
		return
	}
	q.counters.CongestionNotifications++
	q.rate.Notified(now)
}

const ecnMask = 0b11 // of a traffic class

// sent notes that a packet of n bytes, with data, has left.
func (q *QP) sent(now time.Duration, n int) { q.rate.Sent(now, n, netHeaders) }

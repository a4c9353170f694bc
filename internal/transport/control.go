package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// A controller finds out how fast a QP may send by signs of congestion that are no losses. Losses narrow the
// window of an RC QP whatever its controller.
type controller interface {
	// notified takes note of a congestion notification: IBTA CA17-45.
	notified(now time.Duration)
	// measured takes note of the time from a packet's sending to its acknowledgement.
	measured(now, trip time.Duration)
	// sent takes note that n bytes have left, acknowledgements and notifications not counted.
	sent(now time.Duration, n int)
}

// newController makes a controller of a kind. UC has neither window nor round trips, so there the others do
// nothing but DCQCN.
func (q *QP) newController(kind verbs.CongestionControl) controller {
	r, _ := q.service.(*rc)
	switch {
	case kind == verbs.CongestionDCQCN && q.cfg.Type != verbs.QPTypeUD:
		d := newDCQCN(&q.pace, q.cfg.LineRate)
		if r != nil {
			d.far = &r.recovery.congestion
		}
		return d
	case kind == verbs.CongestionDelay && r != nil:
		return newDelayControl(&r.recovery.congestion, &q.pace, &q.mtu)
	case r != nil:
		return windowControl{&r.recovery.congestion}
	}
	return noControl{}
}

// SetCongestionControl changes how the QP finds out how fast it may send. RESET takes that back.
func (q *QP) SetCongestionControl(kind verbs.CongestionControl) error {
	if kind == verbs.CongestionDelay && q.cfg.Type != verbs.QPTypeRC {
		return verbs.Errorf(verbs.ErrUnsupported, "a %v QP has no acknowledgements, so it cannot measure round trips: use dcqcn", q.cfg.Type)
	}
	q.setController(kind)
	return nil
}

func (q *QP) setController(kind verbs.CongestionControl) {
	q.pace = pacer{callAt: q.pace.callAt}
	q.paced = kind != verbs.CongestionWindow
	if r, ok := q.service.(*rc); ok {
		r.recovery.allow(farWindow)
		r.recovery.endPace()
		r.unfold()
	}
	q.control, q.controlKind = q.newController(kind), kind
}

// AllowsMarks reports whether what the QP sends is to allow ECN marks, whatever its traffic class says.
func (q *QP) AllowsMarks() bool {
	_, ok := q.control.(*dcqcn)
	return ok
}

// notified takes note of a CNP. Whoever forges one slows a connection down, so it counts only if there can be a
// genuine one: if the QP's packets allow marks.
func (q *QP) notified(now time.Duration) {
	if !q.AllowsMarks() && q.attr.AH.TrafficClass&ecnMask == 0 {
		q.counters.IgnoredNotifications++
		return
	}
	q.counters.CongestionNotifications++
	q.control.notified(now)
}

const ecnMask = 0b11 // of a traffic class

// sent takes note that a packet with data has left. It has n bytes.
func (q *QP) sent(now time.Duration, n int) {
	q.control.sent(now, n)
	q.pace.sent(now, n+netHeaders)
}

// windowControl narrows the window as a loss does, once in a round trip. It is what a QP has by default.
type windowControl struct{ c *congestion }

func (w windowControl) notified(now time.Duration)          { w.c.notified(now) }
func (windowControl) measured(time.Duration, time.Duration) {}
func (windowControl) sent(time.Duration, int)               {}

// noControl is that of UC and UD.
type noControl struct{}

func (noControl) notified(time.Duration)                {}
func (noControl) measured(time.Duration, time.Duration) {}
func (noControl) sent(time.Duration, int)               {}

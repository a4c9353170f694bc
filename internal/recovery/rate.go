package recovery

import "time"

// Rate is how fast a QP may send: a pacer, and a controller that sets its rate. QPs of all services have one. Reset and Use
// make one ready.
type Rate struct {
	pacer
	control controller
	kind    Control
	mtu     uint32
}

// Control is a kind of congestion control.
type Control uint8

const (
	Window Control = iota // the congestion window alone
	DCQCN                 // a rate, by congestion notifications
	Delay                 // a window, by RTTs
)

// controller finds out how fast a QP may send by signs of congestion that are no losses. Losses narrow the window of an RC
// QP whatever its controller.
type controller interface {
	// notified notes a congestion notification: IBTA CA17-45.
	notified(now time.Duration)
	// measured takes an RTT sample.
	measured(now, rtt time.Duration)
	// sent notes that n bytes have left, acknowledgements and notifications not counted.
	sent(now time.Duration, n int)
}

// SetMTU says how many bytes of data a packet has at most.
func (r *Rate) SetMTU(n uint32) { r.mtu = n }

// Use changes the kind of control, and begins anew. line is how many bytes the port sends in a second, or 0 if that is not
// known. s is the QP's State, or nil for a service without acknowledgements, where
// Window and Delay do nothing.
func (r *Rate) Use(kind Control, line uint64, s *State) {
	r.pacer = pacer{callAt: r.callAt}
	r.kind = kind
	if s != nil {
		s.rateChanged()
	}
	r.control = r.newController(line, s)
}

func (r *Rate) newController(line uint64, s *State) controller {
	switch {
	case r.kind == DCQCN:
		d := newDCQCN(&r.pacer, line)
		if s != nil {
			d.far = &s.congestion
		}
		return d
	case s == nil:
		return noControl{}
	case r.kind == Delay:
		return newDelayControl(&s.congestion, r)
	}
	return windowControl{&s.congestion}
}

// Reset stops the timer.
func (r *Rate) Reset() { r.pacer.stop() }

// Kind returns the kind of control.
func (r *Rate) Kind() Control { return r.kind }

// IsPaced reports whether packets are to be noted by Sent: there may be a pace.
func (r *Rate) IsPaced() bool { return r.kind != Window }

// Notified notes a congestion notification.
func (r *Rate) Notified(now time.Duration) { r.control.notified(now) }

// Sent notes that a packet with data has left. The packet has n bytes, and headers more on the wire.
func (r *Rate) Sent(now time.Duration, n, headers int) {
	r.control.sent(now, n)
	r.pacer.sent(now, n+headers)
}

// windowControl narrows the window as a loss does, once in a round trip. It is the default.
type windowControl struct{ c *congestion }

func (w windowControl) notified(now time.Duration)          { w.c.notified(now) }
func (windowControl) measured(time.Duration, time.Duration) {}
func (windowControl) sent(time.Duration, int)               {}

// noControl is the control of a service without acknowledgements.
type noControl struct{}

func (noControl) notified(time.Duration)                {}
func (noControl) measured(time.Duration, time.Duration) {}
func (noControl) sent(time.Duration, int)               {}

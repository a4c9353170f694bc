package recovery

import "time"

// Rate is how fast a QP may send: a pacer, and a controller that sets its rate. QPs of all services have one.
type Rate struct {
	pacer
	control controller
	kind    Control
	line    uint64 // bytes in a second that the port sends; 0 if that is not known
	mtu     int
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

// NewRate returns the Rate of a QP at a port that sends so many bytes in a second; 0 if that is not known.
func NewRate(line uint64) Rate {
	return Rate{pacer: pacer{callAt: Never}, control: noControl{}, line: line}
}

// SetMTU says how many bytes of data a packet has at most.
func (r *Rate) SetMTU(n int) { r.mtu = n }

// Use changes the kind of control, and begins anew. s is the QP's State, or nil for a service without acknowledgements, where
// Window and Delay do nothing.
func (r *Rate) Use(kind Control, s *State) {
	r.pacer = pacer{callAt: r.callAt}
	r.kind = kind
	if s != nil {
		s.rateChanged()
	}
	r.control = r.newController(s)
}

func (r *Rate) newController(s *State) controller {
	switch {
	case r.kind == DCQCN:
		d := newDCQCN(&r.pacer, r.line)
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

// Sent notes that a packet with data has left. It has n bytes, and headers more on the wire.
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

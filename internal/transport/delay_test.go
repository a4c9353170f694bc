package transport

import (
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestDelayStartsRTS: a QP that goes to RTS has the first window, and not the widest.
func TestDelayStartsRTS(t *testing.T) {
	p := newPair(t, setup{})
	q := p.a.qp
	if err := q.SetCongestionControl(verbs.CongestionDelay); err != nil {
		t.Fatal(err)
	}
	r := &q.service.(*rc).recovery
	r.Start(r.Una())
	if got := r.Limit(); got != 8 {
		t.Errorf("the window is %d, want 8", got)
	}
}

// TestNarrowedAtOnce: a window becomes one packet while a part of a message is in flight that asks for no
// acknowledgement. The QP does not wait for a probe: one packet more goes, and asks.
func TestNarrowedAtOnce(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	q := p.a.qp
	if err := q.SetCongestionControl(verbs.CongestionDelay); err != nil {
		t.Fatal(err)
	}
	r := q.service.(*rc)
	r.recovery.Allow(64)
	r.requester.ackRequestedTo = r.recovery.Una()
	wr := writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*100))
	if err := q.Post(&wr); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, MaxDatagram)
	q.Turn()
	for range 10 {
		if q.Transmit(p.now, buf) == 0 {
			t.Fatal("nothing goes")
		}
	}
	r.recovery.Allow(1)
	if q.Transmit(p.now, buf) == 0 || r.requester.ackRequestedTo != r.recovery.Nxt() {
		t.Errorf("asked for an acknowledgement of the packets before %d, %d are sent; want the last to ask", r.requester.ackRequestedTo, r.recovery.Nxt())
	}
	if q.Transmit(p.now, buf) != 0 {
		t.Error("one more goes than had to")
	}
}

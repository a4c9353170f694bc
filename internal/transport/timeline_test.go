package transport

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestTimeOfQPNeverGoesBack: who calls a QP may have read the clock before others that called it meanwhile. No round trip
// becomes negative by that, and none is shorter than shortestTrip.
func TestTimeOfQPNeverGoesBack(t *testing.T) {
	for _, early := range []time.Duration{0, us / 4, 300 * us, 12 * ms} {
		p := newPair(t, setup{})
		p.now = 20 * ms
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		p.transmit() // at 20 ms
		p.now -= early
		ack := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: psn(p.a.rc().recovery.una)}, AETH: wire.AETH{Syndrome: 0x1f, MSN: 1}}
		p.inject(p.a, ack)
		p.a.wantSends(wc{1, verbs.WCSuccess})
		rec := &p.a.rc().recovery
		if !rec.known || rec.roundTrip != shortestTrip || rec.leastTrip != shortestTrip || rec.latestTrip < shortestTrip {
			t.Errorf("acknowledged %v before it was sent: the round trip is %v, the shortest %v, the latest %v; want %v", early,
				rec.roundTrip, rec.leastTrip, rec.latestTrip, shortestTrip)
		}
		if p.a.qp.HandleTimeout(0); p.a.qp.Latest() != 20*ms {
			t.Errorf("the QP's time is %v, want %v", p.a.qp.Latest(), 20*ms)
		}
	}
}

// TestLossesAfterNoTrip: after a round trip that took no time, losses in a queue narrow the window as they do elsewhere, and
// no part of it is without a bound.
func TestLossesAfterNoTrip(t *testing.T) {
	c := newCongestion()
	c.window = 200
	c.took(0, tripSince(0, 300*us))
	for now := range 200 * time.Duration(1) {
		c.took(now*2*ms, 2*ms)
	}
	c.lostSome(time.Second, 50)
	if c.window > 200 || c.threshold > 200 || c.window < lossWindow {
		t.Errorf("after 50 losses in a queue the window is %d, the threshold %d; want at most 200, and %d at least", c.window, c.threshold, lossWindow)
	}
	for range 100 {
		c.acknowledged(200, growth, true)
	}
	if c.window > farWindow {
		t.Errorf("later the window is %d, want %d at most", c.window, farWindow)
	}
}

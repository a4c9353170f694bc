package transport

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestTimeOfQPNeverGoesBack: a caller of a QP may have read the clock before others that called the QP meanwhile. No
// round trip becomes negative by that, and none is shorter than us.
func TestTimeOfQPNeverGoesBack(t *testing.T) {
	for _, early := range []time.Duration{0, us / 4, 300 * us, 12 * ms} {
		p := newPair(t, setup{})
		p.now = 20 * ms
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		p.transmit() // at 20 ms
		p.now -= early
		ack := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: psn(p.a.rc().recovery.Una())}, AETH: wire.AETH{Syndrome: 0x1f, MSN: 1}}
		p.inject(p.a, ack)
		p.a.wantSends(wc{1, verbs.WCSuccess})
		rec := &p.a.rc().recovery
		if rec.SRTT() != us || rec.Gauges().MinRTT != us || rec.Gauges().Latest < us {
			t.Errorf("acknowledged %v before it was sent: the round trip is %v, the shortest %v, the latest %v; want %v", early,
				rec.SRTT(), rec.Gauges().MinRTT, rec.Gauges().Latest, us)
		}
		if p.a.qp.HandleTimeout(0); p.a.qp.Latest() != 20*ms {
			t.Errorf("the QP's time is %v, want %v", p.a.qp.Latest(), 20*ms)
		}
	}
}

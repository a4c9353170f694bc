package transport

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// loneRead posts a READ of 8 bytes and sends it. answerRead delivers its response.
func loneRead(t *testing.T) *pair {
	p := newPair(t, setup{})
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.cutAfter(0)
	p.transmit()
	return p
}

func (p *pair) answerRead(n int, credits uint8) {
	p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadResponseOnly}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(credits), MSN: 1},
		Payload: make([]byte, n)})
}

// TestLoneRead: where a READ is all that is under way, its response leaves nothing behind: no timer, no packet in
// flight, and no READ that a fence would wait for. The response measures the round trip, and announces the peer's
// receives.
func TestLoneRead(t *testing.T) {
	p := loneRead(t)
	const trip = 50 * time.Microsecond
	p.now += trip
	p.answerRead(8, wire.EncodeCredits(3))
	p.a.wantSends(wc{1, verbs.WCSuccess})
	r, rec := p.a.rc(), &p.a.rc().recovery
	if rec.Una() != rec.Max() || rec.InFlight() != 0 || len(r.requester.outstanding) != 0 {
		t.Errorf("una %d, max %d, %d flying, %d READs outstanding; want nothing under way", rec.Una(), rec.Max(), rec.InFlight(), len(r.requester.outstanding))
	}
	if at := rec.NextTimeout(); at != Never {
		t.Errorf("a timer is due at %v, want none", at)
	}
	if rec.SRTT() == 0 || rec.SRTT() != trip {
		t.Errorf("the round trip is %v (known: %v), want %v", rec.SRTT(), rec.SRTT() != 0, trip)
	}
	if got, want := r.requester.creditLimit-p.a.qp.sq.messages, uint64(3); got != want {
		t.Errorf("the peer has %d receives, want %d", got, want)
	}
}

// TestLoneReadRepeated: where a READ was sent twice, nobody knows which of the two was answered. So the response
// measures no round trip.
func TestLoneReadRepeated(t *testing.T) {
	p := loneRead(t)
	rec := &p.a.rc().recovery
	p.runUntil(rec.Gauges().AckDeadline)
	for rec.Nxt() != rec.Max() { // until it has left again
		p.transmit()
	}
	if n := len(p.packets(p.a, 0)); n < 2 {
		t.Fatalf("the READ was sent %d times, want twice", n)
	}
	p.answerRead(8, wire.CreditsUnlimited)
	p.a.wantSends(wc{1, verbs.WCSuccess})
	if rec.SRTT() != 0 {
		t.Errorf("a round trip of %v was measured, want none", rec.SRTT())
	}
}

// TestLoneReadNotOne: a response of another length than the READ's ends the READ, and a response to a SEND is of no
// use.
func TestLoneReadNotOne(t *testing.T) {
	p := loneRead(t)
	p.answerRead(7, wire.CreditsUnlimited)
	p.a.wantSends(wc{1, verbs.WCBadRespErr})
	p.a.wantState(verbs.QPStateErr)

	p = newPair(t, setup{})
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)))
	p.cutAfter(0)
	p.transmit()
	p.answerRead(8, wire.CreditsUnlimited)
	p.a.wantSends()
	p.a.wantState(verbs.QPStateRTS)
	if n := p.a.qp.Counters().Unexpected; n != 1 {
		t.Errorf("%d unexpected packets, want 1", n)
	}
}

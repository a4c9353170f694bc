package transport

import (
	"math/rand/v2"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// steadySeeds is how many long runs TestLossIsNoLateness makes of each case.
const steadySeeds = 4

// TestLossIsNoLateness: on a network that only loses, packets, requests and acknowledgements alike, nothing is late.
// So no patience is learnt, and next to nothing is sent again that had arrived. The runs are long, since patience
// once stayed.
func TestLossIsNoLateness(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		for _, c := range lossCases {
			if c.loss == 0 || testing.Short() && c.loss > .01 {
				continue
			}
			var sum lossResult
			for seed := range uint64(steadySeeds) {
				r := lossRun(t, op, c, true, seed+1, 32<<20)
				sum.repeated += r.repeated
				sum.dropped += r.dropped
			}
			if got := sum.perLoss(); got > 1.08 {
				t.Errorf("%v, %s: %.3f packets are repeated for one that is lost, want 1.08 at most", op, c.name, got)
			}
		}
	}
}

// TestPatienceAfterVain: what was taken for lost and comes twice makes for patience, once, though a READ's answer is many
// packets. What was not taken for lost makes for none.
func TestPatienceAfterVain(t *testing.T) {
	p := newPair(t, setup{selective: true})
	rec := &p.a.rc().recovery
	rec.leastTrip, rec.roundTrip = 8*ms, 8*ms
	rec.suspect(5, 8, 0)
	if rec.inVain(ms, 8) || rec.patience != 0 {
		t.Errorf("a packet that was not taken for lost: patience %v, want none", rec.patience)
	}
	if !rec.inVain(ms, 5) || rec.patience < 2*ms {
		t.Errorf("a packet that was: patience %v, want a quarter of a round trip and more", rec.patience)
	}
	before := rec.patience
	if !rec.inVain(ms, 6) || rec.patience != before {
		t.Errorf("another packet of the same: patience %v, want %v still", rec.patience, before)
	}
}

// TestPatienceIsMeasured: a packet that comes late and was not given up shows how much patience was needed. It stays
// while such packets come, and nothing is sent again in vain meanwhile.
func TestPatienceIsMeasured(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, selective: true, timeout: 18})
	const lateBy = testDelay * 4 / 5
	rnd := rand.New(rand.NewPCG(1, 0x6d656173))
	p.route = func(from *node, _ int, _ *wire.Packet) []delay {
		if from == p.a && rnd.IntN(16) == 0 {
			return []delay{testDelay + lateBy}
		}
		return []delay{testDelay}
	}
	rec := &p.a.rc().recovery
	repeated := uint64(0)
	for id := range uint64(200) {
		p.post(p.a, writeWR(id, p.b.mem.remote(0), p.a.mem.sge(0, 400*256)))
		p.run()
		p.a.polled(len(p.a.sends))
		if id == 9 {
			repeated = p.a.qp.Counters().Retransmits
		}
	}
	if got := p.a.qp.Counters().Retransmits; got != repeated || repeated == 0 {
		t.Errorf("%d packets are sent again at first and %d later, want some and none", repeated, got-repeated)
	}
	if rec.patience < lateBy || rec.patience > 2*lateBy {
		t.Errorf("patience of %v, want some more than the %v that packets are late", rec.patience, lateBy)
	}
}

// TestHeldRequestTells: a READ request that the peer holds tells that the one before it was lost. It is not sent again
// itself, and no probe is needed.
func TestHeldRequestTells(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, selective: true, timeout: 18})
	p.post(p.a, readWR(0, p.b.mem.remote(0), p.a.mem.sge(0, 256)))
	p.run()
	mark := len(p.log)
	lose := true
	p.routeWith(func(from *node, _ int, _ *wire.Packet) bool {
		if from == p.a && lose {
			lose = false
			return true
		}
		return false
	})
	for id := range uint64(3) {
		p.post(p.a, readWR(id+1, p.b.mem.remote(0), p.a.mem.sge(int(id+1)<<12, 8*256)))
		p.runUntil(p.now + testDelay/4)
	}
	p.run()
	p.a.wantSends(wc{0, 0}, wc{1, 0}, wc{2, 0}, wc{3, 0})
	c := p.a.qp.Counters()
	if n := len(p.packets(p.b, mark)); c.Probes != 0 || c.Retransmits != 1 || n > 3*8+3 {
		t.Errorf("%d probes, %d requests sent again, %d packets in answer; want 0, 1, and 24 and their acknowledgements", c.Probes, c.Retransmits, n)
	}
}

// TestRoundTripOfREADs: READs measure the round trip though each has lost a response, so that probes can go.
func TestRoundTripOfREADs(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, selective: true, timeout: 18})
	first := p.b.sent
	p.routeWith(func(from *node, n int, _ *wire.Packet) bool { return from == p.b && n == first })
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8*256)))
	p.runUntil(p.now + 3*testDelay)
	if rec := &p.a.rc().recovery; !rec.known || rec.roundTrip != 2*testDelay {
		t.Errorf("the round trip is %v, known: %v; want %v", rec.roundTrip, rec.known, 2*testDelay)
	}
}

// TestNoRoomNoPacket: the requester sends no more than the peer can keep behind a packet that is missing for long.
func TestNoRoomNoPacket(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, selective: true, timeout: 18})
	p.post(p.a, writeWR(0, p.b.mem.remote(0), p.a.mem.sge(0, 256)))
	p.run()
	missing := psn(p.a.rc().recovery.max)
	p.routeWith(func(from *node, _ int, pkt *wire.Packet) bool {
		return from == p.a && pkt.PSN == missing && p.now < 40*testDelay
	})
	for id := range uint64(16) {
		p.post(p.a, writeWR(id+1, p.b.mem.remote(0), p.a.mem.sge(0, 64*256)))
	}
	p.run()
	if n := len(p.a.sends); n != 17 {
		t.Fatalf("%d WRITEs are done, want 17", n)
	}
	if c := p.b.qp.Counters(); c.OutOfOrder != 0 || c.Held < maxHeld/2 {
		t.Errorf("%d packets are held and %d dropped, want many and none", c.Held, c.OutOfOrder)
	}
}

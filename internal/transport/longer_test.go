package transport

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// longerRun moves messages for a time over a path that takes 1 ms, and for another time once the path takes 50 ms. It
// returns the packets that each round trip has brought in the latest third.
func longerRun(t *testing.T, op verbs.Opcode, selective bool, seed uint64) float64 {
	p := newPair(t, setup{mtu: verbs.MTU256, timeout: 18, rd: 16, selective: selective, fresh: true})
	const message = 64 << 10
	l := &lossPath{rnd: rand.New(rand.NewPCG(seed, 0x70617468)), rate: 500e6, oneWay: ms / 2, buffer: time.Second,
		loss: 1 / 2000., busy: map[*node]time.Duration{}, sender: p.a}
	if op == verbs.OpRDMARead {
		l.sender = p.b
	}
	p.route = l.route(p)
	const longer, end = 200 * ms, 45 * time.Second
	done, from := 0, 0
	for posted := uint64(0); p.now < end; {
		for ; posted-uint64(done) < 8; posted++ {
			off := int(posted%8) * message
			wr := writeWR(posted, p.b.mem.remote(off), p.a.mem.sge(off, message))
			wr.Op = op
			p.post(p.a, wr)
		}
		p.log = p.log[:0]
		if !p.step(end) {
			break
		}
		if p.now > longer {
			l.oneWay = 25 * ms
		}
		for _, s := range p.a.sends[done:] {
			if s.wc.Status != verbs.WCSuccess {
				t.Fatalf("seed %d: %v, want success", seed, s.wc.Err())
			}
		}
		if done = len(p.a.sends); done > 0 {
			p.a.polled(done)
		}
		if p.now < 2*end/3 {
			from = done
		}
	}
	return float64((done-from)*message/256) / (end / 3).Seconds() * l.oneWay.Seconds() * 2
}

// TestLongerPathFills: on a path that has become longer the window soon is as large as on a path that always was.
// Rare losses halve the window no more often than elsewhere.
func TestLongerPathFills(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		if op == verbs.OpRDMARead && testing.Short() {
			continue // the race detector's time
		}
		if got := longerRun(t, op, true, 1); got < .8*maxWindow {
			t.Errorf("seed 1, %v: %.0f packets in a round trip, want %d about", op, got, maxWindow)
		} else {
			t.Logf("%v: %.0f packets in a round trip", op, got)
		}
	}
}

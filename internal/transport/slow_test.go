package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// slowPair is a pair on a path that loses nothing, whose end b stands still for a stall in each period.
func slowPair(t *testing.T, s setup, period, stall time.Duration) *pair {
	p := measuredPair(t, s)
	p.route = func(from *node, _ int, _ *wire.Packet) []delay {
		at := p.now + 500*us
		if phase := at % period; from == p.a && phase >= period-stall {
			at += period - phase
		}
		return []delay{at - p.now}
	}
	return p
}

// moves sends messages one after the other for a time.
func (p *pair) moves(d time.Duration, read bool) {
	id := uint64(len(p.a.sends))
	for end := p.now + d; p.now < end; id++ {
		wr := writeWR(id, p.b.mem.remote(0), p.a.mem.sge(0, 3*256))
		if read {
			wr.Op = verbs.OpRDMARead
		}
		p.post(p.a, wr)
		p.run()
		p.a.polled(len(p.a.sends))
	}
}

// TestSlowPeerIsKnown: a peer that stands still for 20 ms now and then has lost no packet. The first time it is
// probed. Its answer to the probe then shows that it was slow, and it is probed no more.
func TestSlowPeerIsKnown(t *testing.T) {
	const period, stall = 300 * ms, 20 * ms
	for i := range 8 {
		selective, read, single := i&1 != 0, i&2 != 0, i&4 != 0
		t.Run(fmt.Sprintf("selective %v, READs %v, packets one by one %v", selective, read, single), func(t *testing.T) {
			p := slowPair(t, setup{mtu: verbs.MTU256, timeout: 18, selective: selective}, period, stall)
			p.single = single // answers that b sends one by one
			p.moves(2*period, read)
			first := p.a.qp.Counters()
			p.moves(10*period, read)
			later := p.a.qp.Counters()
			if first.Probes == 0 || first.NeedlessProbes != first.Probes {
				t.Errorf("of %d probes %d were needless, by b's answers and their times; want all, and some", first.Probes, first.NeedlessProbes)
			}
			if later.Probes != first.Probes {
				t.Errorf("%d probes later, want none: each stall is as long as the first", later.Probes-first.Probes)
			}
			if later.Unexpected != 0 {
				t.Errorf("%d packets nobody expected, want the answers to probes counted as these", later.Unexpected)
			}
		})
	}
}

// TestSlowPeerAnswersApart: a slow peer that acknowledges three messages one by one is recognized too. After the
// first acknowledgement alone the others may still be lost.
func TestSlowPeerAnswersApart(t *testing.T) {
	const period, stall = 300 * ms, 20 * ms
	for _, selective := range []bool{false, true} {
		p := slowPair(t, setup{mtu: verbs.MTU256, timeout: 18, selective: selective}, period, stall)
		p.single = true
		moves := func(d time.Duration) {
			for end := p.now + d; p.now < end; {
				for id := range uint64(3) {
					p.post(p.a, writeWR(id, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
				}
				p.run()
				p.a.polled(len(p.a.sends))
			}
		}
		moves(2 * period)
		first := p.a.qp.Counters()
		moves(10 * period)
		later := p.a.qp.Counters()
		if first.Probes == 0 || first.NeedlessProbes != first.Probes {
			t.Errorf("selective %v: of %d probes %d were needless, want all, and some", selective, first.Probes, first.NeedlessProbes)
		}
		if later.Probes != first.Probes {
			t.Errorf("selective %v: %d probes later, want none: each stall is as long as the first", selective, later.Probes-first.Probes)
		}
	}
}

// TestOutageIsNotSlowness: a path whose RTT was measured with many packets in flight, which took long, is interrupted
// for a moment. The answers to probes then come earlier than any before. They are no sign that the peer is slow: the
// other packets were lost, and go again together.
func TestOutageIsNotSlowness(t *testing.T) {
	const outage = 30 * ms
	for _, selective := range []bool{false, true} {
		p := newPair(t, setup{mtu: verbs.MTU256, timeout: 18, selective: selective})
		way, cut := 4*ms, false
		p.route = func(from *node, _ int, _ *wire.Packet) []delay {
			if cut {
				return nil
			}
			return []delay{way}
		}
		write := func(id uint64) {
			p.post(p.a, writeWR(id, p.b.mem.remote(0), p.a.mem.sge(0, 50*256)))
			p.run()
			p.a.polled(len(p.a.sends))
		}
		write(1)
		cut, way = true, 100*us
		p.post(p.a, writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 50*256)))
		end := p.now + outage
		p.runUntil(end)
		cut = false
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0})
		if took := p.now - end; took > 200*ms {
			t.Errorf("selective %v: after an outage of %v the WRITE takes %v more, want a few probe timeouts", selective, outage, took)
		}
		if c := p.a.qp.Counters(); c.NeedlessProbes > 0 || c.Probes > 8 {
			t.Errorf("selective %v: %d probes, and %d counted as needless; want 8 at most, and none", selective, c.Probes, c.NeedlessProbes)
		}
	}
}

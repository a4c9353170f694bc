package transport

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// inBursts returns a pair whose end a sends in bursts.
func inBursts(t *testing.T) *pair {
	p := newPair(t, setup{mtu: verbs.MTU256, fresh: true})
	rec := &p.a.rc().recovery
	rec.StartBursts()
	return p
}

// TestBurst: toward a peer that goes back a burst leaves at once, and only its last packet asks for an
// acknowledgement. The next burst follows when all of the first is acknowledged, not before. Work requests that are
// posted meanwhile wait.
func TestBurst(t *testing.T) {
	p := inBursts(t)
	const packets = 2*recovery.BurstWindow + 3
	p.post(p.a, writeWR(0, p.b.mem.remote(0), p.a.mem.sge(0, (packets-2)*256)))
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 100)))
	p.post(p.a, writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 100)))
	p.run()
	type burst struct {
		at   time.Duration
		n    int
		asks []int // the places of the packets that ask
	}
	var bursts []burst
	for _, s := range p.packets(p.a, 0) {
		if len(bursts) == 0 || s.at != bursts[len(bursts)-1].at {
			bursts = append(bursts, burst{at: s.at})
		}
		b := &bursts[len(bursts)-1]
		if b.n++; s.AckReq {
			b.asks = append(b.asks, b.n)
		}
	}
	if len(bursts) != 3 || bursts[0].n != recovery.BurstWindow || bursts[1].n != recovery.BurstWindow || bursts[2].n != 3 {
		t.Fatalf("bursts %v, want two of %d packets and one of 3", bursts, recovery.BurstWindow)
	}
	for i, b := range bursts[:2] {
		if len(b.asks) != 1 || b.asks[0] != recovery.BurstWindow {
			t.Errorf("of burst %d packets %v ask, want the last", i, b.asks)
		}
		if next := bursts[i+1].at; next != b.at+2*testDelay {
			t.Errorf("burst %d leaves %v after the one before it, want a round trip, %v", i+1, next-b.at, 2*testDelay)
		}
	}
	if len(p.a.sends) != 3 {
		t.Errorf("%d completions, want 3", len(p.a.sends))
	}
}

// TestBurstBesideREAD: a READ goes beside a burst, and a WRITE behind it begins the next burst when the READ has its
// response.
func TestBurstBesideREAD(t *testing.T) {
	p := inBursts(t)
	read := writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 100))
	read.Op = verbs.OpRDMARead
	p.post(p.a, writeWR(0, p.b.mem.remote(0), p.a.mem.sge(0, recovery.BurstWindow*256)), read, writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 100)))
	p.run()
	sent := p.packets(p.a, 0)
	if len(sent) != recovery.BurstWindow+2 || sent[recovery.BurstWindow].Opcode != wire.RCRDMAReadRequest || sent[recovery.BurstWindow].at != sent[0].at || sent[recovery.BurstWindow+1].at != sent[0].at+2*testDelay {
		t.Errorf("%d packets, want %d and a READ at once, and a WRITE a round trip later", len(sent), recovery.BurstWindow)
	}
	if len(p.a.sends) != 3 {
		t.Errorf("%d completions, want 3", len(p.a.sends))
	}
}

// TestBurstEnds: where losses have become rare, the window has grown, and slides again.
func TestBurstEnds(t *testing.T) {
	p := inBursts(t)
	rec := &p.a.rc().recovery
	packets := uint64(0)
	for rec.Gauges().Bursts && packets < 1<<16 {
		p.post(p.a, writeWR(0, p.b.mem.remote(0), p.a.mem.sge(0, 64*256)))
		p.run()
		packets += 64
	}
	if rec.Gauges().Bursts || packets < recovery.BurstEnds || rec.Gauges().Window < recovery.BurstEnds {
		t.Errorf("bursts, on: %v, after %d packets without a loss, and a window of %d; want that they end at %d, not before", rec.Gauges().Bursts, packets, rec.Gauges().Window, recovery.BurstEnds)
	}
}

// wakingHost is a path to a host that needs long to wake for a packet, as an emulated guest does, unless the packet
// comes right behind another one.
type wakingHost struct {
	rnd        *rand.Rand
	loss       float64
	to         *node
	came, busy time.Duration // when the latest packet came, and until when the host is busy
	lost       int
}

func (h *wakingHost) route(p *pair) func(from *node, _ int, pkt *wire.Packet) []delay {
	return func(from *node, _ int, _ *wire.Packet) []delay {
		const wake, each, way = 100 * us, 30 * us, 20 * us
		if from == h.to {
			return []delay{way}
		}
		if h.rnd.Float64() < h.loss {
			h.lost++
			return nil
		}
		at := p.now + way
		takes := each
		if at > h.came {
			takes += wake
		}
		h.came, h.busy = at, max(h.busy, at)+takes
		return []delay{h.busy - p.now}
	}
}

// TestBurstsToHostThatWakes: to such a host bursts prove better, and bring more than a window that slides, without
// more repeats.
func TestBurstsToHostThatWakes(t *testing.T) {
	const size, count = 64 << 10, 512
	run := func(slide bool) (rate, perLoss float64) {
		p := newPair(t, setup{mtu: verbs.MTU1024, timeout: 14, fresh: true})
		h := &wakingHost{rnd: rand.New(rand.NewPCG(1, 2)), loss: .01, to: p.b}
		p.route = h.route(p)
		rec := &p.a.rc().recovery
		sent := 0
		for posted := 0; len(p.a.sends) < count; {
			for ; posted < count && posted-len(p.a.sends) < 16; posted++ {
				if len(p.a.sends) > 0 {
					p.a.polled(len(p.a.sends))
				}
				p.post(p.a, writeWR(uint64(posted), p.b.mem.remote(0), p.a.mem.sge(0, size)))
			}
			sent += len(p.packets(p.a, 0))
			p.log = p.log[:0]
			if slide {
				rec.StopBursts()
			}
			if !p.step(Never - 1) {
				t.Fatalf("nothing happens any more, and %d of %d messages are done", len(p.a.sends), count)
			}
		}
		return float64(count*size) / p.now.Seconds() / 1e6, float64(sent-count*size/1024) / float64(h.lost)
	}
	sliding, sRepeats := run(true)
	rate, repeats := run(false)
	t.Logf("%.1f MB/s and %.1f repeats for a loss; with a window that slides %.1f and %.1f", rate, repeats, sliding, sRepeats)
	if rate < 1.2*sliding || repeats > 8 {
		t.Errorf("%.1f MB/s and %.1f repeats for a loss, want 1.2 times the %.1f of a window that slides, and 8", rate, repeats, sliding)
	}
}

package transport

import (
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// measuredPair is a pair whose end a knows the round trip.
func measuredPair(t *testing.T, s setup) *pair {
	t.Helper()
	p := newPair(t, s)
	p.post(p.a, writeWR(0, p.b.mem.remote(0)))
	p.run()
	p.a.wantSends(wc{0, 0})
	return p
}

// TestProbeTail: the last packets before a silence are lost, and a probe brings them through after some silence, long
// before the acknowledge timeout: the last packet of a message, messages of a packet, READs.
func TestProbeTail(t *testing.T) {
	for name, post := range map[string]func(p *pair){
		"end of a WRITE": func(p *pair) { p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 20*256))) },
		"WRITEs": func(p *pair) {
			for id := range uint64(20) {
				p.post(p.a, writeWR(id+1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
			}
		},
		"READ": func(p *pair) { p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8))) },
		"READs": func(p *pair) {
			for id := range uint64(4) {
				p.post(p.a, readWR(id+1, p.b.mem.remote(0), p.a.mem.sge(0, 20*256)))
			}
		},
	} {
		for _, end := range []string{"a", "b"} { // whose packets are lost
			p := measuredPair(t, setup{mtu: verbs.MTU256, timeout: 18}) // a second
			lossy := p.a
			if end == "b" {
				lossy = p.b
			}
			begin := p.now
			p.routeWith(func(from *node, n int, _ *wire.Packet) bool {
				return from == lossy && p.now < begin+2*testDelay && n != 2
			})
			post(p)
			p.run()
			for _, s := range p.a.sends {
				if s.wc.Status != verbs.WCSuccess {
					t.Errorf("%s, packets of %s lost: %v, want success", name, end, s.wc.Err())
				}
			}
			if c, took := p.a.qp.Counters(), p.now-begin; c.Timeouts != 0 || took > 3*recovery.MinPTO || len(p.a.sends) < 2 {
				t.Errorf("%s, packets of %s lost: %d completions after %v, %+v; want all within %v, by probes", name, end, len(p.a.sends), took, c, 3*recovery.MinPTO)
			}
		}
	}
}

// TestProbesKeepReorderWindow: a dead peer counts as dead when the acknowledge timeout has come retry_cnt times and
// once more, neither earlier nor later. Until then probes go, each after twice the time.
func TestProbesKeepReorderWindow(t *testing.T) {
	const timeout, retry = 14, 2
	p := measuredPair(t, setup{timeout: timeout, retry: retry})
	p.routeWith(func(*node, int, *wire.Packet) bool { return true })
	begin := p.now
	p.post(p.a, writeWR(1, p.b.mem.remote(0)))
	p.run()
	p.a.wantSends(wc{0, 0}, wc{1, verbs.WCRetryExceeded})
	wait := wire.ACKTimeout(timeout)
	if took, want := p.now-begin, (retry+1)*wait; took != want {
		t.Errorf("given up after %v, want %v", took, want)
	}
	var got, want []time.Duration
	for _, at := range p.times(p.a, 1) {
		got = append(got, at-begin)
	}
	for i := range retry + 1 {
		from := time.Duration(i) * wait
		want = append(want, from)
		for d, step := time.Duration(recovery.MinPTO), time.Duration(recovery.MinPTO); d < wait; d += step {
			want = append(want, from+d)
			step *= 2
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("sent at %v, want %v", got, want)
	}
}

// TestLate: late acknowledgements make a few packets go again, and narrow no window for long.
func TestLate(t *testing.T) {
	p := measuredPair(t, setup{mtu: verbs.MTU256, timeout: 14})
	late := 3 * recovery.MinPTO
	p.route = func(from *node, n int, _ *wire.Packet) []delay {
		if from == p.b && p.now < 2*recovery.MinPTO {
			return []delay{late}
		}
		return []delay{testDelay}
	}
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3*maxWindow*256)))
	p.run()
	p.a.wantSends(wc{0, 0}, wc{1, 0})
	if c := p.a.qp.Counters(); c.Retransmits > 4 || c.Timeouts != 0 {
		t.Errorf("%+v, want 4 packets sent again at most, and no timeout", c)
	}
	if w := p.a.rc().recovery.Gauges().Window; w != maxWindow {
		t.Errorf("the window is %d, want %d: nothing was lost", w, maxWindow)
	}
}

// TestTakenBack: packets that were to be sent again after a restart, and are acknowledged before, were not lost. The
// window is restored.
func TestTakenBack(t *testing.T) {
	p := measuredPair(t, setup{mtu: verbs.MTU256, timeout: 14})
	p.cutAfter(0)
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 100*256)))
	p.transmit()
	p.runUntil(p.now + recovery.MinPTO + us) // the probe has gone
	p.runUntil(p.now + 2*testDelay)
	p.inject(p.a, ackOf(1)) // as if the rest were lost
	p.transmit()
	rec := &p.a.rc().recovery
	if rec.Gauges().Window >= recovery.LossWindow || rec.Gauges().SSThresh == maxWindow {
		t.Fatalf("the window is %d and grows quickly to %d, want a restart", rec.Gauges().Window, rec.Gauges().SSThresh)
	}
	p.inject(p.a, ackOf(60))
	if c := p.a.qp.Counters(); rec.Gauges().Window != maxWindow || rec.Gauges().SSThresh != maxWindow || c.Needless != 1 {
		t.Errorf("the window is %d and grows quickly to %d, want %d for both; %+v", rec.Gauges().Window, rec.Gauges().SSThresh, maxWindow, c)
	}
	n := len(p.log)
	p.transmit()
	if k := len(p.log) - n; k != 0 {
		t.Errorf("%d packets are sent again, want none", k)
	}
}

// TestSignsCostOneRetry: if repeated packets get lost again, that costs no further retries: the peer answers.
func TestSignsCostOneRetry(t *testing.T) {
	p := measuredPair(t, setup{timeout: 14, retry: 1})
	p.cutAfter(0)
	p.post(p.a, writeWR(1, p.b.mem.remote(0)), writeWR(2, p.b.mem.remote(0)))
	p.transmit()
	for range 8 {
		p.runUntil(p.now + recovery.MinPTO)
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: 1}, AETH: wire.AETH{Syndrome: 0x60}})
		p.transmit()
	}
	p.a.wantState(verbs.QPStateRTS)
	p.run()
	p.a.wantSends(wc{0, 0}, wc{1, verbs.WCRetryExceeded}, wc{2, verbs.WCFlushErr})
}

// TestNAKsBehindREAD: while a READ's responses are lost, the peer goes on, and may miss packet after packet behind
// the READ. These losses cost no retry.
func TestNAKsBehindREAD(t *testing.T) {
	p := measuredPair(t, setup{timeout: 14, retry: 2})
	p.cutAfter(0)
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	for id := range uint64(12) {
		p.post(p.a, writeWR(id+2, p.b.mem.remote(0)))
	}
	p.transmit()
	for psn := range wire.PSN(10) {
		p.runUntil(p.now + 10*us)
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: psn + 3}, AETH: wire.AETH{Syndrome: 0x60}})
		p.transmit()
	}
	p.a.wantState(verbs.QPStateRTS)
}

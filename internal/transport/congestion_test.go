package transport

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestFirstBurst: how many packets a QP sends before the first acknowledgement.
func TestFirstBurst(t *testing.T) {
	for name, x := range map[string]struct {
		s    setup
		want int
	}{
		"to a peer that goes back":             {setup{fresh: true}, recovery.FirstWindow},
		"to one that repeats selectively":      {setup{fresh: true, selective: true}, maxWindow},
		"by shared memory":                     {setup{fresh: true, lends: true}, maxWindow},
		"to a peer that goes back, some later": {setup{}, maxWindow},
	} {
		p := newPair(t, x.s)
		const n = 300
		p.post(p.a, verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{p.a.mem.sge(0, n*1024)}, Remote: p.b.mem.remote(0)})
		p.transmit()
		got := 0
		for _, s := range p.log {
			got += max(1, s.run)
		}
		if got != x.want {
			t.Errorf("%s: %d packets leave at once, want %d", name, got, x.want)
		}
	}
	p := newPair(t, setup{fresh: true})
	if err := p.a.qp.SetCongestionControl(verbs.CongestionDCQCN); err != nil {
		t.Fatal(err)
	}
	if got := p.a.rc().recovery.Gauges().Window; got != maxWindow {
		t.Errorf("with a controller that paces the first window is %d, want %d", got, maxWindow)
	}
}

// TestNarrowReads: a window that losses have narrowed still takes two chunks of a READ, so that something
// follows the end of the first. After a restart it takes one.
func TestNarrowReads(t *testing.T) {
	for window, want := range map[uint64]int{maxWindow: maxWindow / readChunk, recovery.LossWindow: 2, recovery.RestartWindow: 1} {
		p := newPair(t, setup{mtu: verbs.MTU256, timeout: 8, noRetry: true})
		p.a.rc().recovery.SetWindow(window)
		p.cutAfter(0)
		p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*2*maxWindow)))
		p.run()
		if got := len(p.packets(p.a, 0)); got != want {
			t.Errorf("with a window of %d: %d requests for chunks of a READ go out, want %d", window, got, want)
		}
	}
}

// TestControlEndsWait: packets that one congestion control has held back go as soon as another one takes its place.
// At the least rates the wait may be a second.
func TestControlEndsWait(t *testing.T) {
	for _, held := range []verbs.CongestionControl{verbs.CongestionDelay, verbs.CongestionDCQCN} {
		p := newPair(t, setup{})
		if err := p.a.qp.SetCongestionControl(held); err != nil {
			t.Fatal(err)
		}
		p.a.qp.rate.Fix(1000) // bytes in a second
		for i := range uint64(2) {
			p.post(p.a, writeWR(i, p.b.mem.remote(0), p.a.mem.sge(0, 100)))
		}
		if p.transmit(); len(p.packets(p.a, 0)) != 1 {
			t.Fatalf("%v: %d packets at 1000 bytes in a second, want one", held, len(p.packets(p.a, 0)))
		}
		if err := p.a.qp.SetCongestionControl(verbs.CongestionWindow); err != nil {
			t.Fatal(err)
		}
		if p.transmit(); len(p.packets(p.a, 0)) != 2 {
			t.Errorf("%v: %d packets once the window takes its place, want both", held, len(p.packets(p.a, 0)))
		}
	}

	p := newPair(t, setup{})
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 100)))
	p.runUntil(2 * testDelay) // the peer has no receive
	until := p.a.rc().recovery.Gauges().WaitUntil
	if err := p.a.qp.SetCongestionControl(verbs.CongestionDCQCN); err != nil {
		t.Fatal(err)
	}
	if got := p.a.rc().recovery.Gauges().WaitUntil; got != until || got == Never {
		t.Errorf("the wait for a receive ends at %v with another congestion control, want %v as before", got, until)
	}
}

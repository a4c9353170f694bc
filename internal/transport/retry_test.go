package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// times returns when an end sent packets that have the PSN.
func (p *pair) times(e *node, psn wire.PSN) []time.Duration {
	var at []time.Duration
	for _, s := range p.packets(e, 0) {
		if s.PSN == psn {
			at = append(at, s.at)
		}
	}
	return at
}

// TestTimeout: tries are 4.096 µs × 2^timeout apart, and there are retry_cnt of them after the first.
func TestTimeout(t *testing.T) {
	for _, timeout := range []uint8{1, 2, 8, 14, 31} {
		for retry := uint8(0); retry <= 7; retry++ {
			p := newPair(t, setup{timeout: timeout, retry: retry, noRetry: true})
			p.cutAfter(0)
			p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
			p.run()
			wait := 4096 * time.Nanosecond << timeout
			tries := p.times(p.a, 0)
			if len(tries) != int(retry)+1 {
				t.Errorf("timeout %d, retry_cnt %d: %d tries, want %d", timeout, retry, len(tries), retry+1)
			}
			for i, at := range tries {
				if at != time.Duration(i)*wait {
					t.Errorf("timeout %d, retry_cnt %d: try %d at %v, want %v", timeout, retry, i, at, time.Duration(i)*wait)
				}
			}
			if want := time.Duration(retry+1) * wait; p.now != want {
				t.Errorf("timeout %d, retry_cnt %d: given up at %v, want %v", timeout, retry, p.now, want)
			}
			p.a.wantSends(wc{1, verbs.WCRetryExceeded})
			if c := p.a.qp.Counters(); c.Timeouts != uint64(retry)+1 || c.Retransmits != uint64(retry) {
				t.Errorf("counters %+v, want %d timeouts and %d packets sent again", c, retry+1, retry)
			}
		}
	}
}

// TestTimeoutNever: with timeout 0 the requester waits for ever.
func TestTimeoutNever(t *testing.T) {
	p := newPair(t, setup{noTimeout: true})
	p.cutAfter(0)
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.run()
	p.a.wantSends()
	if got := p.a.qp.NextTimeout(); got != Never || len(p.log) != 1 {
		t.Errorf("timeout 0: next timeout %v, %d packets; want never and 1", got, len(p.log))
	}
}

// TestTimeoutRestarts: the timer counts from the latest progress, and stops when all is done.
func TestTimeoutRestarts(t *testing.T) {
	p := newPair(t, setup{})
	wait := wire.ACKTimeout(testTimeout)
	p.routeWith(func(from *node, n int, pkt *wire.Packet) bool { return from == p.a && pkt.PSN == 2 && n < 10 })
	p.post(p.a, writeWR(1, p.b.mem.remote(0)))
	p.runUntil(2 * testDelay)
	if got := p.a.qp.NextTimeout(); got != Never {
		t.Errorf("the timer ends at %v, want never: nothing is outstanding", got)
	}
	p.runUntil(ms)
	p.post(p.a, writeWR(2, p.b.mem.remote(0)))
	p.runUntil(ms + testDelay)
	p.post(p.a, writeWR(3, p.b.mem.remote(0)))
	p.runUntil(ms + 2*testDelay) // the ACK of work request 2 has come
	if got, want := p.a.rc().recovery.Gauges().AckDeadline, ms+2*testDelay+wait; got != want {
		t.Errorf("the timer ends at %v, want %v", got, want)
	}
	p.runUntil(2 * ms)
}

// TestRetryReloads: any progress gives all retries back.
func TestRetryReloads(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, retry: 2})
	// Each PSN is lost twice, then comes through: 20 losses with 2 retries.
	p.routeWith(func(from *node, n int, pkt *wire.Packet) bool {
		return from == p.a && len(p.times(p.a, pkt.PSN)) < 2
	})
	for id := range uint64(10) {
		p.post(p.a, writeWR(id, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		p.run()
	}
	if n := len(p.a.sends); n != 10 || p.a.sends[9].wc.Status != verbs.WCSuccess {
		t.Errorf("%d completions, %v; want 10 successes", n, p.a.sends)
	}

	// The same with RNR NAKs: three for each of ten messages, with rnr_retry 3.
	p = newPair(t, setup{rnrRetry: 3})
	for id := range uint64(10) {
		p.post(p.a, sendWR(id))
	}
	naks := 0
	for p.step(Never - 1) {
		if last := p.log[len(p.log)-1]; last.from == p.b && last.AETH.Syndrome.Kind() == wire.KindRNR && int(p.a.qp.Counters().RNRNAKs) > naks {
			if naks++; naks%3 == 0 {
				p.b.postRecv(uint64(naks))
			}
		}
	}
	if n := len(p.a.sends); n != 10 || naks != 30 {
		t.Errorf("%d completions after %d RNR NAKs, want 10 after 30", n, naks)
	}
}

// TestRNRTimer: the requester waits exactly as long as the responder's table entry says.
func TestRNRTimer(t *testing.T) {
	want := []float64{655.36, .01, .02, .03, .04, .06, .08, .12, .16, .24, .32, .48, .64, .96, 1.28, 1.92, 2.56, 3.84, 5.12, 7.68,
		10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52}
	for code, w := range want {
		p := newPair(t, setup{})
		p.modify(p.b, &verbs.QPAttr{MinRNRTimer: uint8(code)}, verbs.MaskMinRNRTimer)
		p.post(p.a, sendWR(1), sendWR(2))
		p.runUntil(2 * testDelay)
		if got := p.last(p.b); got.AETH.Syndrome != wire.Syndrome(0x20|code) || got.PSN != 0 {
			t.Errorf("code %d: %v of PSN %v, want an RNR NAK with this code of PSN 0", code, got.AETH, got.PSN)
		}
		p.b.postRecv(1)
		p.b.postRecv(2)
		p.run()
		at := p.times(p.a, 0)
		if d := time.Duration(w*1e6) * time.Nanosecond; len(at) != 2 || at[1] != 2*testDelay+d {
			t.Errorf("code %d: sent at %v, want a wait of %v", code, at, d)
		}
		p.a.wantSends(wc{1, 0}, wc{2, 0})
		p.b.wantRecvs(wc{1, 0}, wc{2, 0})
	}
}

// TestRNRRetry: rnr_retry 0 to 6 counts, 7 goes on without end.
func TestRNRRetry(t *testing.T) {
	for n := uint8(0); n <= 7; n++ {
		p := newPair(t, setup{rnrRetry: n, rnrLimit: true, noRetry: true}) // RNR costs no retry_cnt
		p.post(p.a, sendWR(1), sendWR(2))
		p.runUntil(100 * ms)
		if n == 7 {
			if tries := len(p.times(p.a, 0)); tries < 1000 {
				t.Errorf("rnr_retry 7: %d tries in 100 ms, want 1000 at least", tries)
			}
			p.a.wantSends()
			continue
		}
		if tries := len(p.times(p.a, 0)); tries != int(n)+1 {
			t.Errorf("rnr_retry %d: %d tries, want %d", n, tries, n+1)
		}
		p.a.wantSends(wc{1, verbs.WCRNRRetryExceeded}, wc{2, verbs.WCFlushErr})
		p.b.wantState(verbs.QPStateRTS)
	}
}

// TestRNRLoss: a peer that has no receive for long is alive. Lost RNR NAKs do not use up retry_cnt, which is for
// silent peers.
func TestRNRLoss(t *testing.T) {
	p := newPair(t, setup{retry: 2, timeout: 8, rnrTimer: 1})
	answers := 0
	p.route = func(from *node, n int, pkt *wire.Packet) []delay {
		if from == p.b {
			if answers++; answers%3 == 0 {
				return nil
			}
		}
		return []delay{testDelay}
	}
	p.post(p.a, sendWR(1))
	p.runUntil(50 * ms)
	if lost := answers / 3; lost < 10 {
		t.Fatalf("%d RNR NAKs were lost, want many more than retry_cnt", lost)
	}
	p.b.postRecv(7)
	p.run()
	p.a.wantSends(wc{1, 0})
	p.b.wantRecvs(wc{7, 0})

	p.cutAfter(0) // and a peer that is silent then is given up as before
	p.post(p.a, sendWR(2))
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, verbs.WCRetryExceeded})
}

// TestRNRInside: a WRITE with immediate finds no receive at its last packet. Only that packet is sent again, and its
// data are not placed before.
func TestRNRInside(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	clear(p.b.mem.data)
	p.post(p.a, withImm(writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 600)), 9))
	p.runUntil(2 * testDelay)
	if p.b.mem.data[511] == 0 && p.b.mem.data[510] == 0 {
		t.Error("the first two packets are not placed")
	}
	for _, b := range p.b.mem.data[512:] {
		if b != 0 {
			t.Fatal("the last packet is placed without a receive")
		}
	}
	p.b.postRecv(7)
	p.run()
	p.a.wantSends(wc{1, 0})
	p.b.wantRecvs(wc{7, 0})
	if n := len(p.times(p.a, 0)) + len(p.times(p.a, 1)); n != 2 || len(p.times(p.a, 2)) != 2 {
		t.Errorf("%d packets were sent before the refused one, and it %d times; want 2 and twice", n, len(p.times(p.a, 2)))
	}
}

// TestRNRRepeated: an RNR NAK that comes twice costs one retry and one wait.
func TestRNRRepeated(t *testing.T) {
	p := newPair(t, setup{rnrRetry: 1, rnrLimit: true, rnrTimer: 14})
	p.route = func(from *node, n int, pkt *wire.Packet) []delay {
		if from == p.b {
			return []delay{testDelay, 3 * testDelay}
		}
		return []delay{testDelay}
	}
	p.post(p.a, sendWR(1))
	p.runUntil(ms)
	p.b.postRecv(7)
	p.run()
	p.a.wantSends(wc{1, 0})
	if at := p.times(p.a, 0); len(at) != 2 || at[1] != 2*testDelay+1280*us {
		t.Errorf("sent at %v, want twice, the second time at %v", at, 2*testDelay+1280*us)
	}
}

// TestNAKOnce: a gap is reported once, however many packets follow it.
func TestNAKOnce(t *testing.T) {
	for _, single := range []bool{false, true} {
		p := newPair(t, setup{mtu: verbs.MTU256})
		p.single = single
		p.routeWith(func(from *node, n int, pkt *wire.Packet) bool { return from == p.a && n == 3 })
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 20*256)))
		p.run()
		naks := 0
		for _, s := range p.packets(p.b, 0) {
			if s.AETH.Syndrome.Kind() == wire.KindNAK {
				naks++
				if s.PSN != 3 || s.AETH.Syndrome != 0x60 {
					t.Errorf("NAK %v %v, want 0x60 of PSN 3", s.PSN, s.AETH)
				}
			}
		}
		if c := p.a.qp.Counters(); naks != 1 || c.SequenceNAKs != 1 || c.Timeouts != 0 {
			t.Errorf("%d NAKs, counters %+v; want one sequence NAK and no timeout", naks, c)
		}
		p.a.wantSends(wc{1, 0})
	}
}

// TestNAKLost: a probe makes up for a lost NAK. Where the peer has not answered yet, the timeout does, and other
// losses cost a quarter of one.
func TestNAKLost(t *testing.T) {
	for _, known := range []bool{true, false} {
		p := newPair(t, setup{mtu: verbs.MTU256, timeout: 14}) // 67 ms
		first := 0
		if known {
			p.post(p.a, writeWR(0, p.b.mem.remote(0)))
			p.run()
			first = 1
		}
		p.routeWith(func(from *node, n int, pkt *wire.Packet) bool {
			return from == p.a && n == first+3 || from == p.b && n == first
		})
		begin := p.now
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 20*256)))
		p.run()
		if n := len(p.a.sends); n != first+1 {
			t.Errorf("round trip known: %v: %d completions, want %d", known, n, first+1)
		}
		// The first probe is a packet that the peer has had, the second one is a packet that it lacks.
		c, took := p.a.qp.Counters(), p.now-begin
		if known && (c.Timeouts != 0 || c.Probes != 2 || took > 2*recovery.MinPTO+ms) || !known && (c.Timeouts != 1 || c.Probes != 2 || took > 85*ms) {
			t.Errorf("round trip known: %v: %+v after %v, want two probes, and one timeout where it is not", known, c, took)
		}
	}
}

// TestSequenceNAKCostsRetry: a peer that only ever NAKs does not keep the requester busy for ever.
func TestSequenceNAKCostsRetry(t *testing.T) {
	p := newPair(t, setup{retry: 3})
	p.cutAfter(0)
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.transmit()
	for range 50 {
		p.answer(0, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge}, AETH: wire.AETH{Syndrome: 0x60}})
		p.runUntil(p.now + 10*us)
	}
	if n := len(p.times(p.a, 0)); n != 2 {
		t.Errorf("NAKs for one loss made %d tries, want 2", n)
	}
	p.run()
	p.a.wantSends(wc{1, verbs.WCRetryExceeded})
	// Without a retry the first NAK is the end, also where no timeout would be.
	p = newPair(t, setup{noRetry: true, noTimeout: true})
	p.cutAfter(0)
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.transmit()
	p.answer(0, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge}, AETH: wire.AETH{Syndrome: 0x60}})
	p.runUntil(p.now + 10*us)
	p.a.wantSends(wc{1, verbs.WCRetryExceeded})
}

// TestGhostAck: acknowledgements of packets that were not sent, or are acknowledged, change nothing.
func TestGhostAck(t *testing.T) {
	for _, first := range []verbs.PSN{0, 0xffffff, 0x800000} {
		p := newPair(t, setup{psnA: first})
		p.post(p.a, writeWR(1, p.b.mem.remote(0)))
		p.run()
		p.cutAfter(0)
		p.post(p.a, writeWR(2, p.b.mem.remote(0)))
		p.transmit()
		for _, n := range []int{-2, -1, 0, 2, 3, 100, 1 << 22, -1 << 22, 1<<23 - 1} {
			for _, op := range []wire.Opcode{wire.RCAcknowledge, wire.RCAtomicAcknowledge, wire.RCRDMAReadResponseOnly} {
				for _, syndrome := range []wire.Syndrome{0x1f, 0, 0x20, 0x60, 0x61, 0x63, 0x45, 0x7f} {
					p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: op, PSN: wire.PSN(first).Add(n)}, AETH: wire.AETH{Syndrome: syndrome, MSN: 77}})
				}
			}
		}
		p.a.wantSends(wc{1, 0})
		p.a.wantState(verbs.QPStateRTS)
		if p.route = nil; p.a.qp.sq.tail != 2 {
			t.Error("tail")
		}
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0})
	}
}

// TestReservedSyndromes: neither kind 2 nor reserved NAK codes end anything.
func TestReservedSyndromes(t *testing.T) {
	for s := range 256 {
		k := wire.Syndrome(s)
		if k.Kind() != wire.KindReserved && (k.Kind() != wire.KindNAK || k.NAKCode() <= wire.NAKInvalidRDRequest) {
			continue
		}
		t.Run(fmt.Sprintf("%#x", s), func(t *testing.T) {
			p := newPair(t, setup{})
			p.post(p.a, writeWR(1, p.b.mem.remote(0)))
			p.transmit()
			p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge}, AETH: wire.AETH{Syndrome: k}})
			p.a.wantSends()
			p.run()
			p.a.wantSends(wc{1, 0})
		})
	}
}

// TestTimeoutProbes: a timeout sends one packet again, and the acknowledgement of that packet makes the next ones go.
func TestTimeoutProbes(t *testing.T) {
	const packets = 2 * maxWindow
	big := func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, packets*256)) }
	p := newPair(t, setup{mtu: verbs.MTU256, timeout: 8, retry: 4, noRetry: true})
	p.cutAfter(0)
	p.post(p.a, big(p))
	p.run()
	tries := map[time.Duration]int{}
	for _, s := range p.packets(p.a, 0) {
		tries[s.at]++
	}
	wait := wire.ACKTimeout(8)
	for i, want := range []int{maxWindow, 1, 1, 1, 1} {
		if got := tries[time.Duration(i)*wait]; got != want {
			t.Errorf("try %d is of %d packets, want %d", i, got, want)
		}
	}

	// The first window is lost, and nothing else: the message arrives at the expense of one timeout.
	p = newPair(t, setup{mtu: verbs.MTU256})
	p.routeWith(func(from *node, n int, pkt *wire.Packet) bool { return from == p.a && n < maxWindow })
	p.post(p.a, big(p))
	p.run()
	p.a.wantSends(wc{1, 0})
	if c := p.a.qp.Counters(); c.Timeouts != 1 || c.Retransmits != maxWindow {
		t.Errorf("counters %+v, want one timeout and %d packets sent again", c, maxWindow)
	}
	// Acknowledged packets bring half of the window back, and growth packets for each window from there.
	if got, least := p.a.rc().recovery.Gauges().Window, uint64(maxWindow/2+8*2); got < least || got > least+8*2 {
		t.Errorf("after %d packets without loss the window is %d, want a little more than %d", packets, got, least)
	}
}

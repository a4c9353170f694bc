package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/recovery"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestRoundTrip: each acknowledgement of a packet that was sent once measures the round trip.
func TestRoundTrip(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	want := func(when string, want time.Duration) {
		t.Helper()
		if got := p.a.rc().recovery.SRTT(); got != want {
			t.Errorf("%s: the round trip is %v, want %v", when, got, want)
		}
	}
	write := func(id uint64) {
		p.post(p.a, writeWR(id, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		p.run()
	}
	want("at first", 0)
	write(1)
	want("first packet", 2*testDelay)
	p.route = func(*node, int, *wire.Packet) []delay { return []delay{5 * testDelay} }
	write(2)
	want("on a slower network", 3*testDelay)
	n := p.a.sent
	p.route = func(from *node, k int, _ *wire.Packet) []delay {
		if from == p.a && k == n {
			return nil
		}
		return []delay{testDelay}
	}
	write(3)
	want("packet that was sent again", 3*testDelay)
	if c := p.a.qp.Counters(); c.Probes != 1 || c.Timeouts != 0 || c.Retransmits != 1 {
		t.Errorf("%+v, want one probe, no timeout and one packet sent again", c)
	}
}

// ackOf is an acknowledgement of a packet and all packets before it.
func ackOf(psn wire.PSN) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: psn}, AETH: wire.AETH{Syndrome: 0x1f}}
}

// held is a pair whose end a may send nothing until a time. a has posted a WRITE of two packets.
func held(t *testing.T, s setup, until time.Duration) *pair {
	t.Helper()
	s.mtu = verbs.MTU256
	p := newPair(t, s)
	p.a.qp.rate.Pause(until)
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 512)))
	return p
}

// wantHeld wants that a has nothing to send, and wants to be called at a time.
func (p *pair) wantHeld(until time.Duration) {
	p.t.Helper()
	n := p.a.qp.Transmit(p.now, p.buf)
	if at := p.a.qp.NextTimeout(); n != 0 || at != until || p.a.qp.Pending() {
		p.t.Errorf("at %v: Transmit returned %d, pending %v, next timeout %v; want 0, false and %v", p.now, n, p.a.qp.Pending(), at, until)
	}
}

// wantSent wants that a has sent so many packets up to now.
func (p *pair) wantSent(n int) {
	p.t.Helper()
	p.transmit()
	if got := len(p.packets(p.a, 0)); got != n {
		p.t.Errorf("at %v: %d packets are sent, want %d", p.now, got, n)
	}
}

// at moves the clock and serves the timers of a alone.
func (p *pair) at(now time.Duration) {
	p.now = now
	p.a.qp.HandleTimeout(now)
	p.a.collect()
}

// TestNotBefore: while the pace holds it back, a QP sends nothing and says when it will.
func TestNotBefore(t *testing.T) {
	const until = 3 * ms
	p := held(t, setup{}, until)
	p.wantHeld(until)
	p.at(until - 1) // called too early
	p.wantHeld(until)
	p.now = until
	p.wantHeld(until) // the timer has not called yet
	p.at(until)
	p.wantSent(2)
	p.run()
	p.a.wantSends(wc{1, 0})
	if c := p.a.qp.Counters(); c != (Counters{}) {
		t.Errorf("%+v, want nothing but zeros", c)
	}

	// A time that has come holds nothing back, even if no timer has called.
	p = held(t, setup{}, until)
	p.now = until
	p.wantSent(2)

	// The hold may begin behind each packet.
	p = held(t, setup{}, until)
	p.at(until)
	p.wantHeldAfter(1, until+us)
	p.at(until + us)
	p.wantSent(2)
}

// wantHeldAfter lets a send n packets, after which the pace holds it until a time.
func (p *pair) wantHeldAfter(n int, until time.Duration) {
	p.t.Helper()
	for range n {
		k := p.a.qp.Transmit(p.now, p.buf)
		if k == 0 {
			p.t.Fatalf("at %v: nothing to send, want a packet", p.now)
		}
		p.send(p.a, p.buf[:k], p.a.qp.Loan())
		p.a.qp.rate.Pause(until)
	}
	// The acknowledge timer runs as well, and comes later.
	p.wantHeld(until)
}

// TestNotBeforeAnswers: answers to the peer are not held back.
func TestNotBeforeAnswers(t *testing.T) {
	p := held(t, setup{}, ms)
	p.inject(p.a, rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseA, p.a.mem.key, 8))
	p.transmit()
	if got := p.opcodes(p.a, 0); len(got) != 1 || got[0] != wire.RCRDMAReadResponseOnly {
		t.Errorf("sent %v, want one READ response", got)
	}
	p.wantHeld(ms)
}

// TestNotBeforeAckTimer: the acknowledge timer runs on while the pace holds a QP back. Repeats wait for the pace too.
func TestNotBeforeAckTimer(t *testing.T) {
	timeout := wire.ACKTimeout(testTimeout)
	p := held(t, setup{}, 0)
	p.wantSent(2)
	p.flight = nil // both are lost
	until := timeout + ms
	p.a.qp.rate.Pause(until)
	p.post(p.a, writeWR(2, p.b.mem.remote(0)))
	p.wantHeld(timeout)
	p.at(timeout)
	if c := p.a.qp.Counters(); c.Timeouts != 1 {
		t.Errorf("%d timeouts, want 1", c.Timeouts)
	}
	p.wantHeld(until)
	p.at(until)
	p.wantSent(2 + 2) // a probe, and new packets
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0})
	if c := p.a.qp.Counters(); c.Timeouts != 1 || c.Probes != 1 || c.Retransmits != 3 {
		t.Errorf("%+v, want one timeout, and 3 packets sent again: the peer lacks the packets behind the probe", c)
	}
}

// TestNotBeforeProgress: acknowledgements are taken while the pace holds a QP back, and end no hold.
func TestNotBeforeProgress(t *testing.T) {
	const until = ms
	p := held(t, setup{}, 0)
	p.wantSent(2)
	p.flight = nil
	p.a.qp.rate.Pause(until)
	p.post(p.a, writeWR(2, p.b.mem.remote(0)))
	p.wantHeld(until)
	p.now = until / 2
	p.inject(p.a, ackOf(1))
	p.a.wantSends(wc{1, 0})
	p.wantHeld(until) // and no acknowledge timer: nothing is outstanding
	p.at(until)
	p.wantSent(3)
}

// TestNotBeforeRNR: an RNR NAK comes while the pace holds a QP back. Whichever hold ends last counts,
// and the acknowledge timer stands still as long as the peer has no receive.
func TestNotBeforeRNR(t *testing.T) {
	const code = 14 // 1.28 ms
	wait := wire.RNRTimer(code)
	for _, tt := range []struct {
		name  string
		until time.Duration // of the pace
	}{
		{"pace ends first", wait / 2},
		{"pace ends last", 3 * wait},
	} {
		p := newPair(t, setup{timeout: 8, rnrRetry: 1, rnrLimit: true}) // 1.05 ms, less than both holds take
		p.post(p.a, sendWR(1))
		p.wantSent(1)
		p.flight = nil
		p.a.qp.rate.Pause(tt.until)
		p.post(p.a, sendWR(2))
		p.wantHeld(min(tt.until, wire.ACKTimeout(8)))
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge}, AETH: wire.AETH{Syndrome: wire.SyndromeRNR(code)}})
		p.wantHeld(wait)
		p.at(wait - 1)
		p.wantHeld(wait)
		p.b.postRecv(1)
		p.b.postRecv(2)
		p.at(wait)
		if tt.until > wait {
			p.wantHeld(tt.until) // and no acknowledge timer: nothing is on its way
			p.at(tt.until)
		}
		p.wantSent(3)
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0})
		if c := p.a.qp.Counters(); c.RNRNAKs != 1 || c.Retransmits != 1 {
			t.Errorf("%s: %+v, want one RNR NAK and one packet sent again", tt.name, c)
		}
	}
}

// TestNotBeforeError: a QP in error has no timer, whatever held it.
func TestNotBeforeError(t *testing.T) {
	p := held(t, setup{}, ms)
	p.wantHeld(ms)
	p.state(p.a, verbs.QPStateErr)
	p.wantHeld(Never)
	p.a.wantSends(wc{1, verbs.WCFlushErr})
}

// TestCNP: congestion notifications are counted, and narrow the window once a round trip.
func TestCNP(t *testing.T) {
	p := newPair(t, setup{})
	p.post(p.a, writeWR(1, p.b.mem.remote(0)))
	p.run() // measures the round trip
	notify := func(times uint64, window uint64) {
		t.Helper()
		p.inject(p.a, wire.NewCNP(0, 0))
		if got := p.a.qp.Counters(); got != (Counters{CongestionNotifications: times}) {
			t.Errorf("%+v, want %d notifications and nothing else", got, times)
		}
		if got := p.a.rc().recovery.Gauges().Window; got != window {
			t.Errorf("after %d notifications the window is %d, want %d", times, got, window)
		}
	}
	notify(1, maxWindow/2)
	notify(2, maxWindow/2)
	p.now += 2*testDelay - 1
	notify(3, maxWindow/2)
	p.now++
	notify(4, maxWindow/4)
	for i := range uint64(10) {
		p.now += 2 * testDelay
		notify(5+i, recovery.LossWindow)
	}
	mark := len(p.log)
	p.post(p.a, writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 1024*100)))
	p.transmit()
	if n := len(p.log) - mark; n != recovery.LossWindow {
		t.Errorf("%d packets go out at once, want %d", n, recovery.LossWindow)
	}
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0})
	if n := len(p.packets(p.b, 0)); n == 0 {
		t.Errorf("%d packets from b, want acknowledgements", n)
	}
}

// TestCNPStates: a QP that sends nothing ignores congestion notifications. Services without a window only count them.
// Nobody answers one.
func TestCNPStates(t *testing.T) {
	for _, s := range []verbs.QPState{verbs.QPStateReset, verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS, verbs.QPStateSQD, verbs.QPStateErr} {
		p := newPair(t, setup{unconnected: true})
		attr := setup{}.attr(p.a, p.b, 0, 0)
		for i, mask := range connectMasks[verbs.QPTypeRC] {
			if attr.State = verbs.QPStateInit + verbs.QPState(i); attr.State <= min(s, verbs.QPStateRTS) || s == verbs.QPStateErr {
				p.modify(p.a, attr, mask)
			}
		}
		if s == verbs.QPStateSQD || s == verbs.QPStateErr {
			p.state(p.a, s)
		}
		p.a.wantState(s)
		p.a.rc().recovery.EndSlowStart()
		before := p.a.rc().recovery.Gauges().Window
		want, window := Counters{}, before
		if s == verbs.QPStateRTS || s == verbs.QPStateSQD {
			want.CongestionNotifications, window = 1, maxWindow/2
		}
		p.inject(p.a, wire.NewCNP(0, 0))
		p.transmit()
		if got := p.a.qp.Counters(); got != want || p.a.rc().recovery.Gauges().Window != window {
			t.Errorf("%v: %+v and a window of %d, want %+v and %d", s, got, p.a.rc().recovery.Gauges().Window, want, window)
		}
		if len(p.log) != 0 {
			t.Errorf("%v: %d packets are sent, want none", s, len(p.log))
		}
		p.a.wantState(s)
	}
	// A QP whose packets allow no marks takes none: anybody can forge one, and slow the connection down.
	p := newPair(t, setup{})
	p.a.qp.attr.AH.TrafficClass = 0b11111100
	p.inject(p.a, wire.NewCNP(0, 0))
	if got, window := p.a.qp.Counters(), p.a.rc().recovery.Gauges().Window; got != (Counters{IgnoredNotifications: 1}) || window != maxWindow {
		t.Errorf("without marks: %+v and a window of %d, want one notification ignored and %d", got, window, maxWindow)
	}
	for s, want := range map[verbs.QPState]Counters{verbs.QPStateRTR: {}, verbs.QPStateRTS: {CongestionNotifications: 1}} {
		p := newPair(t, setup{typ: verbs.QPTypeUC, unconnected: true})
		attr := setup{typ: verbs.QPTypeUC}.attr(p.a, p.b, 0, 0)
		for i, mask := range connectMasks[verbs.QPTypeUC] {
			if attr.State = verbs.QPStateInit + verbs.QPState(i); attr.State <= s {
				p.modify(p.a, attr, mask)
			}
		}
		p.inject(p.a, wire.NewCNP(0, 0))
		p.transmit()
		p.a.wantState(s)
		if got := p.a.qp.Counters(); got != want || len(p.log) != 0 {
			t.Errorf("UC, %v: %+v and %d packets, want %+v and none", s, got, len(p.log), want)
		}
	}
}

// TestCongestionMarks: packets that come with the congestion mark are counted, and taken like others.
func TestCongestionMarks(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC} {
		p := newPair(t, setup{typ: typ})
		op := wire.RCRDMAWriteOnly
		if typ == verbs.QPTypeUC {
			op = wire.UCRDMAWriteOnly
		}
		for ecn := range ECN(4) {
			pkt := rdma(req(op, wire.PSN(ecn), 8), memBaseB+uint64(ecn)*8, keyB, 8)
			for i := range pkt.Payload {
				pkt.Payload[i] = 0x90 | byte(ecn)
			}
			p.b.qp.HandlePacket(p.now, &pkt, ecn)
			p.b.collect()
			want := Counters{}
			if ecn == CongestionExperienced {
				want.CongestionMarks = 1 // and a CNP is due
			}
			if got := p.b.qp.Counters(); got != want {
				t.Errorf("%v, ECN field %d: %+v, want %+v", typ, ecn, got, want)
			}
			if got, want := fmt.Sprintf("%x", p.b.mem.data[ecn*8:][:8]), fmt.Sprintf("%x", pkt.Payload); got != want {
				t.Errorf("%v, ECN field %d: memory is %s, want %s", typ, ecn, got, want)
			}
		}
	}
}

package transport

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

const alivePeriod = 100 * ms

// alive makes a pair whose end a probes b.
func alive(t *testing.T, s setup) *pair {
	t.Helper()
	p := newPair(t, s)
	if err := p.a.qp.SetKeepAlive(p.now, alivePeriod); err != nil {
		t.Fatal(err)
	}
	return p
}

// probes returns when an end sent WRITEs of no bytes.
func (p *pair) probes(e *node) (at []time.Duration) {
	for _, s := range p.packets(e, 0) {
		if s.Opcode == wire.RCRDMAWriteOnly && len(s.Payload) == 0 {
			if s.RETH != (wire.RETH{}) || !s.AckReq {
				p.t.Errorf("probe %+v: want no address, no key, and an acknowledgement asked for", s.Packet)
			}
			at = append(at, s.at)
		}
	}
	return at
}

// TestKeepAlive: a silent peer is probed once in a period, and neither end's program sees the probe.
func TestKeepAlive(t *testing.T) {
	p := alive(t, setup{psnA: 1<<24 - 2})
	p.runUntil(4*alivePeriod + ms)
	at := p.probes(p.a)
	if len(at) != 4 || at[0] != alivePeriod || at[3] < 4*alivePeriod || at[3] > 4*alivePeriod+ms {
		t.Errorf("probes at %v, want four, a period of %v apart", at, alivePeriod)
	}
	p.state(p.a, verbs.QPStateRTS)
	p.state(p.b, verbs.QPStateRTS)
	for _, e := range []*node{p.a, p.b} {
		if len(e.sends)+len(e.recvd)+len(e.events) != 0 {
			t.Errorf("%s: sends %v, receives %v, events %v: want none", e.name, e.sends, e.recvd, e.events)
		}
	}
	if got, want := p.a.qp.Attr().SQPSN, p.b.qp.Attr().RQPSN; got != want || got != 2 {
		t.Errorf("next PSNs: got %v at the sender and %v at the receiver, want 2, as probes count", got, want)
	}
	// Work goes on behind probes, with credits too.
	p.b.credit = true
	p.b.postRecv(7, p.b.mem.sge(0, 64))
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)), readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.runUntil(p.now + alivePeriod/2)
	p.a.wantSends(wc{1, verbs.WCSuccess}, wc{2, verbs.WCSuccess})
}

// TestKeepAliveBehindACK: OnlyACK is false while a probe is due too.
func TestKeepAliveBehindACK(t *testing.T) {
	p := alive(t, setup{})
	p.a.postRecv(1, p.a.mem.sge(0, 8))
	p.now = alivePeriod
	p.a.qp.HandleTimeout(p.now)
	p.inject(p.a, req(wire.RCSendOnly, 0, 8))
	if p.a.qp.OnlyACK() {
		t.Error("an ACK is said to be all that is due, want a probe too")
	}
	p.transmit()
	if got := p.opcodes(p.a, 0); !slices.Equal(got, []wire.Opcode{wire.RCAcknowledge, wire.RCRDMAWriteOnly}) || p.a.qp.HasPackets() {
		t.Errorf("%v left, want an ACK and a probe", got)
	}
}

// TestKeepAliveCredits: the peer counts probes among the messages for which it gives credits, and so does the sender.
func TestKeepAliveCredits(t *testing.T) {
	p := alive(t, setup{})
	p.runUntil(3*alivePeriod + ms)
	p.b.credit = true
	for i := range uint64(3) {
		p.b.postRecv(i, p.b.mem.sge(0, 64))
	}
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)))
	p.runUntil(p.now + alivePeriod/4)
	r := &p.a.rc().requester
	if left := r.creditLimit - p.a.qp.sq.messages; left != 2 {
		t.Errorf("after %d probes and a SEND there are credits for %d SENDs, want 2, as there are 2 receives", len(p.probes(p.a)), left)
	}
}

// TestKeepAliveTraffic: while packets come, from either end, no peer is probed.
func TestKeepAliveTraffic(t *testing.T) {
	for _, name := range []string{"own sends", "the peer's"} {
		p := alive(t, setup{})
		from, to := p.a, p.b
		if name != "own sends" {
			from, to = p.b, p.a
		}
		for i := range 20 {
			p.post(from, writeWR(uint64(i), to.mem.remote(0), from.mem.sge(0, 8)))
			p.runUntil(p.now + alivePeriod/4)
			from.polled(i + 1)
		}
		if at := p.probes(p.a); len(at) != 0 {
			t.Errorf("%s: probes at %v, want none", name, at)
		}
		last := p.now
		p.runUntil(p.now + 2*alivePeriod)
		if at := p.probes(p.a); len(at) == 0 || at[0] > last+alivePeriod {
			t.Errorf("%s: probes at %v, want one within %v after %v", name, at, alivePeriod, last)
		}
	}
}

// TestKeepAliveGone: a peer that does not answer is given up after the period and the retries. An event
// and the flushed receives say so, and Failure says why.
func TestKeepAliveGone(t *testing.T) {
	p := alive(t, setup{retry: 3})
	p.a.postRecv(9, p.a.mem.sge(0, 8))
	p.cutAfter(0)
	p.run()
	wait := wire.ACKTimeout(testTimeout)
	if at := p.probes(p.a); len(at) != 4 || p.now != alivePeriod+4*wait {
		t.Errorf("probes at %v, given up at %v, want 4 and %v", at, p.now, alivePeriod+4*wait)
	}
	p.state(p.a, verbs.QPStateErr)
	p.a.wantSends()
	if len(p.a.recvd) != 1 || p.a.recvd[0].wc.Status != verbs.WCFlushErr || !slices.Equal(p.a.events, []verbs.EventType{verbs.EventQPFatal}) {
		t.Errorf("receives %v, events %v, want one flushed and QP_FATAL", p.a.recvd, p.a.events)
	}
	if err := p.a.qp.Failure(); !errors.Is(err, verbs.WCRetryExceeded) {
		t.Errorf("failure: got %v, want %v", err, verbs.WCRetryExceeded)
	}
	if next := p.a.qp.NextTimeout(); next != Never {
		t.Errorf("the next timeout is %v, want never", next)
	}
}

// TestKeepAliveLost loses a probe, or its answer, while work is posted behind it.
func TestKeepAliveLost(t *testing.T) {
	for _, lost := range []string{"the probe", "its answer"} {
		p := alive(t, setup{psnB: 5})
		p.routeWith(func(from *node, n int, pkt *wire.Packet) bool {
			return n == 0 && (from == p.a) == (lost == "the probe")
		})
		p.runUntil(alivePeriod)
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3000)), readWR(2, p.b.mem.remote(64), p.a.mem.sge(64, 8)),
			addWR(3, p.b.mem.remote(8), 1, p.a.mem.sge(128, 8)), writeWR(4, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		p.runUntil(p.now + alivePeriod/2)
		p.a.wantSends(wc{1, verbs.WCSuccess}, wc{2, verbs.WCSuccess}, wc{3, verbs.WCSuccess}, wc{4, verbs.WCSuccess})
		p.state(p.a, verbs.QPStateRTS)
		p.state(p.b, verbs.QPStateRTS)
	}
}

// TestKeepAliveGoneWithWork: a work request behind a probe that nobody answers fails as any other.
func TestKeepAliveGoneWithWork(t *testing.T) {
	p := alive(t, setup{retry: 1})
	p.cutAfter(0)
	p.runUntil(alivePeriod)
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)), writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.run()
	p.a.wantSends(wc{1, verbs.WCRetryExceeded}, wc{2, verbs.WCFlushErr})
	if len(p.a.events) != 0 {
		t.Errorf("events %v, want none: a completion tells", p.a.events)
	}
}

// TestKeepAliveRefused: a peer whose QP takes no WRITEs refuses the probe too. The refusal ends the connection, and
// the failure says why.
func TestKeepAliveRefused(t *testing.T) {
	p := alive(t, setup{access: verbs.AccessRemoteRead})
	p.run()
	p.state(p.a, verbs.QPStateErr)
	err := p.a.qp.Failure()
	if !errors.Is(err, verbs.WCRemInvReqErr) || !strings.Contains(err.Error(), "keep-alive probe") || !slices.Equal(p.a.events, []verbs.EventType{verbs.EventQPFatal}) {
		t.Errorf("failure %v, events %v, want %v that names the probe, and QP_FATAL", err, p.a.events, verbs.WCRemInvReqErr)
	}
}

// TestKeepAliveBadAnswer: a READ's response to a probe is no answer, and does no harm.
func TestKeepAliveBadAnswer(t *testing.T) {
	p := alive(t, setup{})
	p.cutAfter(0)
	p.runUntil(alivePeriod)
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	for _, op := range []wire.Opcode{wire.RCRDMAReadResponseOnly, wire.RCAtomicAcknowledge} {
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: op, PSN: 0}, AETH: wire.AETH{Syndrome: 0x1f}, Payload: nil})
	}
	p.a.wantSends()
	p.state(p.a, verbs.QPStateRTS)
	if c := p.a.qp.Counters(); c.Unexpected != 2 {
		t.Errorf("%d unexpected packets, want 2", c.Unexpected)
	}
}

// TestKeepAliveStates: only a QP in RTS probes. A drained send queue stays drained, RESET turns keep-alive off.
func TestKeepAliveStates(t *testing.T) {
	p := alive(t, setup{})
	p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
	p.runUntil(3 * alivePeriod)
	if at := p.probes(p.a); len(at) != 0 || p.a.qp.Attr().SQDraining {
		t.Errorf("in SQD: probes at %v, draining %v, want none", at, p.a.qp.Attr().SQDraining)
	}
	p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState)
	p.runUntil(5 * alivePeriod)
	if at := p.probes(p.a); len(at) == 0 {
		t.Errorf("in RTS again: no probes, want some")
	}
	if err := p.a.qp.SetKeepAlive(p.now, 0); err != nil {
		t.Fatal(err)
	}
	p.run() // which ends, as nothing is due any more
	n := len(p.probes(p.a))
	if err := p.a.qp.SetKeepAlive(p.now, alivePeriod); err != nil {
		t.Fatal(err)
	}
	p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateReset}, verbs.MaskState)
	p.run()
	if m := len(p.probes(p.a)); m != n {
		t.Errorf("after RESET: %d probes more, want none", m-n)
	}
	for _, typ := range []verbs.QPType{verbs.QPTypeUC, verbs.QPTypeUD} {
		if err := newPair(t, setup{typ: typ}).a.qp.SetKeepAlive(0, alivePeriod); !errors.Is(err, verbs.ErrUnsupported) {
			t.Errorf("%v: got error %v, want %v", typ, err, verbs.ErrUnsupported)
		}
	}
}

// TestKeepAliveBefore: keep-alive that is set before the connection is there begins with it.
func TestKeepAliveBefore(t *testing.T) {
	p := newPair(t, setup{unconnected: true})
	if err := p.a.qp.SetKeepAlive(p.now, alivePeriod); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*node{p.a, p.b} {
		p.connect(e, setup{}.attr(e, e.peer, 0, 0))
	}
	p.runUntil(2 * alivePeriod)
	if n := len(p.probes(p.a)); n == 0 {
		t.Errorf("%d probes in two periods of silence, want some", n)
	}
}

// TestKeepAliveDrains: a probe that is due when the queue begins to drain is not sent. So the queue is drained at
// once, whatever is posted behind the probe.
func TestKeepAliveDrains(t *testing.T) {
	p := alive(t, setup{})
	for p.a.rc().keepAlive.probe == 0 {
		p.now = p.a.qp.NextTimeout()
		p.a.qp.HandleTimeout(p.now)
	}
	p.post(p.a, writeWR(1, p.b.mem.remote(0)))
	p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
	p.a.wantEvents(verbs.EventSQDrained)
	if p.transmit(); len(p.log) != 0 {
		t.Errorf("%d packets are sent, want none", len(p.log))
	}
}

// TestKeepAliveForEver: the longest period that there is does not wrap.
func TestKeepAliveForEver(t *testing.T) {
	p := newPair(t, setup{})
	p.now = time.Hour
	if err := p.a.qp.SetKeepAlive(p.now, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	if next := p.a.qp.NextTimeout(); next < p.now+maxKeepAlive-maxKeepAlive/keepAliveSlots {
		t.Errorf("the next timeout is at %v, want it a year from now", next)
	}
}

// TestKeepAliveTimersCoalesce: connections that were made at any time probe at a few times of their period, so that
// one wake-up of the device serves many of them. No probe is late.
func TestKeepAliveTimersCoalesce(t *testing.T) {
	const qps = 10 * keepAliveSlots
	at := map[time.Duration]bool{}
	for i := range time.Duration(qps) {
		p := newPair(t, setup{})
		p.now = i * alivePeriod / qps
		if err := p.a.qp.SetKeepAlive(p.now, alivePeriod); err != nil {
			t.Fatal(err)
		}
		first := p.now + alivePeriod
		p.runUntil(first + alivePeriod)
		probes := p.probes(p.a)
		if len(probes) != 2 || probes[0] > first || probes[0] < first-alivePeriod/keepAliveSlots {
			t.Fatalf("begun at %v: probes at %v, want two, the first at %v or a little earlier", i*alivePeriod/qps, probes, first)
		}
		at[probes[0]] = true
	}
	if len(at) > keepAliveSlots+1 {
		t.Errorf("%d QPs ask at %d times of a period, want %d at most", qps, len(at), keepAliveSlots+1)
	}
}

package transport

import (
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// loseNth loses the packets of an end that have these numbers, from 0.
func (p *pair) loseNth(e *node, ns ...int) {
	p.routeWith(func(from *node, n int, _ *wire.Packet) bool { return from == e && slices.Contains(ns, n) })
}

// TestEachGapIsReported: a second gap leads to a second NAK.
func TestEachGapIsReported(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.loseNth(p.a, 3, 70) // the second among those that are sent again
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 60*256)))
	p.run()
	p.a.wantSends(wc{1, 0})
	if c := p.a.qp.Counters(); c.Timeouts != 0 || c.SequenceNAKs != 2 {
		t.Errorf("counters %+v, want 2 sequence NAKs and no timeout", c)
	}
}

// TestGapFilledBeforeNAK: packets that come before the acknowledgement is sent change its content.
func TestGapFilledBeforeNAK(t *testing.T) {
	write := func(psn wire.PSN) wire.Packet { return rdma(req(wire.RCRDMAWriteOnly, psn, 0), 0, 0, 0) }
	ack := func(psn wire.PSN, s wire.Syndrome) wire.Packet {
		return wire.Packet{BTH: wire.BTH{PSN: psn}, AETH: wire.AETH{Syndrome: s}}
	}
	for _, tt := range []struct {
		name string
		psns []wire.PSN
		want []wire.Packet
	}{
		{"the missing one and then the dropped one again", []wire.PSN{1, 0, 1}, []wire.Packet{ack(1, 0x1f)}},
		{"the missing one", []wire.PSN{1, 0}, []wire.Packet{ack(1, 0x60)}},
		{"one of two", []wire.PSN{2, 0}, []wire.Packet{ack(1, 0x60)}},
		{"one of two gaps", []wire.PSN{1, 3, 0, 1}, []wire.Packet{ack(2, 0x60)}},
		{"none", []wire.PSN{1, 3, 2}, []wire.Packet{ack(0, 0x60)}},
	} {
		p := newPair(t, setup{})
		for _, psn := range tt.psns {
			p.inject(p.b, write(psn))
		}
		p.transmit()
		for i, got := range p.packets(p.b, 0) {
			if i >= len(tt.want) || got.PSN != tt.want[i].PSN || got.AETH.Syndrome != tt.want[i].AETH.Syndrome {
				t.Errorf("%s: answered with %v %v, want %v", tt.name, got.PSN, got.AETH, tt.want)
			}
		}
		// The gap was reported. Packets behind it do not report it again.
		n := len(p.log)
		p.inject(p.b, write(7))
		p.inject(p.b, write(8))
		p.transmit()
		if again := len(p.log) > n; again != (tt.want[0].AETH.Syndrome == 0x1f) {
			t.Errorf("%s: the same gap is reported again: %v, want %v", tt.name, again, !again)
		}
	}
}

// TestRNRFilledBeforeNAK: a refused SEND comes again before the RNR NAK is sent, and finds a receive. The SEND is
// acknowledged.
func TestRNRFilledBeforeNAK(t *testing.T) {
	p := newPair(t, setup{})
	p.inject(p.b, req(wire.RCSendOnly, 0, 8))
	p.b.postRecv(1, p.b.mem.sge(0, 8))
	p.inject(p.b, req(wire.RCSendOnly, 0, 8))
	p.transmit()
	if got := p.packets(p.b, 0); len(got) != 1 || got[0].PSN != 0 || got[0].AETH.Syndrome != 0x1f {
		t.Errorf("answered with %+v, want one ACK of PSN 0", got)
	}
}

// TestImpliedNAK: an acknowledgement or response that comes in the place of a READ's response shows that the response
// was lost. No timeout is needed.
func TestImpliedNAK(t *testing.T) {
	for name, second := range map[string]func(p *pair) verbs.SendWR{
		"WRITE":     func(p *pair) verbs.SendWR { return writeWR(2, p.b.mem.remote(0)) },
		"READ":      func(p *pair) verbs.SendWR { return readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8)) },
		"FETCH_ADD": func(p *pair) verbs.SendWR { return addWR(2, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)) },
		"refused":   func(p *pair) verbs.SendWR { return sendWR(2) },
		"invalid":   func(p *pair) verbs.SendWR { return readWR(2, verbs.RemoteAddr{}, p.a.mem.sge(0, 8)) },
	} {
		p := newPair(t, setup{retry: 1, rnrTimer: 3})
		p.loseNth(p.b, 0)
		p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)), second(p))
		p.runUntil(4 * testDelay)
		if name == "refused" {
			p.b.postRecv(1)
		}
		p.run()
		c := p.a.qp.Counters()
		if name == "invalid" {
			// b is in error and answers no more: the READ's loss cannot be healed.
			p.a.wantSends(wc{1, verbs.WCRetryExceeded}, wc{2, verbs.WCFlushErr})
			continue
		}
		p.a.wantSends(wc{1, 0}, wc{2, 0})
		if c.ImpliedNAKs == 0 || c.Timeouts != 0 {
			t.Errorf("%s: counters %+v, want implied NAKs and no timeout", name, c)
		}
	}
}

// TestImpliedNAKRefused: a SEND that the peer refuses behind a READ whose response was lost shows the loss too. The
// READ is repeated, and then the SEND waits for the RNR timer.
func TestImpliedNAKRefused(t *testing.T) {
	for _, selective := range []bool{false, true} {
		p := newPair(t, setup{rnrTimer: 20, noTimeout: true, selective: selective})
		p.loseNth(p.b, 0)
		p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)), sendWR(2))
		p.runUntil(wire.RNRTimer(20))
		p.a.wantSends(wc{1, 0})
		if c := p.a.qp.Counters(); c.Retransmits != 2 || c.RNRNAKs != 1 {
			t.Errorf("selective %v: %d packets were sent again, and %d RNR NAKs counted, before the RNR timer; want the READ and the SEND, once, and one",
				selective, c.Retransmits, c.RNRNAKs)
		}
		p.b.postRecv(1)
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0})
	}
}

// TestImpliedNAKAgain: a response that is lost each time is requested each time, by probes where no other response
// follows, and no timeout is needed.
func TestImpliedNAKAgain(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, timeout: 14})
	p.loseNth(p.b, 0, 3, 4) // the first of three responses, three times; only that one is requested again
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3*256)))
	p.run()
	p.a.wantSends(wc{1, 0})
	if c := p.a.qp.Counters(); c.Timeouts != 0 || c.Retransmits != 3 {
		t.Errorf("counters %+v, want no timeout and 3 packets sent again", c)
	}
}

// TestFaultWaitsItsTurn: a work request whose memory is bad fails when those before it are done.
func TestFaultWaitsItsTurn(t *testing.T) {
	for name, bad := range map[string]func(p *pair) verbs.SendWR{
		"SEND":          func(*pair) verbs.SendWR { return sendWR(3, badSGE) },
		"second packet": func(p *pair) verbs.SendWR { return writeWR(3, p.b.mem.remote(0), p.a.mem.sge(0, 1024), badSGE) },
	} {
		for _, lost := range []int{-1, 0, 1, 2} {
			p := newPair(t, setup{})
			p.loseNth(p.a, lost)
			p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)), readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8)), bad(p), writeWR(4, p.b.mem.remote(0)))
			p.transmit()
			p.a.wantSends()
			p.run()
			p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, verbs.WCLocProtErr}, wc{4, verbs.WCFlushErr})
			if t.Failed() {
				t.Fatalf("%s, packet %d lost: want the completions above", name, lost)
			}
		}
	}
	// The same with a READ that MAX_QP_RD_ATOMIC forbids.
	p := newPair(t, setup{noRD: true})
	p.post(p.a, writeWR(1, p.b.mem.remote(0)), readWR(2, p.b.mem.remote(0)))
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, verbs.WCLocQPOpErr})
}

// TestNoTimeoutWhileWaiting: the acknowledge timer stands still while the requester waits after an RNR
// NAK.
func TestNoTimeoutWhileWaiting(t *testing.T) {
	p := newPair(t, setup{noRetry: true, rnrTimer: 31, timeout: 2})
	p.route = func(from *node, n int, _ *wire.Packet) []delay { return []delay{1 * us} }
	p.post(p.a, sendWR(1), sendWR(2), sendWR(3))
	p.runUntil(10 * ms)
	// An acknowledgement of the first comes after all.
	p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: 0}, AETH: wire.AETH{Syndrome: 0x1f}})
	if got, want := p.a.qp.NextTimeout(), wire.RNRTimer(31)+2*us; got != want {
		t.Errorf("the next timeout is at %v, want %v", got, want)
	}
	p.a.wantSends(wc{1, 0})
	p.state(p.a, verbs.QPStateErr)
	if got := p.a.qp.NextTimeout(); got != Never {
		t.Errorf("a QP in error has a timeout at %v, want none", got)
	}
}

// TestAckReqAfterRetry: repeated packets ask for acknowledgements as often as the narrowed window needs.
func TestAckReqAfterRetry(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.loseNth(p.a, 0)
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*100)))
	p.run()
	asked := 0
	for _, s := range p.packets(p.a, 0) {
		if s.AckReq {
			asked++
		}
	}
	if asked != 6 { // two at first and, with half the window, four
		t.Errorf("%d packets ask for an acknowledgement, want 6", asked)
	}
}

// TestReplayDoesNotCount: a repeated READ does not count towards the limit. A new one may follow.
func TestReplayDoesNotCount(t *testing.T) {
	p := newPair(t, setup{rd: 1, mtu: verbs.MTU256})
	read := func(psn wire.PSN, off, n int) wire.Packet {
		return rdma(req(wire.RCRDMAReadRequest, psn, 0), memBaseB+uint64(off), keyB, uint32(n))
	}
	p.inject(p.b, read(0, 0, 5*256))
	p.transmit()
	n := len(p.log)
	p.inject(p.b, read(0, 0, 5*256))
	p.inject(p.b, read(2, 512, 3*256)) // takes the first one's place: the requester has packets 0 and 1
	p.inject(p.b, read(5, 0, 8))
	p.b.wantState(verbs.QPStateRTS)
	p.transmit()
	var got []wire.PSN
	for _, r := range p.packets(p.b, n) {
		got = append(got, r.PSN)
	}
	if want := []wire.PSN{2, 3, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("answered %v, want %v", got, want)
	}
}

// TestCreditsStay: a receive that was announced stays announced, though later counts are rounded down.
func TestCreditsStay(t *testing.T) {
	p := newPair(t, setup{})
	p.b.credit = true
	for i := range 9 {
		p.b.postRecv(uint64(i))
	}
	p.post(p.a, sendWR(0))
	p.run() // 8 are left, for messages 1 to 8
	p.post(p.a, sendWR(1))
	p.run() // 7 are left, announced as 6
	for i := range 10 {
		p.post(p.a, sendWR(uint64(i+2)))
	}
	n := len(p.log)
	if p.transmit(); len(p.log)-n != 7 {
		t.Errorf("%d messages go out at once, want 7", len(p.log)-n)
	}
}

// TestCreditsWrap: the peer counts its messages modulo 2^24, and the receives that it announces count from there on.
func TestCreditsWrap(t *testing.T) {
	r := &newPair(t, setup{}).a.rc().requester
	for _, x := range []struct{ posted, msn, want uint64 }{{9, 7, 7 + 4}, {1<<24 + 9, 7, 1<<24 + 7 + 4}, {1<<24 + 2, 1<<24 - 3, 1<<24 - 3 + 4}, {5<<24 + 2, 2, 5<<24 + 2 + 4}} {
		r.creditLimit, r.qp.sq.messages = noCreditLimit, x.posted
		r.setCredits(wire.AETH{Syndrome: wire.SyndromeACK(wire.EncodeCredits(4)), MSN: uint32(x.msn)})
		if r.creditLimit != x.want {
			t.Errorf("%d messages posted, MSN %d and 4 receives: the limit is %d, want %d", x.posted, x.msn, r.creditLimit, x.want)
		}
	}
	if r.setCredits(wire.AETH{Syndrome: wire.SyndromeACK(wire.CreditsUnlimited)}); r.creditLimit != noCreditLimit {
		t.Errorf("without a number of receives the limit is %d, want none", r.creditLimit)
	}
}

// TestCreditsBehindReads: a READ of several requests counts as several messages at the peer.
func TestCreditsBehindReads(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.b.credit = true
	for i := range 4 {
		p.b.postRecv(uint64(i))
	}
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*(2*readChunk+1))))
	p.run()
	for i := range 10 {
		p.post(p.a, sendWR(uint64(i)))
	}
	n := len(p.log)
	if p.transmit(); len(p.log)-n != 4 {
		t.Errorf("%d messages go out at once, want 4", len(p.log)-n)
	}
}

// TestProbeIsAcknowledged: without credit only the first packet of a message goes out. The rest follows
// its acknowledgement.
func TestProbeIsAcknowledged(t *testing.T) {
	p := newPair(t, setup{})
	p.b.credit = true
	p.post(p.a, writeWR(1, p.b.mem.remote(0)))
	p.run() // no receive is announced
	p.b.postRecv(1, p.b.mem.sge(0, 5000))
	n := len(p.log)
	p.post(p.a, sendWR(2, p.a.mem.sge(0, 5000)))
	if p.transmit(); len(p.log)-n != 1 {
		t.Errorf("%d packets go out without credit, want 1", len(p.log)-n)
	}
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0})
	if c := p.a.qp.Counters(); c != (Counters{}) {
		t.Errorf("counters %+v, want zeros", c)
	}
}

// TestPolled: places become free in order, and only those of work requests that are done.
func TestPolled(t *testing.T) {
	p := newPair(t, setup{cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	free := func() int {
		n := 0
		for wr := writeWR(9, p.b.mem.remote(0)); p.a.qp.Post(&wr) == nil; n++ {
		}
		return n
	}
	p.post(p.a, writeWR(1, p.b.mem.remote(0)), writeWR(2, p.b.mem.remote(0)))
	p.run()
	p.post(p.a, writeWR(3, p.b.mem.remote(0)))
	p.a.polled(2)
	p.transmit() // 3 is on its way, and not done
	if n := free(); n != 3 {
		t.Errorf("%d places are free, want 3", n)
	}
}

// TestFailureEndsAnswers: a QP that fails stops answering the peer too.
func TestFailureEndsAnswers(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.post(p.a, writeWR(1, p.b.mem.remote(0)))
	p.transmit()
	n := len(p.log)
	p.inject(p.a, rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseA, p.a.mem.key, 5*256))
	p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge}, AETH: wire.AETH{Syndrome: 0x63}})
	p.a.wantSends(wc{1, verbs.WCRemOpErr})
	if p.transmit(); len(p.packets(p.a, n)) != 0 {
		t.Errorf("answers %+v, want none", p.packets(p.a, n)[0].BTH)
	}
}

// TestCreditsEndInside: credits end when the first packet of a SEND is sent and has not asked for an acknowledgement.
// The rest of the SEND must follow without credit.
func TestCreditsEndInside(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, noTimeout: true})
	p.single, p.b.credit = true, true
	p.route = func(from *node, n int, pkt *wire.Packet) []delay {
		if from == p.b && pkt.PSN == maxWindow-2 && p.b.waiting() == 0 {
			p.b.postRecv(1, p.b.mem.sge(0, 1024)) // just after an ACK announced none
		}
		return []delay{testDelay}
	}
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, (maxWindow-1)*256)), sendWR(2, p.a.mem.sge(0, 1024)))
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0})
}

// TestLateAnswerToFaulty: a work request's memory goes away between two tries, and then an answer to the first try
// comes. The work request fails once, for its own cause.
func TestLateAnswerToFaulty(t *testing.T) {
	for _, syndrome := range []wire.Syndrome{0x1f, 0x20, 0x60, 0x61, 0x62, 0x63, 0x64} {
		p := newPair(t, setup{mtu: verbs.MTU256})
		r := p.a.register(0x1000, 1024, allAccess)
		p.cutAfter(0)
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)), writeWR(2, p.b.mem.remote(0), r.sge(0, 1024)), writeWR(3, p.b.mem.remote(0)))
		p.transmit()
		p.a.deregister(r)
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: 0}, AETH: wire.AETH{Syndrome: 0x60}})
		p.transmit()    // all again, from the first on
		p.a.wantSends() // not yet its turn
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: 3}, AETH: wire.AETH{Syndrome: syndrome}})
		p.a.wantSends(wc{1, 0}, wc{2, verbs.WCLocProtErr}, wc{3, verbs.WCFlushErr})
		p.run()
		if n := len(p.a.sends); n != 3 {
			t.Errorf("%v: %d completions, want 3", syndrome, n)
		}
	}
}

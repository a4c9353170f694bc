package transport

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// opcodes returns the opcodes of the packets that e has sent from the mark on.
func (p *pair) opcodes(e *node, mark int) []wire.Opcode {
	var ops []wire.Opcode
	for _, s := range p.packets(e, mark) {
		ops = append(ops, s.Opcode)
	}
	return ops
}

// TestMaxRDAtomic: as many READs and atomics are in flight as max_rd_atomic allows, and never more.
func TestMaxRDAtomic(t *testing.T) {
	for _, limit := range []int{1, 2, 5, 16} {
		p := newPair(t, setup{mtu: verbs.MTU256, rd: limit})
		for i := range 40 {
			switch i % 4 {
			case 0:
				p.post(p.a, addWR(uint64(i), p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)))
			case 3:
				p.post(p.a, readWR(uint64(i), p.b.mem.remote(0), p.a.mem.sge(0, 256*200)))
			default:
				p.post(p.a, readWR(uint64(i), p.b.mem.remote(0), p.a.mem.sge(0, i*50)))
			}
		}
		for i := range 20 { // short ones, of which the window takes more than any limit
			p.post(p.a, readWR(uint64(40+i), p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		}
		p.run()
		if n := len(p.a.sends); n != 60 {
			t.Fatalf("%d completions, want 60", n)
		}
		answered := map[wire.PSN]time.Duration{} // when the requester has the packet
		for _, s := range p.packets(p.b, 0) {
			answered[s.PSN] = s.at + testDelay
		}
		most := 0
		var open []wire.PSN // the last PSN of each request in flight
		for _, s := range p.packets(p.a, 0) {
			open = slices.DeleteFunc(open, func(end wire.PSN) bool { return answered[end] <= s.at })
			n := 1
			if s.Opcode == wire.RCRDMAReadRequest {
				n = int(packetsFor(s.RETH.Length, 256))
			}
			open = append(open, s.PSN.Add(n-1))
			most = max(most, len(open))
		}
		if most != limit {
			t.Errorf("max_rd_atomic %d: %d were on their way at a time, want as many as the limit", limit, most)
		}
	}
}

// TestWindow: a requester never has more packets outstanding than the window. Long messages ask for
// acknowledgements on the way, and long READs come in several requests.
func TestWindow(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*1000)))
	p.transmit()
	if n := len(p.log); n != maxWindow {
		t.Errorf("%d packets are sent without an acknowledgement, want %d", n, maxWindow)
	}
	p.run()
	p.post(p.a, readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 256*1000)))
	n := len(p.log)
	p.transmit()
	asked := 0
	for _, s := range p.packets(p.a, n) {
		asked += int(packetsFor(s.RETH.Length, 256))
	}
	if asked != maxWindow {
		t.Errorf("%d response packets are asked for at a time, want %d", asked, maxWindow)
	}
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0})
	if c := p.a.qp.Counters(); c != (Counters{}) {
		t.Errorf("counters %+v, want zeros", c)
	}
}

// TestFence: a fenced work request waits for the READs and atomics before it. Others do not wait.
func TestFence(t *testing.T) {
	for _, kind := range []string{"READ", "atomic"} {
		for _, fence := range []bool{false, true} {
			p := newPair(t, setup{})
			if kind == "READ" {
				p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3000)))
			} else {
				p.post(p.a, addWR(1, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)))
			}
			second := writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 3000))
			if fence {
				second.Flags |= verbs.SendFence
			}
			p.post(p.a, second, writeWR(3, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
			p.transmit()
			if n := len(p.log); fence && n != 1 || !fence && n != 5 {
				t.Errorf("behind a %s, fence %v: %d packets are sent at once, want 1 with a fence and 5 without", kind, fence, n)
			}
			p.runUntil(2*testDelay - 1)
			if n := len(p.packets(p.a, 0)); fence && n != 1 {
				t.Errorf("behind a %s: %d packets are sent before the answer, want 1: the fence did not hold", kind, n)
			}
			p.run()
			p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0})
		}
	}
	// With nothing to wait for, a fence costs nothing.
	p := newPair(t, setup{})
	p.post(p.a, writeWR(1, p.b.mem.remote(0)), withFlags(writeWR(2, p.b.mem.remote(0)), verbs.SendFence|verbs.SendSignaled))
	if p.transmit(); len(p.log) != 2 {
		t.Errorf("%d packets are sent at once, want 2", len(p.log))
	}
}

// TestWriteOvertakesRead: without a fence a READ may see the bytes of a later WRITE. The WRITE's acknowledgement
// follows the READ's response.
func TestWriteOvertakesRead(t *testing.T) {
	p := newPair(t, setup{})
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3000)), writeWR(2, p.b.mem.remote(0), p.a.mem.sge(4096, 8)))
	p.run()
	want := []wire.Opcode{wire.RCRDMAReadResponseFirst, wire.RCRDMAReadResponseMiddle, wire.RCRDMAReadResponseLast, wire.RCAcknowledge}
	if got := p.opcodes(p.b, 0); !slices.Equal(got, want) {
		t.Errorf("responses %v, want %v", got, want)
	}
	p.a.wantSends(wc{1, 0}, wc{2, 0})
}

// TestAckCoalescing: packets that arrive together are acknowledged by one packet. A READ response acknowledges all
// requests before it.
func TestAckCoalescing(t *testing.T) {
	p := newPair(t, setup{})
	for i := range 30 {
		p.b.postRecv(uint64(i))
		p.post(p.a, withFlags(sendWR(uint64(i)), verbs.SendSignaled))
	}
	p.run()
	if got := p.packets(p.b, 0); len(got) != 1 || got[0].PSN != 29 || got[0].AETH.MSN != 30 {
		t.Errorf("acknowledged by %+v, want one packet with PSN 29 and MSN 30", got)
	}
	n := len(p.log)
	p.post(p.a, writeWR(50, p.b.mem.remote(0)), writeWR(51, p.b.mem.remote(0)), readWR(52, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.run()
	if got := p.opcodes(p.b, n); !slices.Equal(got, []wire.Opcode{wire.RCRDMAReadResponseOnly}) {
		t.Errorf("acknowledged by %v, want the READ response alone", got)
	}
	if n := len(p.a.sends); n != 33 {
		t.Errorf("%d completions, want 33", n)
	}
}

// TestUnsignaled: unsignaled work requests make no completion. Their places are freed by the completion of
// the next signaled one.
func TestUnsignaled(t *testing.T) {
	p := newPair(t, setup{cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	quiet := func(id uint64) verbs.SendWR { return withFlags(writeWR(id, p.b.mem.remote(0)), 0) }
	p.post(p.a, quiet(1), quiet(2), writeWR(3, p.b.mem.remote(0)), quiet(4))
	wr := quiet(5)
	if err := p.a.qp.Post(&wr); err == nil {
		t.Error("a fifth work request was taken")
	}
	p.run()
	p.a.wantSends(wc{3, 0})
	if err := p.a.qp.Post(&wr); err == nil || !strings.Contains(err.Error(), "poll the send CQ") {
		t.Errorf("post before the completion was polled: %v, want an error that asks to poll", err)
	}
	p.a.polled(1)
	p.post(p.a, quiet(5), quiet(6), quiet(7))
	p.run()
	p.a.qp.sq.freed.Store(4) // no completion says so
	p.post(p.a, quiet(8))
	p.run()
	if err := p.a.qp.Post(&wr); err == nil || !strings.Contains(err.Error(), "all 4 work requests in it are unsignaled") {
		t.Errorf("post to a queue full of unsignaled work requests: %v, want an error that says so", err)
	}
	p.a.wantSends(wc{3, 0})

	p = newPair(t, setup{signalAll: true})
	p.post(p.a, withFlags(writeWR(1, p.b.mem.remote(0)), 0))
	p.run()
	p.a.wantSends(wc{1, 0})
}

// TestMSN: the responder counts completed messages. A READ counts as soon as its request is taken.
func TestMSN(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.single = true
	p.b.postRecv(1, p.b.mem.sge(0, 1024))
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 1024)), sendWR(2, p.a.mem.sge(0, 1024)),
		readWR(3, p.b.mem.remote(0), p.a.mem.sge(0, 600)), addWR(4, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)))
	p.run()
	var got []uint32
	for _, s := range p.packets(p.b, 0) {
		if s.Opcode.Headers()&wire.HeaderAETH != 0 {
			got = append(got, s.AETH.MSN)
		}
	}
	if want := []uint32{1, 2, 3, 3, 4}; !slices.Equal(got, want) {
		t.Errorf("MSNs %v, want %v", got, want)
	}
	p.b.rc().responder.msn = msnMask
	p.post(p.a, writeWR(5, p.b.mem.remote(0)))
	p.run()
	if got := p.last(p.b).AETH.MSN; got != 0 {
		t.Errorf("the MSN after 2^24-1 is %d, want 0", got)
	}
}

// TestCredits: acknowledgements announce the posted receives. The requester sends no more messages than that, but for
// one packet at a time that asks.
func TestCredits(t *testing.T) {
	p := newPair(t, setup{rnrTimer: 14})
	p.b.credit = true
	for i := range 6 {
		p.b.postRecv(uint64(i), p.b.mem.sge(0, 4096))
	}
	p.post(p.a, sendWR(0))
	p.run()
	if got := p.last(p.b).AETH.Syndrome; got != wire.SyndromeACK(wire.EncodeCredits(5)) {
		t.Errorf("syndrome %v with 5 receives, want that of 5 credits", got)
	}
	for i := range 10 {
		p.post(p.a, sendWR(uint64(i+1), p.a.mem.sge(0, 3000)))
	}
	n := len(p.log)
	p.transmit()
	if got := len(p.packets(p.a, n)); got != 4*3 { // 5 rounds down to 4
		t.Errorf("%d packets with 4 credits, want 12", got)
	}
	p.runUntil(p.now + ms)
	// The probe was refused, and waits for the RNR timer.
	if rnr := p.a.qp.Counters().RNRNAKs; rnr != 1 || len(p.b.recvd) != 6 {
		t.Errorf("%d RNR NAKs, %d received; want 1, 6", rnr, len(p.b.recvd))
	}
	for i := range 20 {
		p.b.postRecv(uint64(i+6), p.b.mem.sge(0, 4096))
	}
	p.run()
	if len(p.a.sends) != 11 || len(p.b.recvd) != 11 || p.a.qp.Counters().RNRNAKs != 1 {
		t.Errorf("%d sent, %d received, counters %+v; want 11, 11 and one RNR NAK", len(p.a.sends), len(p.b.recvd), p.a.qp.Counters())
	}

	// WRITEs need no credit; a WRITE with immediate does.
	p = newPair(t, setup{})
	p.b.credit = true
	p.post(p.a, writeWR(20, p.b.mem.remote(0)))
	p.run() // announces no receive
	p.post(p.a, writeWR(21, p.b.mem.remote(0)), withImm(writeWR(22, p.b.mem.remote(0)), 1))
	n = len(p.log)
	if p.transmit(); len(p.packets(p.a, n)) != 1 {
		t.Errorf("%d packets without credit, want 1", len(p.packets(p.a, n)))
	}
	p.b.postRecv(50)
	p.run()
	p.a.wantSends(wc{20, 0}, wc{21, 0}, wc{22, 0})
}

// TestCreditsNeverDeadlock: all messages arrive, however many receives are announced and whichever packets are lost.
func TestCreditsNeverDeadlock(t *testing.T) {
	for recvs := 1; recvs <= 5; recvs++ {
		for lost := range 40 {
			p := newPair(t, setup{mtu: verbs.MTU256})
			p.b.credit = true
			n := 0
			p.routeWith(func(*node, int, *wire.Packet) bool { n++; return n-1 == lost })
			for i := range 12 {
				if i%3 == 2 {
					p.post(p.a, readWR(uint64(i), p.b.mem.remote(0), p.a.mem.sge(1<<16, 256*(readChunk+1))))
				} else {
					p.post(p.a, sendWR(uint64(i), p.a.mem.sge(0, 600)))
				}
			}
			for len(p.a.sends) < 12 {
				if p.b.waiting() == 0 {
					for range recvs {
						p.b.postRecv(0, p.b.mem.sge(0, 600))
					}
				}
				if !p.step(100 * ms) {
					t.Fatalf("%d receives at a time, packet %d lost: stuck after %d messages, want 12", recvs, lost, len(p.a.sends))
				}
			}
		}
	}
}

// TestAckReqWithoutCredit: where the peer has no receives, the first packet of a message that takes one asks for an
// acknowledgement. A WRITE takes none, and asks at its end alone.
func TestAckReqWithoutCredit(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU1024})
	p.b.credit = true
	p.post(p.a, writeWR(1, p.b.mem.remote(0)))
	p.run() // announces no receive
	for _, tt := range []struct {
		wr   verbs.SendWR
		asks bool
	}{{writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 4096)), false}, {sendWR(3, p.a.mem.sge(0, 4096)), true}} {
		n := len(p.log)
		p.post(p.a, tt.wr)
		p.transmit()
		sent := p.packets(p.a, n)
		if len(sent) == 0 || sent[0].AckReq != tt.asks {
			t.Errorf("%v: got %d packets; want that the first has AckReq %v", tt.wr.Op, len(sent), tt.asks)
		}
		p.runUntil(p.now + ms)
	}
}

// TestAckReqBehindRead: a READ's response acknowledges, so the packets behind it need not ask.
func TestAckReqBehindRead(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 60*256)), writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 20*256)))
	p.transmit()
	for i, s := range p.log {
		if s.AckReq != (i == 0 || i == 20) {
			t.Errorf("packet %d: AckReq %v, want %v", i, s.AckReq, !s.AckReq)
		}
	}
}

// TestCreditsInResponses: READ and atomic responses announce receives too, but only where they have an AETH that says
// ACK.
func TestCreditsInResponses(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		p := newPair(t, setup{})
		p.b.credit = true
		p.b.postRecv(1)
		p.b.postRecv(2)
		if atomic {
			p.post(p.a, addWR(1, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)))
		} else {
			p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3000)))
		}
		p.run()
		n := len(p.log)
		p.post(p.a, sendWR(2), sendWR(3), sendWR(4))
		if p.transmit(); len(p.log)-n != 2 {
			t.Errorf("%d SENDs go out at once, want 2", len(p.log)-n)
		}
	}
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.cutAfter(0)
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 700)))
	p.transmit()
	for i, op := range []wire.Opcode{wire.RCRDMAReadResponseFirst, wire.RCRDMAReadResponseMiddle} {
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: op, PSN: wire.PSN(i)}, AETH: wire.AETH{Syndrome: 0x61}, Payload: make([]byte, 256)})
	}
	if limit := p.a.rc().requester.creditLimit; limit != noCreditLimit || p.a.rc().recovery.Una() != seqBase+2 {
		t.Errorf("credits are limited to %d, una is %d; want no limit, by packets that announce none, and %d", limit, p.a.rc().recovery.Una(), seqBase+2)
	}
}

package transport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// routed is the adaptive routing of a test's QPs unless the test says otherwise.
var routed = verbs.AdaptiveRouting{Send: true, Accept: true, Mark: verbs.DefaultRoutingMark, Patience: 20 * testDelay}

// routedPair makes a pair whose WRITEs go marked, and whose packets adaptive routing may reorder.
func routedPair(t *testing.T, s setup, r verbs.AdaptiveRouting) *pair {
	t.Helper()
	s.mtu = verbs.MTU1024
	p := newPair(t, s)
	p.a.qp.SetAdaptiveRouting(r)
	p.b.qp.SetAdaptiveRouting(r)
	return p
}

// overtaking is a network on which the packets of a arrive in the reverse of their order.
func (p *pair) overtaking(packets int) {
	p.route = func(from *node, n int, _ *wire.Packet) []delay {
		if from == p.a && n < packets {
			return []delay{testDelay * delay(packets-n)}
		}
		return []delay{testDelay}
	}
}

// TestRoutedForm: every packet of a WRITE has its own address and the mark. All other packets have their usual form.
func TestRoutedForm(t *testing.T) {
	for _, mark := range []uint16{verbs.DefaultRoutingMark, 0x21, 0x1200} {
		r := routed
		r.Mark = mark
		p := routedPair(t, setup{}, r)
		p.b.postRecv(1, p.b.mem.sge(0, 8))
		p.post(p.a, writeWR(1, p.b.mem.remote(4096), p.a.mem.sge(0, 2*1024+100)), writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8)),
			sendWR(3, p.a.mem.sge(0, 8)), readWR(4, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		p.run()
		want := []wire.RETH{{VA: 4096, Length: 1024}, {VA: 5120, Length: 1024}, {VA: 6144, Length: 100}, {VA: 0, Length: 8}}
		sent := p.packets(p.a, 0)
		if len(sent) != len(want)+2 {
			t.Fatalf("%d packets leave, want %d", len(sent), len(want)+2)
		}
		for i, w := range want {
			s := sent[i]
			w.VA, w.RKey = p.b.mem.remote(int(w.VA)).VA, uint32(p.b.mem.remote(0).RKey)
			if s.Opcode != wire.RCRDMAWriteOnly || s.RETH != w || s.Reserved() != mark || s.AckReq != (i >= 2) || int(s.PSN) != i {
				t.Errorf("packet %d: %v %v of %+v, reserved bits %#x, AckReq %v; want %v of %+v, %#x", i, s.PSN, s.Opcode, s.RETH, s.Reserved(), s.AckReq, wire.RCRDMAWriteOnly, w, mark)
			}
		}
		for _, s := range sent[len(want):] {
			if s.Reserved() != 0 {
				t.Errorf("%v has the reserved bits %#x, want none", s.Opcode, s.Reserved())
			}
		}
		p.a.wantSends(wc{1, verbs.WCSuccess}, wc{2, verbs.WCSuccess}, wc{3, verbs.WCSuccess}, wc{4, verbs.WCSuccess})
	}
}

// TestRoutedEarlier: WRITEs that were posted before Send have no mark, though they go as WRITE ONLYs, and those that
// were posted before its end keep theirs. Where switches may reorder packets depends on the program's promise at the
// post.
func TestRoutedEarlier(t *testing.T) {
	p, _ := inFlightPair(t, setup{mtu: verbs.MTU1024, selective: true}, corkFrom)
	mark := len(p.log)
	wr := writeWR(1, p.b.mem.remote(4096), p.a.mem.sge(0, 4096))
	p.post(p.a, wr)
	p.a.qp.SetAdaptiveRouting(routed)
	p.post(p.a, wr)
	p.a.qp.SetAdaptiveRouting(verbs.AdaptiveRouting{})
	p.run()
	sent := p.packets(p.a, mark)
	if len(sent) != 8 {
		t.Fatalf("%d packets leave, want 8", len(sent))
	}
	for i, s := range sent {
		want := uint16(0)
		if i >= 4 {
			want = routed.Mark
		}
		if s.Opcode != wire.RCRDMAWriteOnly || s.Reserved() != want {
			t.Errorf("packet %d: %v with the reserved bits %#x, want %v with %#x", i, s.Opcode, s.Reserved(), wire.RCRDMAWriteOnly, want)
		}
	}
}

// TestRoutedTail: the rest of a WRITE that is longer than the window does not wait for others. No packet in flight
// would ask for the acknowledgement that ends the wait.
func TestRoutedTail(t *testing.T) {
	for _, packets := range []int{maxWindow + 14, maxWindow + 34, maxWindow + 54} {
		p := routedPair(t, setup{noTimeout: true}, routed)
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, packets*1024)))
		p.run()
		p.a.wantSends(wc{1, verbs.WCSuccess})
		if n := len(p.packets(p.a, 0)); n != packets || p.now > 4*testDelay {
			t.Errorf("%d packets in %v, want %d in %v", n, p.now, packets, 4*testDelay)
		}
	}
}

// TestRoutedTailBehind: nor does the rest wait behind many other messages, though their acknowledgements would end
// the wait.
func TestRoutedTailBehind(t *testing.T) {
	const before, each = corkMessages + 1, 27
	p := routedPair(t, setup{noTimeout: true}, routed)
	p.route = func(from *node, n int, _ *wire.Packet) []delay {
		if from == p.a {
			return []delay{testDelay + delay(n/each)*us} // so that each message has an acknowledgement of its own
		}
		return []delay{testDelay}
	}
	for id := range uint64(before) {
		p.post(p.a, writeWR(id, p.b.mem.remote(0), p.a.mem.sge(0, each*1024)))
	}
	p.post(p.a, writeWR(before, p.b.mem.remote(0), p.a.mem.sge(0, splitMost+6*1024)))
	p.runUntil(2 * testDelay)
	if n := len(p.packets(p.a, 0)); n != maxWindow+each {
		t.Errorf("%d packets with the acknowledgement of the first message, want the window of %d, and %d more", n, maxWindow, each)
	}
}

// TestRoutedOrder: packets that overtake one another are placed as they come, the SEND behind them completes last,
// and no packet is requested or sent twice.
func TestRoutedOrder(t *testing.T) {
	const packets, size = 6, 5*1024 + 17
	p := routedPair(t, setup{}, routed)
	p.overtaking(packets + 1)
	p.b.postRecv(7, p.b.mem.sge(0, 8))
	dst := p.b.mem.data[4096:][:size]
	clear(dst)
	p.post(p.a, writeWR(1, p.b.mem.remote(4096), p.a.mem.sge(8192, size)), sendWR(2, p.a.mem.sge(0, 8)))
	placed := 0
	for p.step(Never - 1) {
		n := 0 // bytes from the end on
		for n < size && dst[size-1-n] == p.a.mem.data[8192+size-1-n] {
			n++
		}
		if n > placed && len(p.b.recvd) > 0 && n < size {
			t.Fatalf("the SEND is complete, and %d of %d bytes before it are there", n, size)
		}
		if n < placed {
			t.Fatalf("%d bytes are placed, and were %d", n, placed)
		}
		if n > 0 && n < size {
			placed = n
		}
	}
	if placed < size-2*1024 || !bytes.Equal(dst, p.a.mem.data[8192:][:size]) {
		t.Errorf("%d bytes were placed before the first packet came, of %d", placed, size)
	}
	p.b.wantRecvs(wc{7, verbs.WCSuccess})
	p.a.wantSends(wc{1, verbs.WCSuccess}, wc{2, verbs.WCSuccess})
	if n := len(p.packets(p.a, 0)); n != packets+1 || p.b.qp.Counters().SentSequenceNAKs != 0 || p.b.qp.Work().Writes != packets {
		t.Errorf("%d packets, %+v, %d WRITEs; want %d packets, no NAK, %d WRITEs", n, p.b.qp.Counters(), p.b.qp.Work().Writes, packets+1, packets)
	}
}

// TestRoutedGap: a lost packet is requested once, when its gap has timed out, and packets that have come are not
// placed again. So for each gap.
func TestRoutedGap(t *testing.T) {
	p := routedPair(t, setup{timeout: 18}, routed)
	p.route = func(from *node, n int, _ *wire.Packet) []delay {
		if from == p.a && (n == 1 || n == 4) {
			return nil
		}
		return []delay{testDelay}
	}
	p.post(p.a, writeWR(1, p.b.mem.remote(4096), p.a.mem.sge(8192, 8*1024)))
	p.run()
	p.a.wantSends(wc{1, verbs.WCSuccess})
	var naks []sentPacket
	for _, s := range p.packets(p.b, 0) {
		if s.AETH.Syndrome.Kind() == wire.KindNAK {
			naks = append(naks, s)
		}
	}
	if len(naks) != 1 || naks[0].PSN != 1 || naks[0].at < routed.Patience {
		t.Fatalf("NAKs: %+v; want one of PSN 1, not before %v", naks, routed.Patience)
	}
	if got := p.b.qp.Counters(); got.SentSequenceNAKs != 1 || got.Held != 5 {
		t.Errorf("%+v, want one NAK, and 5 packets that waited", got)
	}
	if got := p.b.qp.Work().WriteBytes; got != 8*1024 {
		t.Errorf("%d bytes are placed, want each once", got)
	}
	p.b.wantState(verbs.QPStateRTS)
}

// TestRoutedSecondGap: when a gap has closed, the next one has its own time.
func TestRoutedSecondGap(t *testing.T) {
	p := routedPair(t, setup{}, routed)
	write := func(d int) wire.Packet {
		pkt := rdma(req(wire.RCRDMAWriteOnly, wire.PSN(d), 8), memBaseB+uint64(8*d), keyB, 8)
		pkt.Resv7 = verbs.DefaultRoutingMark
		return pkt
	}
	p.inject(p.b, write(1))
	p.inject(p.b, write(3))
	p.runUntil(routed.Patience - 1)
	p.inject(p.b, write(0)) // now 2 is missing
	p.runUntil(2*routed.Patience - 2)
	if n := p.b.qp.Counters().SentSequenceNAKs; n != 0 {
		t.Fatalf("%d NAKs, want none: the second gap is younger than %v", n, routed.Patience)
	}
	p.runUntil(2 * routed.Patience)
	if got := p.last(p.b); got.PSN != 2 || got.AETH.Syndrome.Kind() != wire.KindNAK {
		t.Fatalf("sent %v of %v, want a NAK of 2", got.Opcode, got.PSN)
	}
	p.inject(p.b, write(4)) // later packets wait too
	p.inject(p.b, write(2))
	p.runUntil(100 * routed.Patience)
	if p.b.qp.Counters().SentSequenceNAKs != 1 || p.b.qp.Work().Writes != 5 {
		t.Errorf("%+v, %d WRITEs; want one NAK and 5", p.b.qp.Counters(), p.b.qp.Work().Writes)
	}
}

// TestRoutedAsks: a packet that comes before its turn and asks for an acknowledgement gets it in its turn, also where
// only a repeat asks. A peer that does not acknowledge selectively may wait for just that one.
func TestRoutedAsks(t *testing.T) {
	write := func(d int, mark uint16) wire.Packet {
		pkt := rdma(req(wire.RCRDMAWriteOnly, wire.PSN(d), 1024), memBaseB+uint64(1024*d), keyB, 1024)
		pkt.SetReserved(mark)
		return pkt
	}
	for name, tt := range map[string][3]wire.Packet{
		"placed":                        {write(0, 0), write(1, 0), write(2, routed.Mark)},
		"kept":                          {write(0, 0), write(1, 0), write(2, 0)},
		"placed in the middle of WRITE": {rdma(req(wire.RCRDMAWriteFirst, 0, 1024), memBaseB, keyB, 4096), req(wire.RCRDMAWriteMiddle, 1, 1024), req(wire.RCRDMAWriteMiddle, 2, 1024)},
	} {
		for _, again := range []bool{false, true} {
			p := routedPair(t, setup{}, routed)
			first, second, early := tt[0], tt[1], tt[2]
			first.AckReq, second.AckReq, early.AckReq = false, false, !again
			p.inject(p.b, first)
			p.inject(p.b, early)
			if early.AckReq = again; again {
				p.inject(p.b, early)
			}
			p.inject(p.b, second)
			p.transmit()
			if sent := p.packets(p.b, 0); len(sent) != 1 || sent[0].PSN != 2 || sent[0].AETH.Syndrome.Kind() != wire.KindACK {
				t.Errorf("%s, repeated: %v: %d packets, want an ACK of 2", name, again, len(sent))
			}
		}
	}
}

// TestRoutedMiddle: a WRITE in the usual form, longer than the window, whose packets overtake one another ends without
// a timeout.
func TestRoutedMiddle(t *testing.T) {
	r := routed
	r.Send = false
	p := routedPair(t, setup{noTimeout: true}, r)
	p.route = func(from *node, n int, _ *wire.Packet) []delay {
		if from == p.a && n%64 == 1 { // and so the packets behind are there before their turn
			return []delay{3 * testDelay}
		}
		return []delay{testDelay}
	}
	const size = 600 * 1024
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, size)))
	p.run()
	p.a.wantSends(wc{1, verbs.WCSuccess})
	if n := p.b.qp.Counters().SentSequenceNAKs; n != 0 || !bytes.Equal(p.a.mem.data[:size], p.b.mem.data[:size]) {
		t.Errorf("%d NAKs, want none, and the data in place", n)
	}
}

// TestRoutedRefused: a WRITE before its turn does not touch memory that it may not touch, and the refusal comes in
// its turn. So does the refusal of a WRITE inside another message.
func TestRoutedRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		first, early wire.Packet
		nak          wire.NAKCode
	}{
		"a key of nobody":        {req(wire.RCRDMAWriteOnly, 0, 8), rdma(req(wire.RCRDMAWriteOnly, 1, 8), memBaseB, 0x156, 8), wire.NAKRemoteAccessError},
		"a length of its own":    {req(wire.RCRDMAWriteOnly, 0, 8), rdma(req(wire.RCRDMAWriteOnly, 1, 8), memBaseB, keyB, 16), wire.NAKInvalidRequest},
		"inside another message": {req(wire.RCRDMAWriteFirst, 0, 1024), rdma(req(wire.RCRDMAWriteOnly, 1, 8), memBaseB, keyB, 8), wire.NAKInvalidRequest},
	} {
		p := routedPair(t, setup{}, routed)
		before := bytes.Clone(p.b.mem.data[:64])
		tt.early.Resv7 = verbs.DefaultRoutingMark
		p.inject(p.b, tt.early)
		if name != "inside another message" && !bytes.Equal(before, p.b.mem.data[:64]) {
			t.Errorf("%s: memory has changed", name)
		}
		p.b.wantState(verbs.QPStateRTS)
		size := uint32(8)
		if tt.first.Opcode == wire.RCRDMAWriteFirst {
			size = 2048
		}
		p.inject(p.b, rdma(tt.first, memBaseB+4096, keyB, size))
		p.b.wantState(verbs.QPStateErr)
		p.transmit()
		if got := p.last(p.b); got.PSN != 1 || got.AETH.Syndrome != wire.SyndromeNAK(tt.nak) {
			t.Errorf("%s: answered %v with %v, want %v with %v", name, got.PSN, got.AETH.Syndrome, wire.PSN(1), wire.SyndromeNAK(tt.nak))
		}
	}
}

// TestRoutedNot: without the mark no packet is placed before its turn, and without Accept no packet is held.
func TestRoutedNot(t *testing.T) {
	for _, tt := range []struct {
		name   string
		accept bool
		mark   uint16
		held   uint64
		naks   uint64
	}{
		{"no mark", true, 0, 1, 0},
		{"another mark", true, 0x20, 1, 0},
		{"part of the mark", true, 0x150, 1, 0},
		{"its other part", true, 0x210, 1, 0},
		{"not accepted", false, 0x350, 0, 1},
	} {
		r := routed
		r.Accept, r.Mark = tt.accept, 0x350
		p := routedPair(t, setup{}, r)
		before := bytes.Clone(p.b.mem.data[:8])
		early := rdma(req(wire.RCRDMAWriteOnly, 1, 8), memBaseB, keyB, 8)
		early.SetReserved(tt.mark)
		early.Payload = bytes.Repeat([]byte{0xee}, 8)
		p.inject(p.b, early)
		p.transmit()
		if c := p.b.qp.Counters(); c.Held != tt.held || c.SentSequenceNAKs != tt.naks || !bytes.Equal(before, p.b.mem.data[:8]) {
			t.Errorf("%s: %+v, placed: %v; want %d held, %d NAKs, nothing placed", tt.name, c, !bytes.Equal(before, p.b.mem.data[:8]), tt.held, tt.naks)
		}
	}
}

// TestRoutedNotReady: packets behind a SEND that finds no receive are no gap. The peer gets an RNR NAK, which costs
// it no retry. Packets that it then repeats wait too, where they overtake the SEND.
func TestRoutedNotReady(t *testing.T) {
	for _, k := range []int{0, 1, 2, 3} {
		told, late := k&1 != 0, k&2 != 0                               // repeats are overtaken
		p := routedPair(t, setup{noRetry: true, rnrTimer: 14}, routed) // 1 ms
		first := uint64(1)                                             // SEND without a receive
		if told {
			first = 2
			p.b.postRecv(1, p.b.mem.sge(0, 8))
			p.inject(p.b, req(wire.RCSendOnly, 1, 8))
			p.runUntil(2 * routed.Patience)
		}
		naks := p.b.qp.Counters().SentSequenceNAKs
		p.route = func(from *node, n int, pkt *wire.Packet) []delay {
			if from == p.a && n >= 4 == late {
				return []delay{testDelay * delay(5-pkt.PSN)}
			}
			return []delay{testDelay}
		}
		p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)))
		for id := uint64(2); id < 5; id++ {
			p.post(p.a, sendWR(id, p.a.mem.sge(0, 8)))
		}
		p.runUntil(p.now + 500*us)
		for id := first; id < 5; id++ {
			p.b.postRecv(id, p.b.mem.sge(0, 8))
		}
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0}, wc{4, 0})
		if c := p.b.qp.Counters(); c.SentSequenceNAKs != naks || c.SentRNRNAKs == 0 {
			t.Errorf("told of a gap before: %v, late: %v: %+v; want RNR NAKs and no other", told, late, c)
		}
	}
}

// TestRoutedGapEnds: if the wait for a gap ends early, the gap is still repaired: when a peer's hello comes, and when
// the program accepts no more reordering. No timeout is needed.
func TestRoutedGapEnds(t *testing.T) {
	for name, end := range map[string]func(p *pair){
		"hello":    func(p *pair) { p.a.qp.PeerIsOurs() },
		"accepted": func(p *pair) { p.b.qp.SetAdaptiveRouting(verbs.AdaptiveRouting{}) },
	} {
		p := routedPair(t, setup{noTimeout: true}, routed)
		p.loseNth(p.a, 1, 5)
		p.post(p.a, writeWR(1, p.b.mem.remote(4096), p.a.mem.sge(8192, 8*1024)))
		p.runUntil(2 * testDelay)
		end(p)
		p.run()
		p.a.wantSends(wc{1, verbs.WCSuccess})
		if p.now >= routed.Patience {
			t.Errorf("%s: the end after %v, want it before %v", name, p.now, routed.Patience)
		}
	}
}

// TestRoutedBeyond: a packet that is too far before its turn to be held asks for all packets at once, since nothing
// else would.
func TestRoutedBeyond(t *testing.T) {
	p := routedPair(t, setup{}, routed)
	p.inject(p.b, rdma(req(wire.RCRDMAWriteOnly, wire.MaxRanges, 8), memBaseB, keyB, 8))
	p.transmit()
	if got := p.last(p.b); got.PSN != 0 || got.AETH.Syndrome.Kind() != wire.KindNAK {
		t.Errorf("sent %v of %v, want a NAK of 0", got.Opcode, got.PSN)
	}
}

// TestRoutedInsideREAD: a packet with a PSN of a READ's response is no request, and stands for none that comes 1024
// PSNs later.
func TestRoutedInsideREAD(t *testing.T) {
	for _, mark := range []uint16{0, routed.Mark} {
		p := routedPair(t, setup{}, routed)
		early := rdma(req(wire.RCRDMAWriteOnly, 5, 8), memBaseB, keyB, 8)
		early.SetReserved(mark)
		p.inject(p.b, early)
		p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB, keyB, 1000*1024))
		if h := &p.b.rc().responder.reorder; h.n != 0 || h.kept != 0 {
			t.Errorf("mark %#x: %d packets are held, %d with a copy; want none", mark, h.n, h.kept)
		}
		p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 1000, 0), memBaseB, keyB, 29*1024))
		if epsn, n := p.b.qp.receiver.epsn, p.b.qp.Work().Writes; epsn != 1029 || n != 0 {
			t.Errorf("mark %#x: PSN %v is next, and %d WRITEs are carried out; want 1029 and none", mark, uint32(epsn), n)
		}
	}
}

// TestRoutedAny: packets are lost, repeated and overtaken, between adverbs and with peers that do not acknowledge
// selectively. Each WRITE ends with its bytes in place, each SEND completes after the earlier messages, and without
// losses no timeout is needed.
func TestRoutedAny(t *testing.T) {
	const rounds, each = 40, 12
	for seed := range uint64(rounds) {
		for _, selective := range []bool{false, true} {
			t.Run(fmt.Sprint(seed, selective), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 9))
				p := routedPair(t, setup{selective: selective, timeout: 16}, routed)
				loss := rnd.IntN(2) * rnd.IntN(8)
				p.route = func(*node, int, *wire.Packet) []delay {
					ds := []delay{testDelay + delay(rnd.IntN(12))*testDelay}
					switch k := rnd.IntN(100); {
					case k < loss:
						return nil
					case k > 97:
						ds = append(ds, testDelay*20)
					}
					return ds
				}
				clear(p.b.mem.data[64<<10:])
				fill := byte(seed + 1)
				for i := range p.a.mem.data[:64<<10] {
					p.a.mem.data[i] = fill + byte(i>>8)
				}
				size := 1 + rnd.IntN(4*1024)
				for i := range uint64(each) {
					p.b.postRecv(i, p.b.mem.sge(0, 8))
					p.post(p.a, writeWR(2*i, p.b.mem.remote(64<<10+int(i)*4096), p.a.mem.sge(int(i)*64, size)), sendWR(2*i+1, p.a.mem.sge(0, 8)))
				}
				for p.step(time.Minute) {
					for i := range p.b.recvd {
						if !bytes.Equal(p.b.mem.data[64<<10+i*4096:][:size], p.a.mem.data[i*64:][:size]) {
							t.Fatalf("SEND %d is complete, and the WRITE before it is not in place", i)
						}
					}
				}
				if len(p.a.sends) != 2*each || len(p.b.recvd) != each {
					t.Fatalf("%d and %d completions, want %d and %d; %+v", len(p.a.sends), len(p.b.recvd), 2*each, each, p.a.qp.Counters())
				}
				for i, s := range p.a.sends {
					if s.wc.Status != verbs.WCSuccess || s.wc.ID != uint64(i) {
						t.Errorf("completion %d: %d with %v", i, s.wc.ID, s.wc.Status)
					}
				}
				if a, b := p.a.qp.Counters(), p.b.qp.Counters(); loss == 0 && (a.Timeouts != 0 || b.SentSequenceNAKs != 0) {
					t.Errorf("%d timeouts and %d NAKs, and nothing was lost", a.Timeouts, b.SentSequenceNAKs)
				}
			})
		}
	}
}

// TestRoutedLate: on a network that delays every fourth packet by a round trip, marked WRITEs reach the throughput of
// a window per such a round trip, and no packet is sent twice, though the peer does not acknowledge selectively.
// Without the mark a twentieth gets through.
func TestRoutedLate(t *testing.T) {
	const bytes = 64 << 20
	run := func(late float64, routed bool) lossResult {
		return lossRun(t, verbs.OpRDMAWrite, lossCase{name: "late", late: late, routed: routed}, false, 1, bytes)
	}
	ordered, late, plain := run(0, false), run(.25, true), run(.25, false)
	t.Logf("MB/s: in order %.1f; every fourth late: %.1f with adaptive routing, %.1f without", ordered.goodput()/1e6, late.goodput()/1e6, plain.goodput()/1e6)
	if late.goodput() < .7*ordered.goodput() || late.repeated > 0 || plain.goodput() > .1*ordered.goodput() {
		t.Errorf("%.3g of the ordered rate with adaptive routing, %d packets sent twice, %.3g without; want 0.7 at least, none, and 0.1 at most",
			late.goodput()/ordered.goodput(), late.repeated, plain.goodput()/ordered.goodput())
	}
}

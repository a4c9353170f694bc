package transport

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestSelectiveRepeat: between peers that both acknowledge selectively, only lost packets are repeated. The responder
// holds later packets, and acknowledges them.
func TestSelectiveRepeat(t *testing.T) {
	for name, wr := range map[string]func(p *pair) verbs.SendWR{
		"WRITE": func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(1<<16), p.a.mem.sge(0, 60*256)) },
		"SEND":  func(p *pair) verbs.SendWR { return sendWR(1, p.a.mem.sge(0, 60*256)) },
		"READ":  func(p *pair) verbs.SendWR { return readWR(1, p.b.mem.remote(0), p.a.mem.sge(1<<16, 60*256)) },
	} {
		for _, lost := range [][]int{{0}, {3}, {58}, {3, 4, 5}, {0, 10, 20, 30}} {
			p := newPair(t, setup{mtu: verbs.MTU256, selective: true, timeout: 18})
			from, to := p.a, p.b.mem.data[1<<16:]
			source := p.a.mem.data
			if name == "READ" {
				from, to, source = p.b, p.a.mem.data[1<<16:], p.b.mem.data
			}
			p.loseNth(from, lost...)
			p.b.postRecv(1, p.b.mem.sge(1<<16, 60*256))
			p.post(p.a, wr(p))
			p.run()
			p.a.wantSends(wc{1, 0})
			a, b := p.a.qp.Counters(), p.b.qp.Counters()
			again := a.Retransmits
			if name == "READ" { // a request may ask for several responses
				again = uint64(p.b.sent - 60)
			}
			if again != uint64(len(lost)) || a.Timeouts+a.Probes+a.SequenceNAKs != 0 || b.OutOfOrder != 0 {
				t.Errorf("%s, lost %v: %+v and %+v; want as many packets sent again, none dropped, no NAK, probe or timeout", name, lost, a, b)
			}
			if !bytes.Equal(to[:60*256], source[:60*256]) {
				t.Errorf("%s, lost %v: other data arrived", name, lost)
			}
		}
	}
}

// TestOrderOfEffects: however packets are lost and reordered, a WRITE shows no byte before the earlier WRITE is
// whole, and its last word not before the rest. So a program that watches memory may rely on the last word.
func TestOrderOfEffects(t *testing.T) {
	const slot, n = 5 * 256, 60 // bytes of a WRITE, and how many WRITEs
	seeds := uint64(20)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 0x6f72646572))
		p := newPair(t, setup{mtu: verbs.MTU256, selective: true, timeout: 16})
		p.single = true
		p.route = func(from *node, _ int, _ *wire.Packet) []delay {
			if rnd.IntN(10) == 0 {
				return nil
			}
			return []delay{testDelay + delay(rnd.IntN(4))*testDelay*delay(rnd.IntN(2))}
		}
		clear(p.b.mem.data[:n*slot])
		data := bytes.Repeat([]byte{0xee}, slot)
		copy(p.a.mem.data, data)
		for id := range uint64(n) {
			p.post(p.a, writeWR(id, p.b.mem.remote(int(id)*slot), p.a.mem.sge(0, slot)))
		}
		for p.step(Never - 1) {
			begun := false // a slot behind this one has
			for k := n - 1; k >= 0; k-- {
				b := p.b.mem.data[k*slot:][:slot]
				done := bytes.Count(b, []byte{0xee})
				if (begun || b[slot-1] != 0) && done != slot {
					t.Fatalf("seed %d, at %v: WRITE %d shows %d of %d bytes, and the next one shows: %v", seed, p.now, k, done, slot, begun)
				}
				begun = begun || done > 0
			}
		}
		if len(p.a.sends) != n || p.b.qp.Counters().Held == 0 || p.b.qp.Work().WriteBytes != n*slot {
			t.Errorf("seed %d: %d completions, %d bytes placed, %+v; want %d and %d, and some held", seed, len(p.a.sends), p.b.qp.Work().WriteBytes, p.b.qp.Counters(), n, n*slot)
		}
	}
}

// TestHello: a peer that has sent no hello gets NAKs. If the hello is lost, the NAK shows that, and the hello goes
// again. A malformed hello, or one with a PSN that the peer cannot have, changes nothing.
func TestHello(t *testing.T) {
	lossy := func(p *pair) {
		t.Helper()
		n := p.a.sent
		p.routeWith(func(from *node, k int, _ *wire.Packet) bool { return from == p.a && k == n+3 })
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 20*256)))
		p.run()
	}
	p := newPair(t, setup{mtu: verbs.MTU256})
	lossy(p)
	if a, b := p.a.qp.Counters(), p.b.qp.Counters(); a.SequenceNAKs != 1 || b.Held != 0 {
		t.Errorf("not told: %+v and %+v, want a NAK and nothing held", a, b)
	}

	p = newPair(t, setup{mtu: verbs.MTU256})
	p.routeWith(func(*node, int, *wire.Packet) bool { return true })
	p.a.qp.PeerIsOurs()
	if !p.a.qp.HasPackets() {
		t.Error("a device hears of no packet, want it to ask for the hello")
	}
	p.transmit()
	if got := p.opcodes(p.a, 0); len(got) != 1 || got[0] != wire.RCHello {
		t.Fatalf("sent %v, want a hello", got)
	}
	p.a.qp.PeerIsOurs() // and no second one
	lossy(p)
	lossy(p)
	if a, b := p.a.qp.Counters(), p.b.qp.Counters(); a.SequenceNAKs != 1 || b.Held == 0 {
		t.Errorf("told again: %+v and %+v, want one NAK, and some held from then on", a, b)
	}

	for name, pkt := range map[string]wire.Packet{
		"a PSN of nobody":  {BTH: wire.BTH{PSN: 1 << 20}, Payload: wire.Hello{Version: helloSACK}.AppendTo(nil)},
		"another's word":   {Payload: []byte("whatever")},
		"no word":          {},
		"an older version": {Payload: wire.Hello{}.AppendTo(nil)},
	} {
		p := newPair(t, setup{mtu: verbs.MTU256})
		pkt.Opcode = wire.RCHello
		p.inject(p.b, pkt)
		if p.b.rc().responder.reorder.peerSACKs || p.b.qp.Counters().Unexpected != 1 {
			t.Errorf("%s is taken for a hello", name)
		}
	}
}

// TestStandard: a QP that keeps to the standard sends no hello, and ignores the peer's.
func TestStandard(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.a.qp.cfg.Standard = true
	p.a.qp.PeerIsOurs()
	p.transmit()
	if got := p.opcodes(p.a, 0); len(got) != 0 {
		t.Errorf("sent %v, want nothing", got)
	}
	p.b.qp.PeerIsOurs()
	p.run()
	if p.a.rc().responder.reorder.peerSACKs || p.a.qp.Counters().Unexpected == 0 {
		t.Errorf("the peer's word was taken: %+v", p.a.qp.Counters())
	}
}

// TestReorderBufferBounds: the packets that strangers and peers can make a responder hold are bounded, and their
// memory is given back.
func TestReorderBufferBounds(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, selective: true})
	epsn := p.b.qp.receiver.epsn
	for d := 2 * wire.MaxRanges; d > 0; d-- {
		p.inject(p.b, rdma(req(wire.RCRDMAWriteOnly, epsn.Add(d), 8), memBaseB, keyB, 8))
	}
	h := &p.b.rc().responder.reorder
	if h.kept != maxHeld || h.n != maxHeld {
		t.Errorf("%d packets are held, %d with a copy, want %d", h.n, h.kept, maxHeld)
	}
	if c := p.b.qp.Counters(); c.Held != maxHeld || c.OutOfOrder != 2*wire.MaxRanges-maxHeld {
		t.Errorf("%+v, want %d held and the others dropped", c, maxHeld)
	}
	p.transmit()
	if got := p.last(p.b); got.Opcode != wire.RCAckRanges || got.PSN != epsn {
		t.Errorf("answered with %v of %v, want ranges from %v on", got.Opcode, got.PSN, epsn)
	}
	// The latest that fit are those from MaxRanges-1 down. Once the rest has come all are executed.
	for d := range wire.MaxRanges - maxHeld {
		p.inject(p.b, rdma(req(wire.RCRDMAWriteOnly, epsn.Add(d), 8), memBaseB, keyB, 8))
	}
	if h.n != 0 || h.kept != 0 {
		t.Errorf("%d packets are held, and %d copies; want none", h.n, h.kept)
	}
	if slices.ContainsFunc(h.slots, func(b []byte) bool { return b != nil }) {
		t.Error("a copy is held that nobody waits for, want none")
	}
	if got, want := p.b.qp.Work().Writes, uint64(wire.MaxRanges); got != want {
		t.Errorf("%d WRITEs are carried out, want %d", got, want)
	}
	p.state(p.b, verbs.QPStateErr)
	if h.reorderSlots != nil {
		t.Error("a QP in error holds packets")
	}
}

// countedBuffers counts the buffers that were taken, and given back.
type countedBuffers struct{ got, back int }

func (c *countedBuffers) Get() any { c.got++; return new([MaxDatagram]byte) }
func (c *countedBuffers) Put(any)  { c.back++ }

// TestReorderBufferMemory: the buffer of a held packet goes back once the next packet is taken out. A short packet
// needs none.
func TestReorderBufferMemory(t *testing.T) {
	const packets = 50
	var h reorderBuffer
	var buffers countedBuffers
	for psn := range wire.PSN(packets) {
		for _, n := range []int{shortHeld, shortHeld + 1} {
			p := req(wire.RCRDMAWriteMiddle, psn, n)
			if !h.keep(&p, &buffers) {
				t.Fatalf("packet %v is not kept", psn)
			}
			if got, _, _ := h.take(psn); len(got.Payload) != n {
				t.Fatalf("packet %v has %d bytes, want %d", psn, len(got.Payload), n)
			}
		}
	}
	if buffers.got != packets || buffers.back < packets-1 || buffers.back > packets {
		t.Errorf("%d buffers were taken for %d long packets, and %d given back; want one each, and all back but the latest", buffers.got, packets, buffers.back)
	}
}

// TestReportedRanges: an acknowledgement names the held packets and no others, for any PSNs. A packet that it named
// wrongly would never be sent again.
func TestReportedRanges(t *testing.T) {
	for _, epsn := range []wire.PSN{0, 1, 63, 1000, 1<<24 - 3, 1<<24 - wire.MaxRanges} {
		var h reorderBuffer
		ahead := []int{1, 5, 31, 32, 64, 200, wire.MaxRanges - 1}
		for i, d := range ahead {
			p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PSN: epsn.Add(d)}}
			if i%2 == 0 {
				h.place(p.PSN)
			} else if !h.keep(&p, nil) {
				t.Fatal("no room")
			}
		}
		r := wire.Ranges{Bits: h.ranges(epsn)}
		var got []int
		for from, to := r.Next(0); from < to; from, to = r.Next(to) {
			for ; from < to; from++ {
				got = append(got, from)
			}
		}
		if !slices.Equal(got, ahead) {
			t.Errorf("PSN %v: got %v, want %v", epsn, got, ahead)
		}
	}
}

// TestPlaceIsFree: a packet leaves nothing behind for the next packet at its place in the ring.
func TestPlaceIsFree(t *testing.T) {
	var h reorderBuffer
	asking := req(wire.RCRDMAWriteOnly, 5, 8)
	h.placeMessage(5)
	h.note(&asking)
	if _, whole, asks := h.take(5); !whole || !asks {
		t.Errorf("a whole WRITE that asks: whole %v, asks %v; want both", whole, asks)
	}
	h.place(5 + wire.MaxRanges)
	if _, whole, asks := h.take(5 + wire.MaxRanges); whole || asks {
		t.Errorf("the middle of a WRITE in its place: whole %v, asks %v; want neither", whole, asks)
	}
	asking.Opcode, asking.PSN = wire.RCSendOnly, 5
	h.keep(&asking, nil)
	if pkt, _, _ := h.take(5); pkt == nil || pkt.Opcode != wire.RCSendOnly {
		t.Errorf("a SEND that was kept there: %v, want it back", pkt)
	}
}

// TestEndBeforeItsTurn: the end of a WRITE is not placed before its turn, even if its opcode says that it is the
// middle.
func TestEndBeforeItsTurn(t *testing.T) {
	const mtu = 256
	p := newPair(t, setup{mtu: verbs.MTU256, selective: true})
	epsn := p.b.qp.receiver.epsn
	full := func(op wire.Opcode, d int) wire.Packet {
		pkt := req(op, epsn.Add(d), mtu)
		for i := range pkt.Payload {
			pkt.Payload[i] = 0xee
		}
		return rdma(pkt, memBaseB, keyB, 4*mtu)
	}
	clear(p.b.mem.data[:4*mtu])
	p.inject(p.b, full(wire.RCRDMAWriteFirst, 0))
	p.inject(p.b, full(wire.RCRDMAWriteMiddle, 2))
	p.inject(p.b, full(wire.RCRDMAWriteMiddle, 3))
	if h := &p.b.rc().responder.reorder; h.n != 2 || h.kept != 1 {
		t.Errorf("%d packets are there, %d with a copy; want two, and the last with one", h.n, h.kept)
	}
	if b := p.b.mem.data[:4*mtu]; b[2*mtu] != 0xee || b[3*mtu] != 0 {
		t.Errorf("the third packet is placed: %v, the last: %v; want the third alone", b[2*mtu] != 0, b[3*mtu] != 0)
	}

	// A packet that is shorter than the middle of a message is refused in its turn. Placing it would leave a hole.
	p = newPair(t, setup{mtu: verbs.MTU256, selective: true})
	short := full(wire.RCRDMAWriteMiddle, 2)
	short.Payload = short.Payload[:mtu-4]
	p.inject(p.b, full(wire.RCRDMAWriteFirst, 0))
	p.inject(p.b, short)
	p.inject(p.b, full(wire.RCRDMAWriteMiddle, 1))
	p.b.wantState(verbs.QPStateErr)
	p.b.wantEvents(verbs.EventQPReqErr)
}

// TestHeldSENDWithoutReceive: a held SEND that finds no receive is refused in its turn, and comes again.
func TestHeldSENDWithoutReceive(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, selective: true, timeout: 16})
	p.loseNth(p.a, 0)
	p.b.postRecv(0)
	for id := range uint64(6) {
		p.post(p.a, sendWR(id))
	}
	p.runUntil(10 * testDelay)
	for id := range uint64(5) {
		p.b.postRecv(id + 1)
	}
	p.run()
	p.a.wantSends(wc{0, 0}, wc{1, 0}, wc{2, 0}, wc{3, 0}, wc{4, 0}, wc{5, 0})
	p.b.wantRecvs(wc{0, 0}, wc{1, 0}, wc{2, 0}, wc{3, 0}, wc{4, 0}, wc{5, 0})
	if c := p.a.qp.Counters(); c.RNRNAKs == 0 {
		t.Errorf("%+v, want an RNR NAK", c)
	}
}

// TestOldRanges: ranges with a READ that waits for its turn are old once a response to the READ has come. Responses
// that have come are not waited for again.
func TestOldRanges(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, selective: true, noTimeout: true})
	p.routeWith(func(*node, int, *wire.Packet) bool { return true }) // the test makes all other packets
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256)), readWR(2, p.b.mem.remote(256), p.a.mem.sge(256, 3*256)))
	p.transmit()
	first := psn(p.a.rc().recovery.Una())
	response := func(op wire.Opcode, d int) {
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: op, PSN: first.Add(d)}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(wire.CreditsUnlimited)},
			Payload: p.b.mem.data[256*d:][:256]})
	}
	response(wire.RCRDMAReadResponseMiddle, 2)
	old := wire.Ranges{Latest: first.Add(1), Bits: []byte{1 << 1, 0, 0, 0}} // the second READ, and not the first
	p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAckRanges, PSN: first}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(wire.CreditsUnlimited)}, Payload: old.AppendTo(nil)})
	response(wire.RCRDMAReadResponseFirst, 1)
	response(wire.RCRDMAReadResponseLast, 3)
	response(wire.RCRDMAReadResponseOnly, 0)
	p.a.wantSends(wc{1, verbs.WCSuccess}, wc{2, verbs.WCSuccess})
	if !bytes.Equal(p.a.mem.data[:1024], p.b.mem.data[:1024]) {
		t.Error("other data arrived")
	}
}

// TestForgedRanges: ranges with a READ that the peer was not sent change nothing.
func TestForgedRanges(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, selective: true, noTimeout: true, rd: 1})
	p.routeWith(func(*node, int, *wire.Packet) bool { return true }) // the test makes all other packets
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3*256)), readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 3*256)))
	p.transmit()
	rec := &p.a.rc().recovery
	first, before := psn(rec.Una()), rec.String()
	forged := wire.Ranges{Latest: first.Add(3), Bits: []byte{1 << 3, 0, 0, 0}}
	p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAckRanges, PSN: first}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(wire.CreditsUnlimited)}, Payload: forged.AppendTo(nil)})
	if got := rec.String(); got != before {
		t.Errorf("%s, want %s as before", got, before)
	}
	p.a.wantState(verbs.QPStateRTS)
}

// TestReorderWindow: packets that are overtaken, and late, widen the reorder window, up to two round trips. Packets
// in order narrow it.
func TestReorderWindow(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, selective: true, timeout: 18})
	rnd := rand.New(rand.NewPCG(1, 0x6c617465))
	late := true
	p.route = func(from *node, _ int, _ *wire.Packet) []delay {
		if late && rnd.IntN(4) == 0 {
			return []delay{2 * testDelay}
		}
		return []delay{testDelay}
	}
	rec := &p.a.rc().recovery
	write := func(id uint64) (repeated uint64) {
		before := p.a.qp.Counters().Retransmits
		p.post(p.a, writeWR(id, p.b.mem.remote(0), p.a.mem.sge(0, 1000*256)))
		p.run()
		return p.a.qp.Counters().Retransmits - before
	}
	first := write(0)
	for id := range uint64(8) {
		write(id + 1)
	}
	if last := write(9); first == 0 || last > first/4 {
		t.Errorf("%d packets are repeated at first and %d at last; want a quarter at most", first, last)
	}
	if rec.Gauges().ReorderWindow == 0 || rec.Gauges().ReorderWindow > 2*rec.SRTT() {
		t.Errorf("patience of %v, want some, and %v at most", rec.Gauges().ReorderWindow, 2*rec.SRTT())
	}
	late = false
	p.now += 1000 * ms
	for id := range uint64(20) {
		write(id + 10)
		p.now += 1000 * ms
	}
	if rec.Gauges().ReorderWindow > us {
		t.Errorf("patience of %v after calm, want none", rec.Gauges().ReorderWindow)
	}
}

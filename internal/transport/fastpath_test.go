package transport

import (
	"bytes"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// fastRecord is a record of the fast path: a message, an ACK, or both.
type fastRecord struct {
	*Message // or nil
	data     []byte
	acked    wire.PSN // without a Message
	aeth     wire.AETH
}

// postFast posts a SEND by the fast path. It reports whether that was possible.
func (p *pair) postFast(e *node, wr *verbs.SendWR) bool {
	if !e.qp.SendsFast() {
		return false
	}
	r := &fastRecord{Message: new(Message), data: make([]byte, FastMost)}
	n, ok := e.qp.SendFast(wr, r.data, r.Message)
	if !ok {
		return false
	}
	r.data = r.data[:n]
	p.sendFast(e, r)
	if !e.qp.FastTimerRuns() {
		e.qp.StartFastTimer(p.now)
	}
	return true
}

// sendFast puts a record of e on the network.
func (p *pair) sendFast(e *node, r *fastRecord) {
	s, l := sentPacket{from: e, at: p.now, Packet: *r.packet()}, &Loan{}
	if r.Message != nil {
		s.run, l = r.Packets, e.qp.Loan()
	}
	p.launch(s, l, inFlight{fast: r})
}

// packet returns the packet that a record stands for.
func (r *fastRecord) packet() *wire.Packet {
	if r.Message == nil {
		return &wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: r.acked}, AETH: r.aeth}
	}
	pkt := &wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PSN: r.PSN, AckReq: true, Solicited: r.Solicited}, Payload: r.data}
	if r.HasImm {
		pkt.Opcode, pkt.Imm = wire.RCSendOnlyWithImm, r.Imm
	}
	return pkt
}

// receiveFast handles a record as a device does.
func (p *pair) receiveFast(to *node, r *fastRecord, l *loan) {
	if r.Message == nil {
		if !to.qp.AcknowledgeFast(p.now, r.acked, r.aeth) {
			to.qp.HandlePacket(p.now, r.packet(), 0)
		}
	} else {
		payload := r.data
		var lent Lent
		if l != nil {
			lent, payload = l, l.payload
		}
		if !to.qp.ReceiveFast(p.now, r.Message, payload, lent) {
			pkt := r.packet()
			pkt.Payload = payload
			if r.Packets == 1 && lent == nil {
				to.qp.HandlePacket(p.now, pkt, 0)
			} else {
				to.qp.HandleRun(p.now, pkt, r.Packets, lent)
			}
		}
	}
	to.collect()
	checkBounds(p.t, to.qp)
}

// posts posts SENDs of 8 bytes from a.
func (p *pair) posts(from, n int) {
	for i := range n {
		p.post(p.a, sendWR(uint64(from+i), p.a.mem.sge(8*i, 8)))
	}
}

// took returns how many of a's SENDs are under way by the fast path.
func (p *pair) took() int { return int(p.a.rc().fast.n) }

// TestFast: SENDs that take the fast path complete at both ends as others do, whether the ACK comes alone or with a
// message.
func TestFast(t *testing.T) {
	p := newPair(t, setup{fast: true, psnA: 0xffffff, lends: true})
	p.b.postRecv(70, p.b.mem.sge(1<<16, 8))
	p.posts(1, 1) // the first packet of a peer takes no fast path: see established
	p.run()
	var want []recvDone
	sent := []wc{{1, verbs.WCSuccess}}
	for i, tt := range []struct {
		n   int
		set func(*verbs.SendWR)
	}{
		{n: 0}, {n: 1}, {n: FastMost}, {n: lendLeast}, {n: 5000},
		{n: 8, set: func(wr *verbs.SendWR) { wr.Op, wr.Imm = verbs.OpSendWithImm, 99 }},
		{n: 8, set: func(wr *verbs.SendWR) { wr.Flags |= verbs.SendSolicited }},
		{n: 200, set: func(wr *verbs.SendWR) { wr.Flags |= verbs.SendInline }},
		{n: 3, set: func(wr *verbs.SendWR) {
			wr.Flags |= verbs.SendInline
			wr.SGList, wr.InlineData = nil, []byte("abc")
		}},
	} {
		if tt.n > FastMost && !canLend {
			continue
		}
		wr := sendWR(uint64(2+i), p.a.mem.sge(4096, tt.n))
		if tt.set != nil {
			tt.set(&wr)
		}
		data := p.a.mem.data[4096:][:tt.n]
		if wr.InlineData != nil {
			data = wr.InlineData
		}
		at := 1<<16 + i<<13
		p.b.postRecv(uint64(71+i), p.b.mem.sge(at, 1<<13))
		if p.post(p.a, wr); p.took() == 0 {
			t.Fatalf("SEND %d does not take the fast path, want it to", i)
		}
		p.run()
		sent = append(sent, wc{uint64(2 + i), verbs.WCSuccess})
		p.a.wantSends(sent...)
		if got := p.b.mem.data[at:][:tt.n]; !bytes.Equal(got, data) {
			t.Errorf("SEND %d has other contents at the receiver", i)
		}
		r := recvDone{verbs.WC{ID: uint64(71 + i), Op: verbs.WCRecv, ByteLen: uint32(tt.n), QPN: 0x22, SrcQPN: 0x11}, wr.Flags&verbs.SendSolicited != 0}
		if wr.Op == verbs.OpSendWithImm {
			r.wc.Flags, r.wc.Imm = verbs.WCFlagWithImm, 99
		}
		want = append(want, r)
	}
	for i, got := range p.b.recvd[1:] {
		if got.wc.QP = nil; got != want[i] {
			t.Errorf("receive %d: %+v, want %+v", i, got, want[i])
		}
	}
	for _, e := range []*node{p.a, p.b} {
		if c := e.qp.Counters(); c != (Counters{}) {
			t.Errorf("%s: %+v, want no loss, repeat or refusal", e.name, c)
		}
		if next := e.qp.NextTimeout(); next != Never {
			t.Errorf("%s: a timer is due at %v, want none", e.name, next)
		}
	}
}

// newFast is a pair whose ends have received from each other. All work requests of a are complete; b has n receives,
// from ID 100 on.
func newFast(t *testing.T, s setup, n int) *pair {
	s.fast = true
	p := newPair(t, s)
	p.b.postRecv(99, p.b.mem.sge(1<<16, 8))
	p.posts(99, 1)
	p.run()
	p.a.sends, p.b.recvd, p.log, p.a.sent, p.b.sent = nil, nil, nil, 0, 0
	p.restartTime()
	p.a.rc().recovery.ForgetLatest() // with the clock set back
	p.receives(100, n)
	return p
}

// receives posts n receives of 64 bytes at b.
func (p *pair) receives(from, n int) {
	for i := range n {
		p.b.postRecv(uint64(from+i), p.b.mem.sge(1<<16+64*(from+i-100), 64))
	}
}

// wantFast checks that a's SENDs from ID 1 on have all succeeded, and that each has come once, in order.
func (p *pair) wantFast(n int) {
	p.t.Helper()
	var sent []wc
	for i := range n {
		sent = append(sent, wc{uint64(1 + i), verbs.WCSuccess})
		if i < len(p.b.recvd) && (p.b.recvd[i].wc.ID != uint64(100+i) || p.b.recvd[i].wc.Status != verbs.WCSuccess) {
			p.t.Errorf("receive %d: %+v, want ID %d and success", i, p.b.recvd[i].wc, 100+i)
		}
	}
	p.a.wantSends(sent...)
	if len(p.b.recvd) != n {
		p.t.Errorf("%d messages have come, want %d", len(p.b.recvd), n)
	}
}

// TestFastLost: SENDs of the fast path that are lost go again as packets, with the same PSNs: at once, if the peer
// misses them, or once nothing has arrived for a while. Where the ACK is lost, the receiver recognizes the repeat.
func TestFastLost(t *testing.T) {
	for _, tt := range []struct {
		name       string
		lose       func(from *node, n int, pkt *wire.Packet) bool
		late       bool
		duplicates bool
	}{
		{"one message", func(from *node, n int, pkt *wire.Packet) bool { return n == 1 && pkt.Opcode == wire.RCSendOnly }, false, false},
		{"all messages", func(from *node, n int, pkt *wire.Packet) bool { return n < 3 && pkt.Opcode == wire.RCSendOnly }, true, false},
		{"acknowledgement", func(from *node, n int, pkt *wire.Packet) bool { return n == 0 && pkt.Opcode == wire.RCAcknowledge }, true, true},
	} {
		p := newFast(t, setup{}, 3)
		p.routeWith(tt.lose)
		p.posts(1, 3)
		if p.took() != 3 {
			t.Fatalf("%s: %d SENDs take the fast path, want 3", tt.name, p.took())
		}
		p.run()
		p.wantFast(3)
		if at := p.last(p.a).at; (at >= fastTimeout) != tt.late || at > 3*fastTimeout {
			t.Errorf("%s: the last packet left at %v, want it after one to three times %v: %v", tt.name, at, fastTimeout, tt.late)
		}
		if got := p.b.qp.Counters().Duplicates; (got > 0) != tt.duplicates {
			t.Errorf("%s: %d duplicates, want some: %v", tt.name, got, tt.duplicates)
		}
	}
}

// TestFastTimer: while SENDs arrive, the timer does not end the fast path.
func TestFastTimer(t *testing.T) {
	p := newFast(t, setup{}, 60)
	looks := 0
	for i := range 60 {
		look := p.a.qp.NextTimeout()
		p.runUntil(min(p.now+fastTimeout/4, look-us))
		p.posts(1+i, 1)
		if p.now == look-us { // the SEND is posted, and has not arrived
			p.runUntil(look)
			looks++
		}
		if p.took() != 1 {
			t.Fatalf("SEND %d does not take the fast path to its end, want it to", i)
		}
	}
	if looks == 0 {
		t.Error("the timer has not come while a SEND was under way, want it to")
	}
	p.run()
	p.wantFast(60)
	if c := p.a.qp.Counters(); c != (Counters{}) {
		t.Errorf("%+v, want no loss, repeat or refusal", c)
	}
	if next := p.a.qp.NextTimeout(); next != Never {
		t.Errorf("a timer is due at %v, want none", next)
	}
}

// TestFastNoReceive: a message that finds no receive is refused as a packet is, and so are the messages behind it.
// All come once there are receives.
func TestFastNoReceive(t *testing.T) {
	p := newFast(t, setup{}, 1)
	p.posts(1, 4)
	p.runUntil(testDelay)
	if c := p.b.qp.Counters(); c.OutOfOrder != 2 || len(p.b.recvd) != 1 {
		t.Errorf("%+v, and %d messages came; want 2 packets dropped behind the one that is refused, and 1", c, len(p.b.recvd))
	}
	p.runUntil(2 * testDelay)
	if c := p.a.qp.Counters(); c.RNRNAKs != 1 {
		t.Errorf("%+v, want 1 RNR NAK", c)
	}
	p.receives(101, 3)
	p.run()
	p.wantFast(4)
}

// TestFastRefused: a message that is longer than its receive ends the connection.
func TestFastRefused(t *testing.T) {
	p := newFast(t, setup{}, 1)
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 65)), sendWR(2, p.a.mem.sge(0, 1)))
	p.run()
	p.a.wantSends(wc{1, verbs.WCRemInvReqErr}, wc{2, verbs.WCFlushErr})
	if got := p.b.recvd; len(got) != 1 || got[0].wc.Status != verbs.WCLocLenErr {
		t.Errorf("receives: %+v, want one with %v", got, verbs.WCLocLenErr)
	}
}

// TestFastBad: a SEND whose memory cannot be read takes no fast path, and fails as any other SEND.
func TestFastBad(t *testing.T) {
	p := newFast(t, setup{}, 2)
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)), sendWR(2, badSGE))
	p.run()
	p.a.wantSends(wc{1, verbs.WCSuccess}, wc{2, verbs.WCLocProtErr})
}

// TestFastInOrder: work requests behind SENDs of the fast path go by packets, in the order of posting.
func TestFastInOrder(t *testing.T) {
	p := newFast(t, setup{}, 5)
	p.posts(1, 2)
	p.post(p.a, writeWR(3, p.b.mem.remote(1<<15), p.a.mem.sge(0, 8)))
	p.posts(4, 1)
	if p.took() != 2 || p.a.qp.SendsFast() {
		t.Errorf("%d SENDs take the fast path, and the next would: %v; want 2, and no more", p.took(), p.a.qp.SendsFast())
	}
	if p.transmit(); p.a.qp.SendsFast() {
		t.Error("a SEND would take the fast path while packets are under way")
	}
	p.run()
	p.a.wantSends(wc{1, verbs.WCSuccess}, wc{2, verbs.WCSuccess}, wc{3, verbs.WCSuccess}, wc{4, verbs.WCSuccess})
	if p.posts(5, 1); p.took() != 1 {
		t.Error("the fast path is not taken again, want it once all is acknowledged")
	}
	p.run()
	var psns []wire.PSN
	for _, s := range p.packets(p.a, 0) {
		psns = append(psns, s.PSN)
	}
	if want := []wire.PSN{1, 2, 3, 4, 5}; !slices.Equal(psns, want) {
		t.Errorf("PSNs %v, want %v", psns, want)
	}
}

// TestFastLimits: the SENDs under way are no more than a window, and no more than the announced receives, but for
// one.
func TestFastLimits(t *testing.T) {
	const most = maxWindow / 4 // messages of 4 packets
	p := newFast(t, setup{mtu: verbs.MTU256, cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1}}, 0)
	for i := range most {
		p.b.postRecv(uint64(100+i), p.b.mem.sge(1<<16, 1024))
	}
	for i := range most + 1 {
		p.post(p.a, sendWR(uint64(1+i), p.a.mem.sge(0, FastMost)))
	}
	if p.took() != maxWindow {
		t.Errorf("%d packets take the fast path, want %d", p.took(), maxWindow)
	}
	p.runUntil(2 * testDelay)
	p.b.postRecv(100+most, p.b.mem.sge(1<<16, 1024))
	p.run()
	p.wantFast(most + 1)

	p = newFast(t, setup{}, 0)
	p.b.credit = true
	p.receives(100, 3)
	p.posts(1, 1)
	p.run() // the ACK announces two receives
	p.posts(2, 4)
	if p.took() != 2 {
		t.Errorf("%d SENDs take the fast path with 2 receives announced, want 2", p.took())
	}
	p.receives(103, 2)
	p.run()
	p.wantFast(5)

	p = newFast(t, setup{}, 0)
	p.b.credit = true
	p.receives(100, 1)
	p.posts(1, 1)
	p.run()
	if p.posts(2, 1); p.took() != 1 {
		t.Error("a SEND that asks for a receive does not take the fast path, want it to")
	}
}

// TestFastNot: no SEND takes the fast path past packets under way, with a rate, or where the queue is full.
func TestFastNot(t *testing.T) {
	for name, set := range map[string]func(p *pair){
		"a rate":               func(p *pair) { paced(p.a, 100e6) },
		"a notification":       func(p *pair) { p.a.qp.notify.due = true },
		"a hello":              func(p *pair) { p.a.rc().hello.due = true },
		"several paths":        func(p *pair) { p.a.qp.SetSources([]uint16{50000, 50001}) },
		"a probe of keepalive": func(p *pair) { p.a.rc().keepAlive.probe = p.a.qp.sq.nextSeq },
		"a hold":               func(p *pair) { p.a.rc().recovery.Wait(ms) },
	} {
		p := newFast(t, setup{}, 0)
		if !p.a.qp.SendsFast() {
			t.Fatalf("%s: before, a SEND goes by packets, want the fast path", name)
		}
		if set(p); p.a.qp.SendsFast() {
			t.Errorf("%s: a SEND takes the fast path, want packets", name)
		}
	}

	const room = 4
	p := newFast(t, setup{cap: verbs.QPCap{MaxSendWR: room, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}}, 0)
	p.posts(1, room-1) // newFast's SEND is not polled
	wr := sendWR(room, p.a.mem.sge(0, 8))
	if _, ok := p.a.qp.SendFast(&wr, make([]byte, FastMost), new(Message)); ok {
		t.Errorf("SEND %d takes the fast path from a queue of %d, want it refused", room+1, room)
	}
	if g := p.a.qp.Gauges(); g.InFlight != room-1 {
		t.Errorf("%d packets are under way, want %d", g.InFlight, room-1)
	}
}

// TestFastIsHeard: messages of the fast path, and their acknowledgements, are signs of life.
func TestFastIsHeard(t *testing.T) {
	p := newFast(t, setup{}, 1)
	p.a.rc().keepAlive.heard, p.b.rc().keepAlive.heard = 0, 0 // of newFast's
	p.posts(1, 1)
	p.run()
	p.wantFast(1)
	if a, b := p.a.rc().keepAlive.heard, p.b.rc().keepAlive.heard; a != 2*testDelay || b != testDelay {
		t.Errorf("a has heard of its peer at %v, b at %v; want %v, %v", a, b, 2*testDelay, testDelay)
	}
}

// TestFastRefusedBefore: packets that were dropped behind a gap are asked for again at the next packet, though a SEND
// of the fast path fills the gap.
func TestFastRefusedBefore(t *testing.T) {
	p := newFast(t, setup{}, 4)
	for i, psn := range []wire.PSN{2, 1, 3} { // and 0 was newFast's
		p.inject(p.b, req(wire.RCSendOnly, psn, 8))
		p.transmit()
		if got, gap := p.last(p.b), psn != 1; (got.AETH.Syndrome == wire.SyndromeNAK(wire.NAKSequenceError)) != gap {
			t.Errorf("packet %d, psn %v, is answered by %v, want a sequence NAK: %v", i, psn, got.AETH, gap)
		}
	}

	// In ERR all receives are flushed, so no receive that is still in the queue may be filled.
	p = newFast(t, setup{}, 1)
	if err := p.b.qp.Modify(p.now, &verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState); err != nil {
		t.Fatal(err)
	}
	if p.b.qp.ReceiveFast(p.now, &Message{PSN: p.b.qp.receiver.epsn, Packets: 1}, make([]byte, 8), nil) || p.b.waiting() != 1 {
		t.Error("a QP in error executes a SEND, want it dropped")
	}
}

// TestFastDrains: a send queue is drained once the peer has acknowledged the SENDs of the fast path.
func TestFastDrains(t *testing.T) {
	p := newFast(t, setup{}, 2)
	p.posts(1, 2)
	p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
	if len(p.a.events) != 0 {
		t.Errorf("events %v before the peer has heard, want none", p.a.events)
	}
	p.run()
	p.wantFast(2)
	if !slices.Equal(p.a.events, []verbs.EventType{verbs.EventSQDrained}) {
		t.Errorf("events %v, want SQ_DRAINED", p.a.events)
	}
}

// TestFastNonsense: records that a peer should not send complete nothing, and change nothing.
func TestFastNonsense(t *testing.T) {
	p := newFast(t, setup{}, 3)
	p.routeWith(func(from *node, n int, pkt *wire.Packet) bool { return from == p.a && n < 2 })
	p.posts(1, 2)
	ack := wire.AETH{Syndrome: wire.SyndromeACK(wire.CreditsUnlimited)}
	for _, psn := range []wire.PSN{0, 3, 1 << 23, wire.PSNMask} {
		if p.a.qp.AcknowledgeFast(p.now, psn, ack) {
			t.Errorf("an ACK of PSN %v is taken, want only those of 1 and 2 to be", psn)
		}
	}
	if p.a.qp.AcknowledgeFast(p.now, 1, wire.AETH{Syndrome: wire.SyndromeNAK(wire.NAKInvalidRequest)}) {
		t.Error("a NAK is taken for an ACK")
	}
	for _, m := range []Message{{PSN: 0, Packets: 1}, {PSN: 2, Packets: 1}, {PSN: 1, Packets: 2}, {PSN: 1, Packets: 0}} {
		if p.b.qp.ReceiveFast(p.now, &m, make([]byte, 8), nil) {
			t.Errorf("message %+v is taken, want only one of 1 packet with PSN 1 to be", m)
		}
	}
	if p.b.collect(); len(p.b.recvd) != 0 || p.took() != 2 {
		t.Errorf("%d messages received, %d under way; want 0, and 2", len(p.b.recvd), p.took())
	}
	p.run()
	p.wantFast(2)
}

// TestShortACK: an ACK with the PSN of a READ brings no response, even if the READ is all that is under way.
func TestShortACK(t *testing.T) {
	p := newPair(t, setup{})
	p.routeWith(func(from *node, _ int, _ *wire.Packet) bool { return from == p.b }) // the response is late
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.transmit()
	p.answer(0, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(wire.CreditsUnlimited), MSN: 1}})
	p.runUntil(2 * testDelay)
	p.a.wantSends()
	p.route = nil
	p.run()
	p.a.wantSends(wc{1, verbs.WCSuccess})
}

// TestShortAsks: a SEND that asks for no acknowledgement gets none.
func TestShortAsks(t *testing.T) {
	p := newFast(t, setup{}, 2)
	for i, asks := range []bool{false, true} {
		p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, PSN: wire.PSN(1 + i), AckReq: asks}, Payload: make([]byte, 8)})
		if len(p.b.recvd) != 1+i || p.b.qp.OnlyACK() != asks {
			t.Errorf("%d messages have come, and an ACK is due: %v; want %d, and %v", len(p.b.recvd), p.b.qp.OnlyACK(), 1+i, asks)
		}
	}
}

// TestShortHello: the hello goes before the first message.
func TestShortHello(t *testing.T) {
	p := newPair(t, setup{})
	p.b.postRecv(1, p.b.mem.sge(0, 8))
	p.a.qp.PeerIsOurs()
	p.posts(1, 1)
	p.transmit()
	if ops := p.opcodes(p.a, 0); !slices.Equal(ops, []wire.Opcode{wire.RCHello, wire.RCSendOnly}) {
		t.Errorf("%v left, want a hello and a SEND", ops)
	}
}

// TestFastAllocs: a message by the fast path costs no memory.
func TestFastAllocs(t *testing.T) {
	p := newFast(t, setup{}, 0)
	wr, buf, recv := sendWR(1, p.a.mem.sge(0, 64)), make([]byte, FastMost), []verbs.RecvWR{{SGList: []verbs.SGE{p.b.mem.sge(0, 64)}}}
	p.a.resolve(&wr)
	var m Message
	one := func() {
		p.b.own.Post(recv)
		n, ok := p.a.qp.SendFast(&wr, buf, &m)
		if !ok || !p.b.qp.ReceiveFast(0, &m, buf[:n], nil) {
			t.Fatal("the fast path is not taken")
		}
		if !p.b.qp.OnlyACK() {
			t.Fatal("there is no ACK")
		}
		if psn, aeth := p.b.qp.TakeACK(); !p.a.qp.AcknowledgeFast(0, psn, aeth) {
			t.Fatal("the ACK is not taken")
		}
		p.a.sends, p.b.recvd = p.a.sends[:0], p.b.recvd[:0]
		p.a.collect()
		p.b.collect()
		p.a.polled(len(p.a.sends))
	}
	for range 10 {
		one()
	}
	if n := testing.AllocsPerRun(100, one); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// TestFastManyAllocs: a window's completions at once cost no memory, time and again.
func TestFastManyAllocs(t *testing.T) {
	const n = maxWindow
	p := newFast(t, setup{cap: verbs.QPCap{MaxSendWR: 2 * n, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}}, 0)
	wr, buf := sendWR(1, p.a.mem.sge(0, 64)), make([]byte, FastMost)
	p.a.resolve(&wr)
	var m Message
	all := func() {
		for range n {
			if _, ok := p.a.qp.SendFast(&wr, buf, &m); !ok {
				t.Fatal("the fast path is not taken")
			}
		}
		if !p.a.qp.AcknowledgeFast(0, m.PSN, wire.AETH{Syndrome: wire.SyndromeACK(wire.CreditsUnlimited)}) {
			t.Fatal("the ACK is not taken")
		}
		p.a.sends = p.a.sends[:0]
		p.a.collect()
		if len(p.a.sends) != n {
			t.Fatalf("%d SENDs are complete, want %d", len(p.a.sends), n)
		}
		p.a.polled(n)
	}
	for range 3 {
		all()
	}
	if n := testing.AllocsPerRun(10, all); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// TestFastMeasuresNothing: nobody notes when a SEND of the fast path left, so its acknowledgement measures no round
// trip, by whichever path the acknowledgement comes.
func TestFastMeasuresNothing(t *testing.T) {
	for name, then := range map[string]func(*pair){
		"behind packets that follow it": func(p *pair) {
			p.runUntil(p.now + 2*testDelay - us)
			p.post(p.a, writeWR(2, p.b.mem.remote(1<<15), p.a.mem.sge(0, 8)))
		},
		"as a packet": func(p *pair) { p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState) },
	} {
		p := newFast(t, setup{}, 1)
		p.post(p.a, writeWR(1, p.b.mem.remote(1<<15), p.a.mem.sge(0, 8)))
		p.run()
		before := p.a.rc().recovery.Gauges()
		if before.MinRTT != 2*testDelay {
			t.Fatalf("the round trip is %v, want %v", before.MinRTT, 2*testDelay)
		}
		if p.posts(1, 1); p.took() != 1 {
			t.Fatalf("%s: the SEND does not take the fast path", name)
		}
		then(p)
		p.run()
		if after := p.a.rc().recovery.Gauges(); after.MinRTT != before.MinRTT || after.SRTT != before.SRTT {
			t.Errorf("%s: the round trip is %v, and %v at least; want %v and %v as before", name, after.SRTT, after.MinRTT, before.SRTT, before.MinRTT)
		}
	}
}

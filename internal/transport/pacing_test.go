package transport

import (
	"bytes"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestTurnOfLongRead: one READ request for 4096 packets does not hold up the QP's own requests, nor the caller for
// longer than a turn. Answers to the requests behind the READ wait for its end.
func TestTurnOfLongRead(t *testing.T) {
	const turn, n = 128, memSize / 256
	p := newPair(t, setup{mtu: verbs.MTU256, psnA: 0xfffff0, turn: turn})
	want := bytes.Clone(p.b.mem.data[:memSize-1])
	p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 0xfffff0, 0), memBaseB, keyB, memSize-1))
	word := p.b.register(0x10000, 8, allAccess)
	p.inject(p.b, rdma(req(wire.RCFetchAdd, wire.PSN(0xfffff0).Add(n), 0), word.base, word.key, 8))
	p.inject(p.b, rdma(req(wire.RCRDMAWriteOnly, wire.PSN(0xfffff0).Add(n+1), 0), 0, 0, 0))
	if p.b.qp.Pending() {
		t.Error("pending before the turn is over")
	}
	var got []byte
	for i := 0; i < n; i += turn {
		p.post(p.b, writeWR(uint64(i), p.a.mem.remote(0), p.b.mem.sge(0, 600)))
		mark := len(p.log)
		p.transmit()
		sent := p.packets(p.b, mark)
		responses := 0
		for _, s := range sent {
			if s.Opcode.IsRead() {
				got = append(got, s.Payload...)
				responses++
			}
		}
		done := i+turn == n
		if responses != turn || len(sent) != turn+3+2*bit(done) || p.b.qp.Pending() == done {
			t.Fatalf("turn %d: %d packets, of which %d READ responses, pending %v; want %d, %d and %v", i/turn, len(sent), responses, p.b.qp.Pending(), turn+3+2*bit(done), turn, !done)
		}
		if k := p.b.qp.Transmit(p.now, p.buf); k != 0 {
			t.Fatal("the turn is not over")
		}
	}
	if !bytes.Equal(got, want) {
		t.Error("the data differ")
	}
	ops := p.opcodes(p.b, len(p.log)-5)
	if ops[0] != wire.RCAtomicAcknowledge || ops[1] != wire.RCAcknowledge {
		t.Errorf("behind the READ come %v, want first the atomic's acknowledgement and then the WRITE's", ops)
	}
}

// TestTurnRestart: the answer to a repeated READ begins anew, even in the middle of the first answer.
func TestTurnRestart(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, turn: 5})
	read := rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB, keyB, 20*256)
	rest := rdma(req(wire.RCRDMAReadRequest, 3, 0), memBaseB+3*256, keyB, 17*256)
	p.inject(p.b, read)
	p.transmit()
	p.inject(p.b, rest)
	p.transmit()
	p.inject(p.b, rest)
	for p.transmit(); p.b.qp.Pending(); {
		p.transmit()
	}
	var psns []wire.PSN
	for _, s := range p.packets(p.b, 0) {
		psns = append(psns, s.PSN)
		if !bytes.Equal(s.Payload, p.b.mem.data[256*int(s.PSN):][:256]) {
			t.Errorf("psn %v: the data differ, want those of the region", s.PSN)
		}
	}
	if len(psns) != 5+5+17 || psns[5] != 3 || psns[10] != 3 || psns[26] != 19 {
		t.Errorf("answers %v, want 27: 0 to 4, 3 to 7 and 3 to 19", psns)
	}
}

// TestTurnInError: responses that are due before a NAK still come in turns.
func TestTurnInError(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, turn: 4})
	p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB, keyB, 10*256))
	p.inject(p.b, rdma(req(wire.RCRDMAWriteOnly, 10, 8), memBaseB, 0xbad, 8))
	p.b.wantState(verbs.QPStateErr)
	for i, want := range []int{4, 4, 3} {
		mark := len(p.log)
		p.transmit()
		if n := len(p.packets(p.b, mark)); n != want || p.b.qp.Pending() != (i < 2) {
			t.Errorf("turn %d: %d packets, pending %v; want %d, %v", i, n, p.b.qp.Pending(), want, i < 2)
		}
	}
	if got := p.last(p.b); got.PSN != 10 || got.AETH.Syndrome != 0x62 {
		t.Errorf("the last is %v %v, want the NAK 0x62 of PSN 10", got.PSN, got.AETH)
	}
}

// TestTurnUnreliable: all packets of UC and UD come in turns. Only a QP that has more is pending.
func TestTurnUnreliable(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.QPTypeUC, verbs.QPTypeUD} {
		p := newPair(t, setup{typ: typ, mtu: verbs.MTU256, turn: 3})
		for i := range uint64(4) {
			p.b.postRecv(i, p.b.mem.sge(int(i)*1024, 1024))
			wr := udWR(i, p.b, p.a.mem.sge(0, 200))
			if typ == verbs.QPTypeUC {
				wr.SGList[0].Length = 700
			}
			p.post(p.a, wr)
		}
		if p.a.qp.Pending() {
			t.Error("pending before a turn")
		}
		total := 4
		if typ == verbs.QPTypeUC {
			total = 12
		}
		for sent := 0; sent < total; {
			mark := len(p.log)
			p.transmit()
			n := len(p.log) - mark
			if sent += n; n != min(3, total-sent+n) || p.a.qp.Pending() != (sent < total) {
				t.Fatalf("%v: %d packets in a turn, %d in all, pending %v; want %d, and pending %v", typ, n, sent, p.a.qp.Pending(), min(3, total-sent+n), sent < total)
			}
		}
		p.a.wantSends(wc{0, 0}, wc{1, 0}, wc{2, 0}, wc{3, 0})
		p.run()
		p.b.wantRecvs(wc{0, 0}, wc{1, 0}, wc{2, 0}, wc{3, 0})

		// Packets that can no longer be sent are not pending.
		p.post(p.a, udWR(5, p.b), udWR(6, p.b), udWR(7, p.b), udWR(8, p.b))
		p.transmit()
		if !p.a.qp.Pending() {
			t.Error("not pending")
		}
		p.state(p.a, verbs.QPStateErr)
		if p.transmit(); p.a.qp.Pending() {
			t.Error("pending in ERR")
		}
		p.state(p.a, verbs.QPStateReset)
		if p.a.qp.Pending() {
			t.Error("pending in RESET")
		}
	}
}

// TestTurnRequests: the window paces RC's requests, and turns do not.
func TestTurnRequests(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, turn: 1})
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*1000)))
	p.transmit()
	if len(p.log) != maxWindow || p.a.qp.Pending() {
		t.Errorf("%d packets, pending %v; want %d, false", len(p.log), p.a.qp.Pending(), maxWindow)
	}
	p.run()
	p.post(p.a, readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 256*300)))
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0})
	if c := p.a.qp.Counters(); c != (Counters{}) {
		t.Errorf("counters %+v, want zeros", c)
	}
}

// TestRepeatedReadRegionGone: the response to a READ is lost, and then the region goes away. A NAK tells the peer,
// which need not try until its retries are exhausted. The QP that sends the NAK does not fail: it has answered once,
// and does not know whether the peer still waits.
func TestRepeatedReadRegionGone(t *testing.T) {
	for _, lost := range []int{0, 3} {
		p := newPair(t, setup{mtu: verbs.MTU256})
		r := p.b.register(0x10000, 4096, allAccess)
		p.routeWith(func(from *node, n int, _ *wire.Packet) bool { return from == p.b && n >= lost && n < 9 })
		p.post(p.a, readWR(1, r.remote(0), p.a.mem.sge(0, 2048)), withFlags(writeWR(2, p.b.mem.remote(0)), 0), readWR(3, p.b.mem.remote(0), p.a.mem.sge(1<<16, 8)))
		p.runUntil(ms)
		p.b.deregister(r)
		p.run()
		p.a.wantSends(wc{1, verbs.WCRemAccessErr}, wc{2, verbs.WCFlushErr}, wc{3, verbs.WCFlushErr})
		p.b.wantState(verbs.QPStateRTS)
		p.b.wantEvents()
		naks := 0
		for _, s := range p.packets(p.b, 0) {
			if s.AETH.Syndrome == 0x62 && s.PSN == wire.PSN(lost) {
				naks++
			}
		}
		if c := p.b.qp.Counters(); naks == 0 || c.RefusedAccess == 0 {
			t.Errorf("%d NAKs 0x62 of PSN %d, counters %+v; want at least one, counted", naks, lost, c)
		}
	}
}

// TestRepeatedReadWindowShrunk: a part of a repeated READ's memory is gone, since its window was bound anew by the
// same key. The READ is not answered in part: the NAK stands for all of it.
func TestRepeatedReadWindowShrunk(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	r := p.b.bindWindow(windowKey)
	read := rdma(req(wire.RCRDMAReadRequest, 0, 0), r.base, r.key, 1024)
	p.inject(p.b, read)
	p.transmit()
	n := len(p.log)
	if err := p.b.qp.cfg.PD.Invalidate(verbs.RKey(r.key), p.b.qp.cfg.QPN); err != nil {
		t.Fatal(err)
	}
	w := p.b.labelled(windowKey)
	if err := mem.Bind(&verbs.MWBind{MW: w.mw, RKey: w.key, MR: p.b.mem.mr, Addr: r.base, Length: 512, Access: remoteAccess}, p.b.qp.cfg.QPN); err != nil {
		t.Fatal(err)
	}
	p.inject(p.b, read)
	p.transmit()
	if got := p.packets(p.b, n); n != 4 || len(got) != 1 || got[0].PSN != 0 || got[0].AETH.Syndrome != 0x62 {
		t.Errorf("%d answers at first, and then %d; want 4, and the NAK 0x62 of PSN 0 alone", n, len(got))
	}
	p.b.wantState(verbs.QPStateRTS)
	p.b.wantEvents()
}

// TestRepeatedReadRegionGoes: the region goes away while the answer to a repeated READ waits for its turn, or is sent
// in part. A NAK stands for the rest, once, and the QP stays in RTS.
func TestRepeatedReadRegionGoes(t *testing.T) {
	for turns := range 3 {
		p := newPair(t, setup{mtu: verbs.MTU256, turn: 2})
		r := p.b.register(0x10000, 4096, allAccess)
		read := rdma(req(wire.RCRDMAReadRequest, 0, 0), r.base, r.key, 5*256)
		p.inject(p.b, read)
		for range 5 {
			p.transmit()
		}
		n := len(p.log)
		p.inject(p.b, read)
		for range turns {
			p.transmit()
		}
		p.b.deregister(r)
		for range 5 {
			p.transmit()
		}
		got := p.packets(p.b, n)
		for i, s := range got {
			if s.PSN != wire.PSN(i) || (s.AETH.Syndrome == 0x62) != (i == 2*turns) {
				t.Errorf("after %d turns: answer %d has PSN %v and syndrome %#x", turns, i, s.PSN, s.AETH.Syndrome)
			}
		}
		if c := p.b.qp.Counters(); len(got) != 2*turns+1 || c.RefusedAccess != 1 {
			t.Errorf("after %d turns: %d answers, %d refused; want %d, the last one a NAK", turns, len(got), c.RefusedAccess, 2*turns+1)
		}
		p.b.wantState(verbs.QPStateRTS)
		p.b.wantEvents()
	}
}

// TestLateReadRegionGone: the program knows that the READ is done, and deregisters the region. A copy of the READ
// request that comes late does not end the connection, at neither end.
func TestLateReadRegionGone(t *testing.T) {
	for _, behind := range []int{0, 1, 5} {
		p := newPair(t, setup{mtu: verbs.MTU256, psnA: 0xffffff})
		r := p.b.register(0x10000, 4096, allAccess)
		p.post(p.a, readWR(1, r.remote(0), p.a.mem.sge(0, 512)))
		p.run()
		p.b.deregister(r)
		for i := range behind {
			p.post(p.a, readWR(uint64(2+i), p.b.mem.remote(0), p.a.mem.sge(0, 3*256)))
		}
		n := len(p.log)
		p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 0xffffff, 0), r.base, r.key, 512))
		p.transmit()
		if got := p.packets(p.b, n); len(got) != 1 || got[0].PSN != 0xffffff || got[0].AETH.Syndrome != 0x62 {
			t.Errorf("%d answers, want one, the NAK 0x62 of PSN 0xffffff", len(got))
		}
		p.post(p.a, writeWR(9, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		p.run()
		want := []wc{{1, 0}}
		for i := range behind {
			want = append(want, wc{uint64(2 + i), 0})
		}
		p.a.wantSends(append(want, wc{9, 0})...)
		p.a.wantState(verbs.QPStateRTS)
		p.b.wantState(verbs.QPStateRTS)
		p.b.wantEvents()
	}
}

// TestRestOfReadRegionGone: a peer that asks again for the rest of a READ that is being answered has not had the
// answer. So the connection ends when the region goes.
func TestRestOfReadRegionGone(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, turn: 2})
	r := p.b.register(0x10000, 4096, allAccess)
	p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 0, 0), r.base, r.key, 5*256))
	p.transmit() // PSNs 0 and 1
	p.b.deregister(r)
	p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 2, 0), r.base+2*256, r.key, 3*256))
	for range 3 {
		p.transmit()
	}
	got := p.packets(p.b, 0)
	if len(got) != 3 || got[2].PSN != 2 || got[2].AETH.Syndrome != 0x62 {
		t.Errorf("%d answers, want three, the last one the NAK 0x62 of PSN 2", len(got))
	}
	p.b.wantState(verbs.QPStateErr)
}

// TestRepeatedReadBehindAnother: the answers to earlier READs go out before the NAK. Those to later READs go out
// behind it, if the READ had been answered once: the peer may be done with the READ. If it had not, the connection
// ends.
func TestRepeatedReadBehindAnother(t *testing.T) {
	for _, tt := range []struct {
		turns int // before the READ of PSNs 5 and 6 comes again
		want  []wire.PSN
		nak   int // the place of the NAK
		state verbs.QPState
	}{
		{1, []wire.PSN{0, 1, 2, 3, 4, 5}, 5, verbs.QPStateErr},
		{3, []wire.PSN{0, 1, 2, 3, 4, 5, 6}, 6, verbs.QPStateErr},
		{4, []wire.PSN{0, 1, 2, 3, 4, 5, 6, 7, 5, 8, 9}, 8, verbs.QPStateRTS},
	} {
		p := newPair(t, setup{mtu: verbs.MTU256, turn: 2})
		r := p.b.register(0x10000, 4096, allAccess)
		second := rdma(req(wire.RCRDMAReadRequest, 5, 0), r.base, r.key, 512)
		p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB, keyB, 5*256))
		p.inject(p.b, second)
		p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 7, 0), memBaseB, keyB, 3*256))
		for range tt.turns {
			p.transmit()
		}
		p.b.deregister(r)
		p.inject(p.b, second)
		for range 5 {
			p.transmit()
		}
		p.b.wantState(tt.state)
		var psns []wire.PSN
		var naks []int
		for i, s := range p.packets(p.b, 0) {
			psns = append(psns, s.PSN)
			if s.AETH.Syndrome == 0x62 {
				naks = append(naks, i)
			}
		}
		if !slices.Equal(psns, tt.want) || !slices.Equal(naks, []int{tt.nak}) {
			t.Errorf("after %d turns: answers %v, NAKs in places %v; want %v, and %d", tt.turns, psns, naks, tt.want, tt.nak)
		}
	}
}

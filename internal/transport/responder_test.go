package transport

import (
	"bytes"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

func req(op wire.Opcode, psn wire.PSN, n int) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn, AckReq: true}, Payload: make([]byte, n)}
}

func rdma(p wire.Packet, va uint64, key uint32, length uint32) wire.Packet {
	p.RETH = wire.RETH{VA: va, RKey: key, Length: length}
	p.AtomicETH = wire.AtomicETH{VA: va, RKey: key, SwapAdd: 1}
	return p
}

// TestInvalidRequest gives b packets that no requester may send.
func TestInvalidRequest(t *testing.T) {
	const mtu = 256
	first := func(length uint32) wire.Packet {
		return rdma(req(wire.RCRDMAWriteFirst, 0, mtu), memBaseB, keyB, length)
	}
	list := func(ps ...wire.Packet) []wire.Packet { return ps }
	tests := []struct {
		name    string
		packets []wire.Packet // the last packet is refused
		recv    bool          // the refusal costs a receive
		nak     wire.Syndrome // 0x61 if 0
		silent  bool          // no NAK, and the data have arrived
	}{
		{name: "SEND middle without first", packets: list(req(wire.RCSendMiddle, 0, mtu))},
		{name: "SEND last without first", packets: list(req(wire.RCSendLast, 0, 8))},
		{name: "WRITE middle without first", packets: list(req(wire.RCRDMAWriteMiddle, 0, mtu))},
		{name: "WRITE last with immediate without first", packets: list(req(wire.RCRDMAWriteLastWithImm, 0, 8))},
		{name: "SEND first inside a SEND", packets: list(req(wire.RCSendFirst, 0, mtu), req(wire.RCSendFirst, 1, mtu)), recv: true},
		{name: "SEND only inside a WRITE", packets: list(first(512), req(wire.RCSendOnly, 1, 1))},
		{name: "SEND last inside a WRITE", packets: list(first(512), req(wire.RCSendLast, 1, mtu))},
		{name: "WRITE last inside a SEND", packets: list(req(wire.RCSendFirst, 0, mtu), req(wire.RCRDMAWriteLast, 1, 1)), recv: true},
		{name: "READ inside a SEND", packets: list(req(wire.RCSendFirst, 0, mtu), rdma(req(wire.RCRDMAReadRequest, 1, 0), memBaseB, keyB, 8)), recv: true},
		{name: "atomic inside a WRITE", packets: list(first(512), rdma(req(wire.RCFetchAdd, 1, 0), memBaseB, keyB, 8))},
		{name: "short first", packets: list(req(wire.RCSendFirst, 0, mtu-1))},
		{name: "long first", packets: list(req(wire.RCSendFirst, 0, mtu+4))},
		{name: "short middle", packets: list(req(wire.RCSendFirst, 0, mtu), req(wire.RCSendMiddle, 1, mtu-4)), recv: true},
		{name: "empty last", packets: list(req(wire.RCSendFirst, 0, mtu), req(wire.RCSendLast, 1, 0)), recv: true},
		{name: "long last", packets: list(req(wire.RCSendFirst, 0, mtu), req(wire.RCSendLast, 1, mtu+1)), recv: true},
		{name: "long only", packets: list(req(wire.RCSendOnly, 0, mtu+1))},
		{name: "WRITE only with less than its RETH says", packets: list(rdma(req(wire.RCRDMAWriteOnly, 0, 8), memBaseB, keyB, 9))},
		{name: "WRITE only with more", packets: list(rdma(req(wire.RCRDMAWriteOnly, 0, 8), memBaseB, keyB, 7))},
		{name: "WRITE only with data, announced empty", packets: list(rdma(req(wire.RCRDMAWriteOnly, 0, 8), 0, 0, 0))},
		{name: "WRITE first with more", packets: list(first(mtu - 1))},
		{name: "WRITE middle beyond", packets: list(first(mtu+10), req(wire.RCRDMAWriteMiddle, 1, mtu))},
		{name: "WRITE last too early", packets: list(first(3*mtu), req(wire.RCRDMAWriteLast, 1, mtu))},
		{name: "WRITE last after the end", packets: list(first(mtu), req(wire.RCRDMAWriteLast, 1, 1))},
		{name: "WRITE of more than 2^31", packets: list(first(1<<31 + 1))},
		{name: "READ of more than 2^31", packets: list(rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB, keyB, 1<<31+1))},
		{name: "READ of all that RETH can say", packets: list(rdma(req(wire.RCRDMAReadRequest, 0, 0), 0, keyB, 1<<32-1))},
		{name: "WRITE of 2^31", packets: list(first(1 << 31)), nak: 0x62},
		{name: "READ of 2^31", packets: list(rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB, keyB, 1<<31)), nak: 0x62},
		{name: "READ with a payload", packets: list(rdma(req(wire.RCRDMAReadRequest, 0, 4), memBaseB, keyB, 4))},
		{name: "atomic with a payload", packets: list(rdma(req(wire.RCCompareSwap, 0, 8), memBaseB, keyB, 8))},
		{name: "misaligned atomic", packets: list(rdma(req(wire.RCCompareSwap, 0, 0), memBaseB+1, keyB, 8))},
		{name: "atomic without a key", packets: list(rdma(req(wire.RCFetchAdd, 0, 0), memBaseB, 0x156, 8)), nak: 0x62},
		{name: "SEND with invalidate", packets: list(req(wire.RCSendOnlyWithInvalidate, 0, 8)), recv: true, silent: true},
		{name: "SEND last with invalidate", packets: list(req(wire.RCSendFirst, 0, mtu), req(wire.RCSendLastWithInvalidate, 1, 8)), recv: true, silent: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t, setup{mtu: verbs.MTU256})
			p.b.postRecv(1, p.b.mem.sge(1024, 1024))
			p.b.postRecv(2, p.b.mem.sge(2048, 1024))
			for i, pkt := range tt.packets {
				p.b.wantState(verbs.QPStateRTS)
				before := bytes.Clone(p.b.mem.data)
				p.inject(p.b, pkt)
				if i == len(tt.packets)-1 && !tt.silent && !bytes.Equal(before, p.b.mem.data) {
					t.Error("the refused packet changed memory")
				}
			}
			p.transmit()
			p.b.wantState(verbs.QPStateErr)
			nak, event := tt.nak, verbs.EventQPAccessErr
			if nak == 0 {
				nak, event = 0x61, verbs.EventQPReqErr
			}
			if tt.silent {
				for _, s := range p.packets(p.b, 0) { // the acknowledgement of the packets before
					if s.AETH.Syndrome != 0x1f || s.PSN != wire.PSN(len(tt.packets)-2) {
						t.Errorf("answered with %v %v, want an ACK of the packets before, PSN %d", s.PSN, s.AETH, len(tt.packets)-2)
					}
				}
			} else if got := p.last(p.b); got.Opcode != wire.RCAcknowledge || got.AETH.Syndrome != nak || got.PSN != wire.PSN(len(tt.packets)-1) || got.AETH.MSN != 0 {
				t.Errorf("answered with %v %v %v, want %v for the last", got.Opcode, got.PSN, got.AETH, nak)
			}
			if tt.recv {
				p.b.wantRecvs(wc{1, verbs.WCRemInvReqErr}, wc{2, verbs.WCFlushErr})
				p.b.wantEvents()
			} else {
				p.b.wantRecvs(wc{1, verbs.WCFlushErr}, wc{2, verbs.WCFlushErr})
				p.b.wantEvents(event)
			}
			// No later packet gets an answer.
			n := len(p.log)
			p.inject(p.b, req(wire.RCSendOnly, wire.PSN(len(tt.packets)-1), 4))
			p.inject(p.b, req(wire.RCSendOnly, 77, 4))
			if p.transmit(); len(p.log) != n {
				t.Errorf("a QP in error answers with %v, want nothing", p.last(p.b).BTH)
			}
		})
	}
}

// TestMemoryIsLeft: after any request, executed or refused, its region can be closed.
func TestMemoryIsLeft(t *testing.T) {
	const mtu = 1024
	list := func(ps ...wire.Packet) []wire.Packet { return ps }
	write := func(op wire.Opcode, psn wire.PSN, n int, length uint32) wire.Packet {
		return rdma(req(op, psn, n), memBaseB, keyB, length)
	}
	read := rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB, keyB, 8)
	for name, tt := range map[string]struct {
		set     setup
		routed  bool
		packets []wire.Packet
	}{
		"a WRITE":                       {packets: list(write(wire.RCRDMAWriteOnly, 0, 8, 8))},
		"a WRITE without a receive":     {packets: list(write(wire.RCRDMAWriteOnlyWithImm, 0, 8, 8))},
		"a WRITE of another length":     {packets: list(write(wire.RCRDMAWriteOnly, 0, 8, 9))},
		"a WRITE before its turn":       {set: setup{selective: true}, packets: list(write(wire.RCRDMAWriteFirst, 0, mtu, 4*mtu), write(wire.RCRDMAWriteMiddle, 2, mtu, 0))},
		"a whole WRITE before its turn": {routed: true, packets: list(write(wire.RCRDMAWriteOnly, 1, 8, 8))},
		"a READ":                        {packets: list(read)},
		"a READ that comes again":       {packets: list(read, read)},
		"an atomic":                     {packets: list(rdma(req(wire.RCFetchAdd, 0, 0), memBaseB, keyB, 8))},
	} {
		p := newPair(t, tt.set)
		for _, pkt := range tt.packets {
			if tt.routed {
				p.b.qp.SetAdaptiveRouting(routed)
				pkt.Resv7 = verbs.DefaultRoutingMark
			}
			p.inject(p.b, pkt)
			p.transmit()
		}
		p.b.wantUnused(name, p.b.mem)
	}
}

// TestForeignOpcodes: packets of other services are dropped.
func TestForeignOpcodes(t *testing.T) {
	p := newPair(t, setup{})
	p.b.postRecv(1, p.b.mem.sge(0, 64))
	for op := range 256 {
		o := wire.Opcode(op)
		if o.Service() != wire.ServiceRC || !o.Valid() {
			p.b.qp.HandlePacket(0, &wire.Packet{BTH: wire.BTH{Opcode: o, AckReq: true}}, 0)
		}
	}
	p.run()
	p.b.wantState(verbs.QPStateRTS)
	p.b.wantRecvs()
	p.b.wantEvents()
	if len(p.log) != 0 {
		t.Errorf("answered with %+v, want nothing", p.log[0].BTH)
	}
}

// TestZeroLength: where no byte is touched, neither key nor address is checked.
func TestZeroLength(t *testing.T) {
	p := newPair(t, setup{})
	bogus := verbs.RemoteAddr{VA: 0xdeadbeef, RKey: 0xbad}
	p.b.postRecv(1)
	p.b.postRecv(2)
	p.post(p.a, writeWR(1, bogus), readWR(2, bogus), withImm(writeWR(3, bogus), 7), sendWR(4), readWR(5, bogus, p.a.mem.sge(0, 0)))
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0}, wc{4, 0}, wc{5, 0})
	p.b.wantRecvs(wc{1, 0}, wc{2, 0})
}

// TestTooManyReads: more READs and atomics at a time than max_dest_rd_atomic are refused.
func TestTooManyReads(t *testing.T) {
	for op, n := range map[wire.Opcode]int{wire.RCRDMAReadRequest: 0, wire.RCFetchAdd: 0, wire.RCAtomicWrite: 8} {
		p := newPair(t, setup{rd: 3, destRD: 2})
		for i := range 3 {
			p.inject(p.b, rdma(req(op, wire.PSN(i), n), memBaseB, keyB, 8))
		}
		p.b.wantState(verbs.QPStateErr)
		p.b.wantEvents(verbs.EventQPReqErr)
		p.transmit()
		sent := p.packets(p.b, 0)
		if n := len(sent); n != 3 || sent[2].PSN != 2 || sent[2].AETH.Syndrome != 0x61 || sent[1].Opcode == wire.RCAcknowledge {
			t.Errorf("the answers are %v, want two responses and the NAK 0x61 of PSN 2", sent)
		}
		if w := p.b.qp.Work(); w.Atomics+w.Reads+w.AtomicWrites != 2 {
			t.Errorf("%v: %d atomics, %d READs and %d ATOMIC WRITEs were executed, want 2 together", op, w.Atomics, w.Reads, w.AtomicWrites)
		}
	}
}

// TestDuplicateAtomic: the latest max_dest_rd_atomic atomics are answered again with their saved results.
func TestDuplicateAtomic(t *testing.T) {
	const rd = 4
	p := newPair(t, setup{psnA: 0xfffffe, rd: rd})
	at := p.b.mem.remote(0)
	clear(p.b.mem.data[:8])
	for i := range uint64(10) {
		p.post(p.a, addWR(i, at, 1<<i, p.a.mem.sge(8*int(i), 8)), writeWR(100+i, p.b.mem.remote(64), p.a.mem.sge(0, 8)))
		p.run()
	}
	if p.b.qp.Work().Atomics != 10 || nativeWord(p.b.mem.data) != 1<<10-1 {
		t.Fatalf("%d atomics were executed, and the word is %#x; want 10 and 0x3ff", p.b.qp.Work().Atomics, nativeWord(p.b.mem.data))
	}
	for i := 9; i >= 0; i-- {
		n := len(p.log)
		p.inject(p.b, rdma(req(wire.RCFetchAdd, wire.PSN(0xfffffe).Add(2*i), 0), at.VA, uint32(at.RKey), 8))
		p.transmit()
		got := p.packets(p.b, n)
		if i < 10-rd {
			if len(got) != 0 {
				t.Errorf("duplicate of atomic %d, long forgotten, is answered with %+v, want nothing", i, got[0])
			}
		} else if len(got) != 1 || got[0].AtomicAckETH.Orig != 1<<i-1 || got[0].PSN != wire.PSN(0xfffffe).Add(2*i) {
			t.Errorf("duplicate of atomic %d is answered with %+v, want its result %#x", i, got, 1<<i-1)
		}
	}
	if p.b.qp.Work().Atomics != 10 {
		t.Error("a duplicate was executed")
	}
	p.b.wantState(verbs.QPStateRTS)
}

// TestSavedResultOfReusedPSN: after 2^24 packets the newer of two results with one PSN counts.
func TestSavedResultOfReusedPSN(t *testing.T) {
	var rs responses
	rs.resize(3)
	for i := range uint64(7) {
		rs.add(response{psn: wire.PSN(5 + i%2), packets: 1, kind: atomicResponse, orig: i})
		if e := rs.saved(atomicResponse, wire.PSN(5+i%2)); e == nil || e.orig != i {
			t.Errorf("after result %d: %+v, want this result", i, e)
		}
	}
	rs.resize(5) // by SQD -> SQD; the results stay
	for psn, want := range map[wire.PSN]uint64{5: 6, 6: 5} {
		if e := rs.saved(atomicResponse, psn); e == nil || e.orig != want {
			t.Errorf("after resize psn %v: %+v, want result %d", psn, e, want)
		}
	}
}

// TestForgedRepeatedRead: a packet with the PSN of an earlier READ gets nothing unless it asks for the same bytes as
// that READ. Nor does it disturb an answer that is being sent.
func TestForgedRepeatedRead(t *testing.T) {
	const mtu = 256
	p := newPair(t, setup{mtu: verbs.MTU256, rd: 2})
	other := p.b.register(0x10000, 4096, allAccess)
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 4*mtu)), readWR(2, p.b.mem.remote(4096), p.a.mem.sge(4096, 8)))
	p.run()
	for name, forged := range map[string]wire.Packet{
		"another address":           rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB+mtu, keyB, 4*mtu),
		"another key":               rdma(req(wire.RCRDMAReadRequest, 0, 0), other.base, other.key, 4*mtu),
		"more than was asked for":   rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB, keyB, 4*mtu+8),
		"behind the end":            rdma(req(wire.RCRDMAReadRequest, 3, 0), memBaseB+3*mtu, keyB, 2*mtu),
		"inside, another address":   rdma(req(wire.RCRDMAReadRequest, 2, 0), memBaseB, keyB, mtu),
		"nothing, another address":  rdma(req(wire.RCRDMAReadRequest, 0, 0), 0, keyB, 0),
		"a PSN before the earliest": rdma(req(wire.RCRDMAReadRequest, 0xfffff0, 0), memBaseB, keyB, 8),
	} {
		n, c := len(p.log), p.b.qp.Counters()
		p.inject(p.b, forged)
		p.transmit()
		if sent := p.packets(p.b, n); len(sent) != 0 {
			t.Errorf("%s: answered by %v", name, sent[0].BTH)
		}
		if got := p.b.qp.Counters(); got.Unexpected != c.Unexpected+1 {
			t.Errorf("%s: %d packets counted as unexpected, want 1", name, got.Unexpected-c.Unexpected)
		}
	}
	p.b.wantState(verbs.QPStateRTS)

	// Two further READs: the first pair is forgotten.
	p.post(p.a, readWR(3, p.b.mem.remote(0), p.a.mem.sge(0, 8)), readWR(4, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.run()
	n := len(p.log)
	p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB, keyB, 4*mtu))
	if p.transmit(); len(p.packets(p.b, n)) != 0 {
		t.Errorf("a READ that max_dest_rd_atomic later ones have followed is answered: %v", p.packets(p.b, n)[0].BTH)
	}
}

// TestDuplicateRead: READs are executed again, whole or for their rest. A request is dropped if it asks
// for more than was executed before.
func TestDuplicateRead(t *testing.T) {
	const mtu = 256
	p := newPair(t, setup{mtu: verbs.MTU256, psnA: 0xffffff})
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 5*mtu-9)))
	p.run()
	base := wire.PSN(0xffffff)
	for k := range 5 {
		n := len(p.log)
		p.b.mem.data[mtu*k]++ // a READ that is executed again gets the present content
		p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, base.Add(k), 0), memBaseB+uint64(mtu*k), keyB, uint32((5-k)*mtu-9)))
		p.transmit()
		got := p.packets(p.b, n)
		if len(got) != 5-k {
			t.Fatalf("%d responses from packet %d on, want %d", len(got), k, 5-k)
		}
		for i, r := range got {
			want := p.b.mem.data[mtu*(k+i) : min(5*mtu-9, mtu*(k+i+1))]
			if r.Opcode != wantOpcode(verbs.OpRDMARead, i, 5-k) || r.PSN != base.Add(k+i) || !bytes.Equal(r.Payload, want) {
				t.Errorf("from packet %d on: response %d is %+v, want %v with PSN %v and the present contents", k, i, r.BTH, wantOpcode(verbs.OpRDMARead, i, 5-k), base.Add(k+i))
			}
		}
	}
	for name, pkt := range map[string]wire.Packet{
		"more than was executed": rdma(req(wire.RCRDMAReadRequest, base, 0), memBaseB, keyB, 6*mtu),
		"of 2^31":                rdma(req(wire.RCRDMAReadRequest, base, 0), memBaseB, keyB, 1<<31),
		"of 2^32-1":              rdma(req(wire.RCRDMAReadRequest, base, 0), memBaseB, keyB, 1<<32-1),
		"with a payload":         rdma(req(wire.RCRDMAReadRequest, base, 4), memBaseB, keyB, 5*mtu-9),
	} {
		n := len(p.log)
		if p.inject(p.b, pkt); p.b.qp.State() != verbs.QPStateRTS {
			t.Errorf("%s: a duplicate led to %v, want RTS", name, p.b.qp.State())
		}
		if p.transmit(); len(p.log) != n {
			t.Errorf("%s: %d answers, want none", name, len(p.log)-n)
		}
	}
}

// TestDuplicateOrder: repeated READs are answered in the order of PSNs, before pending answers. However many come, a
// bounded number waits.
func TestDuplicateOrder(t *testing.T) {
	for _, first := range []wire.PSN{0, 1<<24 - 32} { // with the second the PSNs of the repeats wrap
		p := newPair(t, setup{mtu: verbs.MTU256, rd: 16, psnA: verbs.PSN(first)})
		for i := range 40 {
			p.post(p.a, readWR(uint64(i), p.b.mem.remote(0), p.a.mem.sge(0, 8)))
		}
		p.run()
		n := len(p.log)
		read := func(i int) { p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, first.Add(i), 0), memBaseB, keyB, 8)) }
		for round := range 3 {
			for i := 39; i >= 0; i -= 2 + round {
				read(i)
			}
		}
		read(40)
		read(3)
		p.transmit()
		got := p.packets(p.b, n)
		if last := got[len(got)-1].PSN; len(got) > maxReplays+1 || last != first.Add(40) {
			t.Errorf("%d answers, the last of PSN %v; want %d at most, the last of PSN %v", len(got), last, maxReplays+1, first.Add(40))
		}
		for i := 1; i < len(got); i++ {
			if !got[i-1].PSN.Less(got[i].PSN) {
				t.Errorf("%v is answered before %v, want the order of PSNs", got[i-1].PSN, got[i].PSN)
			}
		}
	}
}

// TestDuplicateAcknowledged: SENDs and WRITEs that come again are acknowledged, not executed.
func TestDuplicateAcknowledged(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.b.postRecv(1, p.b.mem.sge(0, 1024))
	p.b.postRecv(2, p.b.mem.sge(0, 1024))
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 600)), writeWR(2, p.b.mem.remote(4096), p.a.mem.sge(0, 600)))
	p.run()
	n, written := len(p.log), p.b.qp.Work().WriteBytes
	for _, s := range p.packets(p.a, 0) {
		s.Payload = make([]byte, len(s.Payload))
		p.inject(p.b, s.Packet)
		p.transmit()
	}
	for _, r := range p.packets(p.b, n) {
		if r.PSN != 5 || r.AETH != (wire.AETH{Syndrome: 0x1f, MSN: 2}) {
			t.Errorf("a duplicate is answered with %v %v, want an ACK of PSN 5 with MSN 2", r.PSN, r.AETH)
		}
	}
	if len(p.packets(p.b, n)) != 6 || p.b.qp.Work().WriteBytes != written || !bytes.Equal(p.b.mem.data[:600], p.a.mem.data[:600]) {
		t.Error("a duplicate is executed or not acknowledged")
	}
	p.b.wantRecvs(wc{1, 0})
	if c := p.b.qp.Counters(); c.Duplicates != 6 {
		t.Errorf("counters %+v, want 6 duplicates", c)
	}
}

// TestDuplicateBeforeAnswered: an ACK never bears the PSN of a READ or an atomic, whose response may have been lost.
// Linux would take the ACK for that response.
func TestDuplicateBeforeAnswered(t *testing.T) {
	for _, op := range []wire.Opcode{wire.RCRDMAReadRequest, wire.RCFetchAdd} {
		t.Run(op.String(), func(t *testing.T) {
			p := newPair(t, setup{mtu: verbs.MTU256, psnA: 0xfffffe})
			p.b.postRecv(1, p.b.mem.sge(0, 1024))
			send, last := req(wire.RCSendFirst, 0xfffffe, 256), req(wire.RCSendLast, 0xffffff, 8)
			answered := rdma(req(op, 0, 0), memBaseB, keyB, 8)
			for _, r := range []wire.Packet{send, last, answered} {
				p.inject(p.b, r)
			}
			p.transmit()
			if got := p.packets(p.b, 0); len(got) != 1 || got[0].PSN != 0 || got[0].Opcode == wire.RCAcknowledge {
				t.Fatalf("answered with %d packets, the first %+v; want the response alone", len(got), got[0].BTH)
			}
			for _, again := range [][]wire.Packet{{send}, {send, last}, {last, send}, {send, last, answered}} {
				n := len(p.log)
				for _, r := range again {
					p.inject(p.b, r)
				}
				p.transmit()
				want := again[0].PSN
				if len(again) > 1 {
					want = last.PSN
				}
				got := p.packets(p.b, n)
				if r := got[len(got)-1]; r.Opcode != wire.RCAcknowledge || r.PSN != want || r.AETH != (wire.AETH{Syndrome: 0x1f, MSN: 2}) {
					t.Errorf("%d duplicates are answered with %v %v %v, want an ACK of %v", len(again), r.Opcode, r.PSN, r.AETH, want)
				}
			}
			// A NAK for a packet that has come meanwhile needs no ACK in its place, either.
			n := len(p.log)
			p.inject(p.b, rdma(req(op, 2, 0), memBaseB, keyB, 8))
			p.inject(p.b, rdma(req(op, 1, 0), memBaseB, keyB, 8))
			p.inject(p.b, rdma(req(op, 2, 0), memBaseB, keyB, 8))
			p.transmit()
			for _, r := range p.packets(p.b, n) {
				if r.Opcode == wire.RCAcknowledge {
					t.Errorf("%v with PSN %v and %v, want no ACK", r.Opcode, r.PSN, r.AETH)
				}
			}
		})
	}
}

// TestForeignLongRead: other requesters ask for long READs in one request.
func TestForeignLongRead(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, psnA: 0xfffff0})
	p.inject(p.b, rdma(req(wire.RCRDMAReadRequest, 0xfffff0, 0), memBaseB, keyB, memSize-1))
	p.inject(p.b, rdma(req(wire.RCRDMAWriteOnly, wire.PSN(0xfffff0).Add(memSize/256), 0), 0, 0, 0))
	p.transmit()
	got := p.packets(p.b, 0)
	const n = memSize / 256
	if len(got) != n+1 || got[n].Opcode != wire.RCAcknowledge || got[n].PSN != wire.PSN(0xfffff0).Add(n) || got[n].AETH.MSN != 2 {
		t.Fatalf("%d answers, the last %+v; want %d, the last an ACK of PSN %v", len(got), got[len(got)-1].BTH, n+1, wire.PSN(0xfffff0).Add(n))
	}
	for i, r := range got[:n] {
		if r.Opcode != wantOpcode(verbs.OpRDMARead, i, n) || r.PSN != wire.PSN(0xfffff0).Add(i) || !bytes.Equal(r.Payload, p.b.mem.data[256*i:min(memSize-1, 256*(i+1))]) {
			t.Fatalf("response %d: %+v, want %v with PSN %v and the region's contents", i, r.BTH, wantOpcode(verbs.OpRDMARead, i, n), wire.PSN(0xfffff0).Add(i))
		}
	}
}

// TestACKCoversWhatWasAsked: an ACK for a peer that is no adverb acknowledges the packets that asked, and no more.
// After a missed wake-up Linux goes on by its timer alone, which runs for unacknowledged packets. An ACK for an
// adverb covers all packets that have come.
func TestACKCoversWhatWasAsked(t *testing.T) {
	const mtu = 1024
	for _, ours := range []bool{false, true} {
		p := newPair(t, setup{mtu: verbs.MTU1024, selective: ours})
		epsn := p.b.qp.receiver.epsn
		for i, op := range []wire.Opcode{wire.RCRDMAWriteOnly, wire.RCRDMAWriteOnly, wire.RCRDMAWriteFirst, wire.RCRDMAWriteMiddle, wire.RCRDMAWriteMiddle} {
			pkt := rdma(req(op, epsn.Add(i), mtu), memBaseB, keyB, 5*mtu)
			if pkt.AckReq = i == 1 || i == 2; op == wire.RCRDMAWriteOnly {
				pkt.RETH.Length = mtu
			}
			p.inject(p.b, pkt)
		}
		p.transmit()
		want := wire.PSN(2)
		if ours {
			want = 4
		}
		if got := p.last(p.b); got.Opcode != wire.RCAcknowledge || got.PSN != epsn+want || got.AETH.MSN != 2 {
			t.Errorf("peer like us %v: %v of psn %v with MSN %d, want an ACK of %v with MSN 2", ours, got.Opcode, got.PSN, got.AETH.MSN, epsn+want)
		}
		// A message that ends behind the packet that asked does not count yet.
		pkt := req(wire.RCRDMAWriteLast, epsn.Add(5), mtu)
		pkt.AckReq = false
		p.inject(p.b, rdma(req(wire.RCRDMAWriteMiddle, epsn.Add(5), mtu), 0, 0, 0))
		pkt.PSN = epsn.Add(6)
		p.inject(p.b, pkt)
		p.transmit()
		want, msn := wire.PSN(5), uint32(2)
		if ours {
			want, msn = 6, 3
		}
		if got := p.last(p.b); got.PSN != epsn+want || got.AETH.MSN != msn {
			t.Errorf("peer like us %v: an ACK of psn %v with MSN %d, want %v with MSN %d", ours, got.PSN, got.AETH.MSN, epsn+want, msn)
		}
		// A repeated packet is acknowledged with all packets that have come.
		p.inject(p.b, rdma(req(wire.RCRDMAWriteOnly, epsn, mtu), memBaseB, keyB, mtu))
		p.transmit()
		if got := p.last(p.b); got.PSN != epsn+6 || got.AETH.MSN != 3 {
			t.Errorf("peer like us %v: a repeat is acknowledged with psn %v and MSN %d, want %v and 3", ours, got.PSN, got.AETH.MSN, epsn+6)
		}
	}
}

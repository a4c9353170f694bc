package transport

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

var ucOps = []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm}

// ucWR is a signaled work request of any of UC's operations.
func ucWR(id uint64, op verbs.Opcode, to verbs.RemoteAddr, sg ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: op, Flags: verbs.SendSignaled | verbs.SendSolicited, SGList: sg, Remote: to, Imm: 0xa1b2c300 + uint32(id)}
}

func isWrite(op verbs.Opcode) bool {
	return op == verbs.OpRDMAWrite || op == verbs.OpRDMAWriteWithImm
}

// wantReceivesLeft checks that n receives are left at e, including that of a dropped message.
func (e *node) wantReceivesLeft(n int) {
	e.t.Helper()
	held := 0
	if e.qp.heldRecv() != nil {
		held = 1
	}
	if e.waiting()+held != n || e.receives.taken != held {
		e.t.Errorf("%s: %d receives left, %d held, %d taken; want %d in all", e.name, e.waiting(), held, e.receives.taken, n)
	}
}

// TestUCSegmentation checks every header of every packet, and that a work request is complete when its packets are
// sent.
func TestUCSegmentation(t *testing.T) {
	const firstPSN, at = 0xfffffe, 4096
	for _, op := range ucOps {
		for _, mtu := range allMTUs {
			for _, length := range lengthsFor(mtu.Bytes()) {
				p := newPair(t, setup{typ: verbs.QPTypeUC, mtu: mtu, psnA: firstPSN})
				p.b.postRecv(70, p.b.mem.sge(at, length))
				src := p.a.mem.data[8:][:length]
				wr := ucWR(1, op, p.b.mem.remote(at), p.a.mem.sge(8, length))
				p.post(p.a, wr)
				p.transmit()
				p.a.wantSends(wc{1, verbs.WCSuccess}) // IBTA C9-180
				p.b.wantRecvs()
				p.run()

				name := fmt.Sprintf("%v of %d at %v", op, length, mtu)
				sent := p.packets(p.a, 0)
				n := max(1, (length+mtu.Bytes()-1)/mtu.Bytes())
				if len(sent) != n || len(p.log) != n {
					t.Fatalf("%s: %d packets and %d answers, want %d and none", name, len(sent), len(p.log)-len(sent), n)
				}
				for i, s := range sent {
					chunk := src[i*mtu.Bytes() : min(length, (i+1)*mtu.Bytes())]
					if s.Opcode != 0x20+wantOpcode(op, i, n) || s.PSN != wire.PSN(firstPSN).Add(i) || s.PadCount != uint8(-len(chunk)&3) ||
						s.AckReq || s.Solicited != (i == n-1 && op != verbs.OpRDMAWrite) || !bytes.Equal(s.Payload, chunk) {
						t.Errorf("%s: packet %d: %+v, want %v, PSN %v and %d bytes of the source", name, i, s.BTH, 0x20+wantOpcode(op, i, n), wire.PSN(firstPSN).Add(i), len(chunk))
					}
					if want := (wire.RETH{VA: p.b.mem.base + at, RKey: p.b.mem.key, Length: uint32(length)}); isWrite(op) && i == 0 && s.RETH != want {
						t.Errorf("%s: RETH %+v, want %+v", name, s.RETH, want)
					}
					if s.Opcode.HasImm() && s.Imm != wr.Imm {
						t.Errorf("%s: immediate %#x, want %#x", name, s.Imm, wr.Imm)
					}
				}
				if !bytes.Equal(p.b.mem.data[at:][:length], src) {
					t.Errorf("%s: the data differ, want those of the source", name)
				}
				if op == verbs.OpRDMAWrite {
					p.b.wantRecvs()
					continue
				}
				want := verbs.WC{ID: 70, Op: verbs.WCRecv, ByteLen: uint32(length), QPN: 0x22, SrcQPN: 0x11}
				if isWrite(op) {
					want.Op = verbs.WCRecvRDMAWithImm
				}
				if op != verbs.OpSend {
					want.Flags, want.Imm = verbs.WCFlagWithImm, wr.Imm
				}
				if len(p.b.recvd) != 1 || p.b.recvd[0].wc != want || !p.b.recvd[0].solicited {
					t.Errorf("%s: %+v, want %+v", name, p.b.recvd, want)
				}
				p.b.wantReceivesLeft(0)
				p.b.wantEvents()
			}
		}
	}
}

// TestUCLoss: a message of which any packet is lost is dropped without an answer. Its receive serves the next
// message, which arrives whole. The packets of a WRITE before the hole are placed.
func TestUCLoss(t *testing.T) {
	const mtu, n, length = 256, 5, 5*256 - 3
	for _, op := range ucOps {
		for _, next := range ucOps {
			for lost := range n {
				name := fmt.Sprintf("packet %d of a %v is lost, %v follows", lost, op, next)
				p := newPair(t, setup{typ: verbs.QPTypeUC, mtu: verbs.MTU256, psnA: 0xfffffd})
				p.routeWith(func(from *node, i int, _ *wire.Packet) bool { return i == lost })
				clear(p.b.mem.data)
				for id := range uint64(4) {
					p.b.postRecv(id, p.b.mem.sge(0, 4096))
				}
				const to, then = 1 << 16, 1 << 17
				p.post(p.a, ucWR(1, op, p.b.mem.remote(to), p.a.mem.sge(100, length)))
				p.post(p.a, ucWR(2, next, p.b.mem.remote(then), p.a.mem.sge(5000, length)))
				p.run()

				p.a.wantSends(wc{1, 0}, wc{2, 0})
				p.b.wantState(verbs.QPStateRTS)
				p.b.wantEvents()
				whole := p.a.mem.data[5000:][:length]
				if next == verbs.OpRDMAWrite {
					p.b.wantRecvs()
					p.b.wantReceivesLeft(4)
				} else {
					p.b.wantRecvs(wc{0, 0})
					p.b.wantReceivesLeft(3)
					if got := p.b.recvd[0].wc; got.ByteLen != length || got.Flags&verbs.WCFlagWithImm != 0 && got.Imm != 0xa1b2c302 {
						t.Errorf("%s: completion %+v, want %d bytes, and the immediate of the second message", name, got, length)
					}
				}
				got := p.b.mem.data[:length]
				if isWrite(next) {
					got = p.b.mem.data[then:][:length]
				}
				if !bytes.Equal(got, whole) {
					t.Errorf("%s: the second message differs, want that of the source", name)
				}
				if isWrite(op) {
					placed := min(length, lost*mtu)
					if !bytes.Equal(p.b.mem.data[to:][:placed], p.a.mem.data[100:][:placed]) {
						t.Errorf("%s: the first %d bytes differ, want those of the source: they came before the hole", name, placed)
					}
					if bytes.ContainsFunc(p.b.mem.data[to+placed:][:length-placed], func(r rune) bool { return r != 0 }) {
						t.Errorf("%s: something is placed behind byte %d, want nothing behind the hole", name, placed)
					}
				}
				if len(p.packets(p.b, 0)) != 0 {
					t.Errorf("%s: %d answers, want none", name, len(p.packets(p.b, 0)))
				}
				if t.Failed() {
					return
				}
			}
		}
	}
}

// TestUCRepeats: a repeated or late packet never makes a message of parts of two.
func TestUCRepeats(t *testing.T) {
	send := func(op wire.Opcode, psn wire.PSN, fill byte) wire.Packet {
		return wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn, AckReq: true}, Payload: bytes.Repeat([]byte{fill}, 256)}
	}
	const first, middle, last = wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendLast
	for _, tt := range []struct {
		name    string
		packets []wire.Packet
		want    string // the first byte of each packet of each message that is received
		missed  uint64 // packets that are counted as missed
		lost    uint64 // messages that are counted as lost
	}{
		{"first again", []wire.Packet{send(first, 0, 'a'), send(first, 0, 'a'), send(last, 1, 'b')}, "ab", 0, 1},
		{"middle again", []wire.Packet{send(first, 0, 'a'), send(middle, 1, 'b'), send(middle, 1, 'b'), send(last, 2, 'c')}, "", 0, 1},
		{"last again", []wire.Packet{send(first, 0, 'a'), send(last, 1, 'b'), send(last, 1, 'b')}, "ab", 0, 0},
		{"exchanged", []wire.Packet{send(last, 1, 'b'), send(first, 0, 'a')}, "", 1, 1},
		{"late last", []wire.Packet{send(first, 0, 'a'), send(first, 2, 'c'), send(last, 1, 'b'), send(last, 3, 'd')}, "", 2, 2},
		{"last of another", []wire.Packet{send(first, 0, 'a'), send(last, 3, 'd')}, "", 2, 1},
		{"last of another message that starts where the first would end", []wire.Packet{send(first, 0, 'a'), send(middle, 2, 'c'), send(last, 1, 'b')}, "", 1, 1},
		{"WRITE's last", []wire.Packet{send(first, 0, 'a'), send(wire.UCRDMAWriteLast, 1, 'x'), send(last, 1, 'b')}, "", 0, 0},
		{"gap of 2^23", []wire.Packet{send(first, 1<<23+5, 'a'), send(last, 1<<23+6, 'b')}, "ab", 0, 0},
		{"gap back", []wire.Packet{send(first, 0xfffff0, 'a'), send(last, 0xfffff1, 'b'), send(first, 7, 'c'), send(last, 8, 'd')}, "abcd", 21, 0},
		{"wrap", []wire.Packet{send(first, 0xffffff, 'a'), send(middle, 0, 'b'), send(last, 1, 'c')}, "abc", 0, 0},
	} {
		p := newPair(t, setup{typ: verbs.QPTypeUC, mtu: verbs.MTU256})
		for id := range uint64(3) {
			p.b.postRecv(id, p.b.mem.sge(int(id)*4096, 4096))
		}
		for _, pkt := range tt.packets {
			p.inject(p.b, pkt)
		}
		var got []byte
		for i, r := range p.b.recvd {
			for off := 0; off < int(r.wc.ByteLen); off += 256 {
				got = append(got, p.b.mem.data[i*4096+off])
			}
		}
		if string(got) != tt.want {
			t.Errorf("%s: received %q, want %q", tt.name, got, tt.want)
		}
		if c := p.b.qp.Counters(); c.MissedPackets != tt.missed || c.LostMessages != tt.lost {
			t.Errorf("%s: %d missed packets and %d lost messages are counted, want %d and %d", tt.name, c.MissedPackets, c.LostMessages, tt.missed, tt.lost)
		}
		p.b.wantReceivesLeft(3 - len(p.b.recvd))
		p.b.wantState(verbs.QPStateRTS)
		if p.transmit(); len(p.log) != 0 {
			t.Errorf("%s: %d answers, want none", tt.name, len(p.log))
		}
	}
}

// TestUCDropped: a message that cannot be placed is dropped without an answer. Its receive serves the next.
func TestUCDropped(t *testing.T) {
	const mtu = 256
	uc := func(p wire.Packet) wire.Packet { p.Opcode += 0x20; return p }
	first := func(length uint32) wire.Packet {
		return uc(rdma(req(wire.RCRDMAWriteFirst, 0, mtu), memBaseB, keyB, length))
	}
	list := func(ps ...wire.Packet) []wire.Packet { return ps }
	for _, tt := range []struct {
		name    string
		packets []wire.Packet // the last one is dropped
		set     setup
		free    bool     // no receive is posted
		want    Counters // zero stands for one unexpected packet
	}{
		{name: "receive too small", packets: list(uc(req(wire.RCSendOnly, 0, 65))), want: Counters{TooLong: 1}},
		{name: "receive too small, second packet", packets: list(uc(req(wire.RCSendFirst, 0, mtu)), uc(req(wire.RCSendLast, 1, 1))), want: Counters{TooLong: 1, Unexpected: 1}},
		{name: "rkey that nobody has", packets: list(uc(rdma(req(wire.RCRDMAWriteOnly, 0, 8), memBaseB, 0x156, 8))), want: Counters{RefusedAccess: 1}},
		{name: "WRITE over the end", packets: list(uc(rdma(req(wire.RCRDMAWriteOnly, 0, 9), memBaseB+memSize-8, keyB, 9))), want: Counters{RefusedAccess: 1}},
		{name: "WRITE that the QP does not allow", packets: list(uc(rdma(req(wire.RCRDMAWriteOnly, 0, 8), memBaseB, keyB, 8))), set: setup{access: verbs.AccessRemoteRead}, want: Counters{RefusedInvalid: 1}},
		{name: "WRITE with immediate, rkey that nobody has", packets: list(uc(rdma(req(wire.RCRDMAWriteOnlyWithImm, 0, 8), memBaseB, 0x156, 8))), want: Counters{RefusedAccess: 1}},
		{name: "SEND without receive", packets: list(uc(req(wire.RCSendOnly, 0, 8))), free: true},
		{name: "WRITE with immediate without receive", packets: list(uc(rdma(req(wire.RCRDMAWriteOnlyWithImm, 0, 8), memBaseB, keyB, 8))), free: true},
		{name: "WRITE last with immediate without receive", packets: list(first(mtu+8), uc(req(wire.RCRDMAWriteLastWithImm, 1, 8))), free: true},
		{name: "SEND middle without first", packets: list(uc(req(wire.RCSendMiddle, 0, mtu)))},
		{name: "short first", packets: list(uc(req(wire.RCSendFirst, 0, mtu-1))), want: Counters{RefusedInvalid: 1}},
		{name: "long only", packets: list(uc(req(wire.RCSendOnly, 0, mtu+1))), want: Counters{RefusedInvalid: 1}},
		{name: "empty last", packets: list(uc(req(wire.RCSendFirst, 0, mtu)), uc(req(wire.RCSendLast, 1, 0))), want: Counters{TooLong: 1, Unexpected: 1}},
		{name: "WRITE last too early", packets: list(first(3*mtu), uc(req(wire.RCRDMAWriteLast, 1, mtu))), want: Counters{RefusedInvalid: 1}},
		{name: "WRITE middle beyond", packets: list(first(mtu+8), uc(req(wire.RCRDMAWriteMiddle, 1, mtu))), want: Counters{RefusedInvalid: 1}},
		{name: "WRITE of more than 2^31", packets: list(first(1<<31 + 1)), want: Counters{RefusedInvalid: 1}},
		{name: "RC's SEND", packets: list(req(wire.RCSendOnly, 0, 8))},
		{name: "RC's SEND with invalidate", packets: list(req(wire.RCSendOnlyWithInvalidate, 0, 8))},
		{name: "RC's READ", packets: list(rdma(req(wire.RCRDMAReadRequest, 0, 0), memBaseB, keyB, 8))},
		{name: "RC's atomic", packets: list(rdma(req(wire.RCFetchAdd, 0, 0), memBaseB, keyB, 8))},
		{name: "RC's acknowledgement", packets: list(req(wire.RCAcknowledge, 0, 0))},
		{name: "UD's SEND", packets: list(req(wire.UDSendOnly, 0, 8))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.set.typ, tt.set.mtu = verbs.QPTypeUC, verbs.MTU256
			p := newPair(t, tt.set)
			post := func() {
				p.b.postRecv(1, p.b.mem.sge(1<<16, 64))
				p.b.postRecv(2, p.b.mem.sge(1<<17, 1024))
			}
			if !tt.free {
				post()
			}
			var before []byte
			for i, pkt := range tt.packets {
				if i == len(tt.packets)-1 {
					before = bytes.Clone(p.b.mem.data)
				}
				p.inject(p.b, pkt)
			}
			if !bytes.Equal(before, p.b.mem.data) {
				t.Error("the dropped packet changed memory")
			}
			p.transmit()
			p.b.wantState(verbs.QPStateRTS)
			p.b.wantRecvs()
			p.b.wantEvents()
			c := p.b.qp.Counters()
			want := tt.want
			if want == (Counters{}) {
				want.Unexpected = 1
			}
			if tt.free {
				want = Counters{NoReceive: 1}
				post()
			}
			if c != want {
				t.Errorf("%+v, want %+v", c, want)
			}
			p.inject(p.b, uc(req(wire.RCSendOnly, 9, 64)))
			p.b.wantRecvs(wc{1, 0})
			p.b.wantReceivesLeft(1)
			if len(p.log) != 0 {
				t.Errorf("answered with %+v, want nothing", p.log[0].BTH)
			}
		})
	}
}

// TestUCReceiveFault: a receive that names bad memory is completed, and ends the connection.
func TestUCReceiveFault(t *testing.T) {
	p := newPair(t, setup{typ: verbs.QPTypeUC})
	p.b.postRecv(1, badSGE)
	p.b.postRecv(2)
	p.post(p.b, ucWR(9, verbs.OpSend, verbs.RemoteAddr{}))
	p.post(p.a, ucWR(1, verbs.OpSend, verbs.RemoteAddr{}, p.a.mem.sge(0, 8)))
	p.transmit()
	p.post(p.b, ucWR(10, verbs.OpSend, verbs.RemoteAddr{}))
	p.receive(p.b, p.flight[0].data, nil)
	p.a.wantSends(wc{1, 0})
	p.b.wantState(verbs.QPStateErr)
	p.b.wantRecvs(wc{1, verbs.WCLocProtErr}, wc{2, verbs.WCFlushErr})
	p.b.wantSends(wc{9, 0}, wc{10, verbs.WCFlushErr})
	n := len(p.log)
	if p.transmit(); len(p.log) != n {
		t.Error("a QP in error answers")
	}
}

// TestUCSendFault: a local error takes only the send queue to SQE, where it is flushed. The QP can go back to RTS.
// The peer drops the part of the message that was sent.
func TestUCSendFault(t *testing.T) {
	for _, turn := range []int{0, 1} {
		p := newPair(t, setup{typ: verbs.QPTypeUC, mtu: verbs.MTU256, psnA: 0xfffffe, turn: turn})
		for id := range uint64(3) {
			p.b.postRecv(id, p.b.mem.sge(1<<16, 1024))
		}
		to := verbs.RemoteAddr{}
		p.post(p.a, ucWR(1, verbs.OpSend, to, p.a.mem.sge(0, 8)), ucWR(2, verbs.OpSend, to, p.a.mem.sge(0, 512), badSGE),
			withFlags(ucWR(3, verbs.OpSend, to, p.a.mem.sge(0, 8)), 0), ucWR(4, verbs.OpSend, to))
		p.run()
		p.a.wantState(verbs.QPStateSQE)
		p.a.wantSends(wc{1, 0}, wc{2, verbs.WCLocProtErr}, wc{3, verbs.WCFlushErr}, wc{4, verbs.WCFlushErr})
		if n := len(p.packets(p.a, 0)); n != 3 {
			t.Errorf("%d packets, want 3", n)
		}
		p.post(p.a, ucWR(5, verbs.OpSend, to, p.a.mem.sge(0, 8)))
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, verbs.WCLocProtErr}, wc{3, verbs.WCFlushErr}, wc{4, verbs.WCFlushErr}, wc{5, verbs.WCFlushErr})
		if got := p.a.sends[4].freed; got != 5 {
			t.Errorf("%d places are free, want 5", got)
		}

		// In SQE the QP receives as before.
		p.a.postRecv(50, p.a.mem.sge(1<<16, 64))
		p.post(p.b, ucWR(1, verbs.OpSend, to, p.b.mem.sge(0, 64)))
		p.run()
		p.a.wantRecvs(wc{50, 0})

		p.state(p.a, verbs.QPStateRTS)
		p.post(p.a, ucWR(6, verbs.OpSendWithImm, to, p.a.mem.sge(9, 600)))
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, verbs.WCLocProtErr}, wc{3, verbs.WCFlushErr}, wc{4, verbs.WCFlushErr}, wc{5, verbs.WCFlushErr}, wc{6, 0})
		p.b.wantRecvs(wc{0, 0}, wc{1, 0})
		p.b.wantReceivesLeft(1)
		if !bytes.Equal(p.b.mem.data[1<<16:][:600], p.a.mem.data[9:][:600]) {
			t.Error("the message behind the error differs")
		}
		p.a.wantEvents()

		// The QP can also go from SQE to ERR, which flushes the receives.
		p.post(p.a, ucWR(7, verbs.OpSend, to, badSGE))
		p.run()
		p.a.postRecv(51)
		p.state(p.a, verbs.QPStateErr)
		p.a.wantRecvs(wc{50, 0}, wc{51, verbs.WCFlushErr})
	}
}

// TestUCSQD: in SQD a message that was begun is finished, and none is started. In RTS the queue goes on.
func TestUCSQD(t *testing.T) {
	const turn = 3
	for begun := range 3 { // turns before SQD
		p := newPair(t, setup{typ: verbs.QPTypeUC, mtu: verbs.MTU256, turn: turn})
		p.b.postRecv(1, p.b.mem.sge(0, 4096))
		p.b.postRecv(2, p.b.mem.sge(0, 4096))
		to := verbs.RemoteAddr{}
		p.post(p.a, ucWR(1, verbs.OpSend, to, p.a.mem.sge(0, 2000)), ucWR(2, verbs.OpSend, to, p.a.mem.sge(0, 8)))
		for range begun {
			p.transmit()
		}
		if n := len(p.log); n != begun*turn {
			t.Fatalf("%d packets in %d turns, want %d", n, begun, begun*turn)
		}
		p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
		if got := p.a.qp.Attr().SQDraining; got != (begun > 0) {
			t.Errorf("draining: %v, want %v", got, begun > 0)
		}
		p.run()
		want := []wc{{1, 0}}
		if begun == 0 {
			want = nil
		}
		p.a.wantSends(want...)
		p.b.wantRecvs(want...)
		p.a.wantEvents(verbs.EventSQDrained)
		if p.a.qp.Attr().SQDraining || p.a.qp.Pending() {
			t.Error("draining for ever")
		}
		p.state(p.a, verbs.QPStateRTS)
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0})
		p.b.wantRecvs(wc{1, 0}, wc{2, 0})
		p.a.wantEvents(verbs.EventSQDrained)
	}
}

// TestUCReset: RESET forgets a message of which a part is sent. The first one afterwards goes whole.
func TestUCReset(t *testing.T) {
	s := setup{typ: verbs.QPTypeUC, mtu: verbs.MTU256, turn: 2}
	p := newPair(t, s)
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 2048)))
	p.transmit()
	p.state(p.a, verbs.QPStateReset)
	p.connect(p.a, s.attr(p.a, p.b, 2, 0))
	p.post(p.a, writeWR(2, p.b.mem.remote(4096), p.a.mem.sge(0, 1000)))
	p.run()
	p.a.wantSends(wc{2, 0})
	if !bytes.Equal(p.b.mem.data[4096:][:1000], p.a.mem.data[:1000]) {
		t.Errorf("after RESET a sends %v, and other data arrive; want the whole WRITE", p.opcodes(p.a, 2))
	}
}

// TestUCHeldReceive: the receive of a message that is under way, or was dropped, is flushed once by ERR and forgotten
// by RESET. Otherwise the next message uses it, once.
func TestUCHeldReceive(t *testing.T) {
	for _, dropped := range []bool{false, true} {
		for _, end := range []string{"ERR", "Fail", "RESET", "next"} {
			name := fmt.Sprintf("dropped %v, %s", dropped, end)
			p := newPair(t, setup{typ: verbs.QPTypeUC, mtu: verbs.MTU256})
			p.b.postRecv(1, p.b.mem.sge(0, 4096))
			p.b.postRecv(2, p.b.mem.sge(0, 4096))
			if p.b.qp.heldRecv() != nil {
				t.Errorf("%s: a receive is held from the start, want none", name)
			}
			p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.UCSendFirst}, Payload: make([]byte, 256)})
			if dropped {
				p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.UCSendLast, PSN: 5}, Payload: make([]byte, 256)})
			}
			if w := p.b.qp.heldRecv(); w == nil || w.ID != 1 {
				t.Fatalf("%s: holds %+v, want receive 1", name, w)
			}
			switch end {
			case "ERR":
				p.state(p.b, verbs.QPStateErr)
				p.state(p.b, verbs.QPStateErr)
				p.b.wantRecvs(wc{1, verbs.WCFlushErr}, wc{2, verbs.WCFlushErr})
			case "Fail":
				p.b.qp.Fail(nil)
				p.b.wantRecvs(wc{1, verbs.WCFlushErr}, wc{2, verbs.WCFlushErr})
			case "RESET":
				p.state(p.b, verbs.QPStateReset)
				p.b.wantRecvs()
			case "next":
				p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.UCRDMAWriteOnlyWithImm, PSN: 77}})
				p.b.wantRecvs(wc{1, 0})
			}
			if w := p.b.qp.heldRecv(); w != nil {
				t.Errorf("%s: still holds %+v, want none", name, w)
			}
		}
	}
}

// TestUCSharedReceives: QPs that share a receive queue hold at most one receive each. None is lost, however the QPs
// end.
func TestUCSharedReceives(t *testing.T) {
	owner := newEnd(t, "owner", memBaseB, Config{QPN: 0x33}, nil) // of the memory
	srq := queue.NewSRQ(owner.qp.cfg.PD, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}, nil)
	var ends [3]*node
	var pairs [3]*pair
	for i := range ends {
		pairs[i] = newPair(t, setup{typ: verbs.QPTypeUC, mtu: verbs.MTU256, srq: srq})
		ends[i] = pairs[i].b
	}
	first := wire.Packet{BTH: wire.BTH{Opcode: wire.UCSendFirst}, Payload: make([]byte, 256)}
	last := wire.Packet{BTH: wire.BTH{Opcode: wire.UCSendLast, PSN: 1}, Payload: make([]byte, 256)}
	for id := range uint64(4) {
		if _, err := srq.PostRecv([]verbs.RecvWR{{ID: id, SGList: []verbs.SGE{owner.mem.sge(int(id)*4096, 4096)}}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 { // again and again the second packet is lost
		for i, e := range ends {
			pairs[i].inject(e, first)
		}
	}
	for i, e := range ends {
		if w := e.qp.heldRecv(); w == nil || w.ID != uint64(i) || e.taken != 1 {
			t.Fatalf("QP %d holds %+v of %d taken, want receive %d of one", i, w, e.taken, i)
		}
	}
	pairs[0].inject(ends[0], last)
	ends[0].wantRecvs(wc{0, 0})
	pairs[1].state(ends[1], verbs.QPStateErr)
	ends[1].wantRecvs(wc{1, verbs.WCFlushErr})
	pairs[2].state(ends[2], verbs.QPStateReset)
	left := queue.SRQUser{SRQ: srq}
	for _, id := range []uint64{2, 3} { // in the order of posting
		if w := left.Take(); w == nil || w.ID != id {
			t.Errorf("left is %+v, want receive %d", w, id)
		}
	}
	if w := left.Take(); w != nil {
		t.Errorf("receive %d is left, want none", w.ID)
	}
}

// TestUCCommEst: the first packet raises the event in RTR.
func TestUCCommEst(t *testing.T) {
	p := newPair(t, setup{typ: verbs.QPTypeUC, unconnected: true})
	a := setup{}.attr(p.b, p.a, 5, 7)
	for i, mask := range connectMasks[verbs.QPTypeUC] {
		if i == 2 {
			break
		}
		a.State = verbs.QPStateInit + verbs.QPState(i)
		p.modify(p.b, a, mask)
		p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.UCRDMAWriteOnly}})
		p.inject(p.b, wire.Packet{BTH: wire.BTH{Opcode: wire.UCRDMAWriteOnly}})
	}
	p.b.wantEvents(verbs.EventCommEst)
	if !p.b.qp.Established() {
		t.Error("not established")
	}
}

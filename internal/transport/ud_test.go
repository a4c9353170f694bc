package transport

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// udWR is a signaled datagram to the peer.
func udWR(id uint64, to *node, sg ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: sg, RemoteQPN: to.qp.cfg.QPN, RemoteQKey: testQKey, Imm: 0xcafe}
}

func datagram(op wire.Opcode, n int) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: op}, DETH: wire.DETH{QKey: testQKey, SrcQP: 0x77}, Imm: 0x1234, Payload: make([]byte, n)}
}

// TestUD checks headers, completions and the received buffer of datagrams of all sizes.
func TestUD(t *testing.T) {
	const firstPSN, at = 0xffffff, 4096
	p := newPair(t, setup{typ: verbs.QPTypeUD, psnA: firstPSN})
	psn, id := wire.PSN(firstPSN), uint64(0)
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm} {
		for _, length := range []int{0, 1, 2, 3, 4, 255, 1024, 4095, 4096} {
			for _, solicited := range []bool{false, true} {
				name := fmt.Sprintf("%v of %d", op, length)
				id++
				p.b.postRecv(id, p.b.mem.sge(at, 17), p.b.mem.sge(at+17, 40+length-17))
				wr := udWR(id, p.b, p.a.mem.sge(5, length))
				wr.Op = op
				if solicited {
					wr.Flags |= verbs.SendSolicited
				}
				p.post(p.a, wr)
				n := len(p.log)
				p.transmit()
				if got := p.a.sends[len(p.a.sends)-1].wc; got != (verbs.WC{ID: id, Op: verbs.WCSend, QPN: 0x11}) {
					t.Errorf("%s: completion %+v, want WC_SEND of work request %d", name, got, id)
				}
				p.run()
				sent := p.packets(p.a, n)
				if len(sent) != 1 || len(p.log) != n+1 {
					t.Fatalf("%s: %d packets and %d answers, want 1 and none", name, len(sent), len(p.log)-n-len(sent))
				}
				s := sent[0]
				opcode := wire.UDSendOnly
				want := verbs.WC{ID: id, Op: verbs.WCRecv, Flags: verbs.WCFlagGRH, SL: 8 | 2, ByteLen: uint32(40 + length), QPN: 0x22, SrcQPN: 0x11}
				if op == verbs.OpSendWithImm {
					opcode = wire.UDSendOnlyWithImm
					want.Flags |= verbs.WCFlagWithImm
					want.Imm = wr.Imm
				}
				if s.Opcode != opcode || s.PSN != psn || s.PadCount != uint8(-length&3) || s.Solicited != solicited || !s.AckReq ||
					s.DETH != (wire.DETH{QKey: testQKey, SrcQP: 0x11}) || op == verbs.OpSendWithImm && s.Imm != wr.Imm {
					t.Errorf("%s: %+v %+v, want %v, PSN %v, solicited %v, AckReq, and the Q_Key %#x from QP 0x11", name, s.BTH, s.DETH, opcode, psn, solicited, testQKey)
				}
				psn = psn.Add(1)
				got := p.b.recvd[len(p.b.recvd)-1]
				if got.wc != want || got.solicited != solicited {
					t.Errorf("%s: %+v, want %+v", name, got, want)
				}
				if b := p.b.mem.data[at:]; !bytes.Equal(b[:40], testGRH[:]) || !bytes.Equal(b[40:][:length], p.a.mem.data[5:][:length]) {
					t.Errorf("%s: the received buffer differs, want the GRH and the data of the source", name)
				}
			}
		}
	}
	if p.b.qp.Counters() != (Counters{}) || p.b.waiting() != 0 {
		t.Errorf("counters %+v, %d receives left; want zeros and none", p.b.qp.Counters(), p.b.waiting())
	}
	p.b.wantEvents()
}

// testAH is an address handle that does nothing but differ from others.
type testAH int

func (testAH) Close() error { return nil }

// TestUDRoute: each datagram has the address handle, the QPN and the Q_Key of its work request, and AH returns the
// handle of the packet that Transmit has just written.
func TestUDRoute(t *testing.T) {
	for _, turn := range []int{0, 1} {
		p := newPair(t, setup{typ: verbs.QPTypeUD, turn: turn})
		for i := range 5 {
			wr := udWR(uint64(i), p.b, p.a.mem.sge(0, i))
			wr.RemoteQPN = verbs.QPN(0x100 + i)
			wr.RemoteQKey = verbs.QKey(0x200 + i)
			p.post(p.a, wr)
			p.a.qp.sq.at(uint64(i)).cold.ah = testAH(i) // the handle that Post takes from the WR's AH
		}
		for i := range 5 {
			p.a.qp.Turn()
			n := p.a.qp.Transmit(0, p.buf)
			var pkt wire.Packet
			if err := pkt.Decode(p.buf[:n]); err != nil {
				t.Fatal(err)
			}
			if p.a.qp.AH() != testAH(i) || pkt.DestQP != uint32(0x100+i) || pkt.DETH.QKey != uint32(0x200+i) || len(pkt.Payload) != i {
				t.Errorf("datagram %d: %d bytes to QP %#x, %+v, by %v; want %d to %#x, Q_Key %#x, by %d", i, len(pkt.Payload), pkt.DestQP, pkt.DETH, p.a.qp.AH(), i, 0x100+i, 0x200+i, i)
			}
		}
		if n := p.a.qp.Transmit(0, p.buf); n != 0 || p.a.qp.Pending() {
			t.Errorf("%d bytes more, pending %v; want none and false", n, p.a.qp.Pending())
		}
	}
}

// TestUDPrivilegedQKey: with its top bit set the work request's Q_Key stands for the QP's own.
func TestUDPrivilegedQKey(t *testing.T) {
	p := newPair(t, setup{typ: verbs.QPTypeUD})
	p.modify(p.a, &verbs.QPAttr{QKey: 0x80010000}, verbs.MaskQKey)
	p.modify(p.b, &verbs.QPAttr{QKey: 0x80010000}, verbs.MaskQKey)
	for i, key := range []verbs.QKey{0x80000000, 0xffffffff, 0x80010000, 0x10000, 0x7fffffff} {
		p.b.postRecv(uint64(i), p.b.mem.sge(0, 40))
		wr := udWR(uint64(i), p.b)
		wr.RemoteQKey = key
		p.post(p.a, wr)
		p.run()
		want := uint32(0x80010000)
		if i >= 3 {
			want = uint32(key)
		}
		if got := p.last(p.a).DETH.QKey; got != want {
			t.Errorf("Q_Key %#x is sent for %#x, want %#x", got, key, want)
		}
	}
	p.b.wantRecvs(wc{0, 0}, wc{1, 0}, wc{2, 0})
	if c := p.b.qp.Counters(); c != (Counters{QKeyViolations: 2}) {
		t.Errorf("counters %+v, want 2 Q_Key violations", c)
	}
}

// TestUDDropped: a datagram that cannot be received is counted, and costs no receive.
func TestUDDropped(t *testing.T) {
	wrongKey := datagram(wire.UDSendOnly, 8)
	wrongKey.DETH.QKey++
	for _, tt := range []struct {
		name string
		pkt  wire.Packet
		free bool
		want Counters
	}{
		{"another Q_Key", wrongKey, false, Counters{QKeyViolations: 1}},
		{"another Q_Key, no receive", wrongKey, true, Counters{QKeyViolations: 1}},
		{"no receive", datagram(wire.UDSendOnly, 8), true, Counters{NoReceive: 1}},
		{"too long by the GRH", datagram(wire.UDSendOnly, 100), false, Counters{TooLong: 1}},
		{"too long by one byte", datagram(wire.UDSendOnlyWithImm, 61), false, Counters{TooLong: 1}},
		{"RC's", datagram(wire.RCSendOnly, 8), false, Counters{Unexpected: 1}},
		{"UC's", datagram(wire.UCSendOnly, 8), false, Counters{Unexpected: 1}},
	} {
		p := newPair(t, setup{typ: verbs.QPTypeUD})
		if !tt.free {
			p.b.postRecv(1, p.b.mem.sge(0, 100))
		}
		before := bytes.Clone(p.b.mem.data)
		p.inject(p.b, tt.pkt)
		if c := p.b.qp.Counters(); c != tt.want {
			t.Errorf("%s: counters %+v, want %+v", tt.name, c, tt.want)
		}
		if !bytes.Equal(before, p.b.mem.data) {
			t.Errorf("%s: memory has changed, want it as before", tt.name)
		}
		p.b.wantRecvs()
		if tt.free {
			p.b.postRecv(1, p.b.mem.sge(0, 100))
		}
		p.b.postRecv(2, p.b.mem.sge(0, 100))
		p.inject(p.b, datagram(wire.UDSendOnly, 60))
		p.b.wantRecvs(wc{1, 0})
		p.b.wantReceivesLeft(1)
		if got := p.b.recvd[0].wc; got.SrcQPN != 0x77 || got.ByteLen != 100 {
			t.Errorf("%s: completion %+v, want 100 bytes from QP 0x77", tt.name, got)
		}
		p.b.wantState(verbs.QPStateRTS)
		p.run()
		if len(p.log) != 0 {
			t.Errorf("%s: %d answers, want none", tt.name, len(p.log))
		}
	}
	// The other entry takes no datagram, and a UD QP takes nothing there.
	p := newPair(t, setup{typ: verbs.QPTypeUD})
	p.b.postRecv(1, p.b.mem.sge(0, 100))
	n := uint64(0)
	for op := range 256 {
		if pkt := datagram(wire.Opcode(op), 8); pkt.Opcode.Valid() {
			p.b.qp.HandlePacket(0, &pkt, 0)
			n++
		}
	}
	if c := p.b.qp.Counters(); c != (Counters{Unexpected: n}) {
		t.Errorf("counters %+v, want %d unexpected packets", c, n)
	}
	p.b.wantRecvs()
}

// TestUDReceiveFault: a receive that names bad memory, for the GRH or behind it, is completed with an
// error, and ends the QP.
func TestUDReceiveFault(t *testing.T) {
	for _, behind := range []bool{false, true} {
		p := newPair(t, setup{typ: verbs.QPTypeUD})
		if behind {
			p.b.postRecv(1, p.b.mem.sge(0, 40), badSGE)
		} else {
			p.b.postRecv(1, verbs.SGE{Addr: 1, Length: 100, LKey: 1})
		}
		p.b.postRecv(2)
		p.inject(p.b, datagram(wire.UDSendOnly, 8))
		p.b.wantRecvs(wc{1, verbs.WCLocProtErr}, wc{2, verbs.WCFlushErr})
		p.b.wantState(verbs.QPStateErr)
		p.inject(p.b, datagram(wire.UDSendOnly, 8))
	}
}

// TestUDShortReceive: the receive that a datagram was too long for stays where it is. It is flushed once by ERR, and
// forgotten by RESET.
func TestUDShortReceive(t *testing.T) {
	for _, to := range []verbs.QPState{verbs.QPStateErr, verbs.QPStateReset} {
		p := newPair(t, setup{typ: verbs.QPTypeUD})
		p.b.postRecv(1, p.b.mem.sge(0, 50))
		p.b.postRecv(2, p.b.mem.sge(0, 50))
		p.inject(p.b, datagram(wire.UDSendOnly, 11))
		p.inject(p.b, datagram(wire.UDSendOnly, 11))
		if w := p.b.qp.heldRecv(); w != nil || p.b.receives.taken != 0 {
			t.Fatalf("holds %+v, %d taken; want none", w, p.b.receives.taken)
		}
		p.state(p.b, to)
		if to == verbs.QPStateErr {
			p.b.wantRecvs(wc{1, verbs.WCFlushErr}, wc{2, verbs.WCFlushErr})
		} else {
			p.b.wantRecvs()
		}
	}
}

// TestUDSendFault: a local error takes the send queue to SQE, where it is flushed. RTS leads back.
func TestUDSendFault(t *testing.T) {
	p := newPair(t, setup{typ: verbs.QPTypeUD})
	for id := range uint64(3) {
		p.b.postRecv(id, p.b.mem.sge(0, 100))
	}
	p.post(p.a, udWR(1, p.b, p.a.mem.sge(0, 8)), udWR(2, p.b, badSGE), udWR(3, p.b))
	p.run()
	p.a.wantState(verbs.QPStateSQE)
	p.post(p.a, udWR(4, p.b))
	p.a.wantSends(wc{1, 0}, wc{2, verbs.WCLocProtErr}, wc{3, verbs.WCFlushErr}, wc{4, verbs.WCFlushErr})
	p.a.postRecv(9, p.a.mem.sge(0, 40))
	p.inject(p.a, datagram(wire.UDSendOnly, 0))
	p.a.wantRecvs(wc{9, 0})
	p.state(p.a, verbs.QPStateRTS)
	p.post(p.a, udWR(5, p.b, p.a.mem.sge(0, 60)))
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, verbs.WCLocProtErr}, wc{3, verbs.WCFlushErr}, wc{4, verbs.WCFlushErr}, wc{5, 0})
	p.b.wantRecvs(wc{0, 0}, wc{1, 0})
}

// TestUDTooLong: IBTA C10-93.1.1. The device refuses to post a datagram that is too long. If one gets here all the
// same, nothing is sent for it.
func TestUDTooLong(t *testing.T) {
	p := newPair(t, setup{typ: verbs.QPTypeUD})
	p.b.postRecv(1, p.b.mem.sge(0, 1<<16))
	p.post(p.a, udWR(1, p.b, p.a.mem.sge(0, 4097)), udWR(2, p.b, p.a.mem.sge(0, 20000)), udWR(3, p.b))
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0})
	p.b.wantRecvs(wc{1, 0})
	if len(p.log) != 1 {
		t.Errorf("%d packets, want 1", len(p.log))
	}
}

// TestUDState: datagrams are taken from RTR on, and sent in RTS only.
func TestUDState(t *testing.T) {
	p := newPair(t, setup{typ: verbs.QPTypeUD, unconnected: true})
	p.b.postRecv(1, p.b.mem.sge(0, 100))
	a := setup{}.attr(p.b, p.a, 5, 7)
	for i, mask := range connectMasks[verbs.QPTypeUD] {
		p.inject(p.b, datagram(wire.UDSendOnly, 8))
		if got, want := len(p.b.recvd), max(0, i-1); got != want {
			t.Errorf("%d received in %v, want %d", got, p.b.qp.State(), want)
		}
		a.State = verbs.QPStateInit + verbs.QPState(i)
		p.modify(p.b, a, mask)
	}
	p.b.wantEvents()
	p.modify(p.b, &verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
	p.b.wantEvents(verbs.EventSQDrained)
	p.post(p.b, udWR(1, p.a))
	if p.transmit(); len(p.log) != 0 {
		t.Error("sends in SQD")
	}
	p.b.postRecv(2, p.b.mem.sge(0, 100))
	p.inject(p.b, datagram(wire.UDSendOnly, 8))
	p.b.wantRecvs(wc{1, 0}, wc{2, 0}) // SQD stops the send queue alone
	p.state(p.b, verbs.QPStateRTS)
	p.run()
	p.b.wantSends(wc{1, 0})
}

// TestUDSharedReceives: a datagram that is too long leaves a shared receive to the other QPs, and does not make the
// program believe that few are left.
func TestUDSharedReceives(t *testing.T) {
	owner := newEnd(t, "owner", memBaseB, Config{QPN: 0x33}, nil) // of the memory
	limits := 0
	srq := queue.NewSRQ(owner.qp.cfg.PD, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}, func() { limits++ })
	x, y := newPair(t, setup{typ: verbs.QPTypeUD, srq: srq}), newPair(t, setup{typ: verbs.QPTypeUD, srq: srq})
	if _, err := srq.PostRecv([]verbs.RecvWR{{ID: 1, SGList: []verbs.SGE{owner.mem.sge(0, 100)}}}); err != nil {
		t.Fatal(err)
	}
	if err := srq.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQMaskLimit); err != nil {
		t.Fatal(err)
	}
	x.inject(x.b, datagram(wire.UDSendOnly, 100))
	if c := x.b.qp.Counters(); c != (Counters{TooLong: 1}) || limits != 0 {
		t.Errorf("counters %+v and %d limit events, want one that is too long, and no event", c, limits)
	}
	y.inject(y.b, datagram(wire.UDSendOnly, 60))
	y.b.wantRecvs(wc{1, 0})
	if limits != 1 {
		t.Errorf("%d limit events, want one", limits)
	}
}

package transport

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

func bindWR(id uint64, key verbs.RKey) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpBindMW, Flags: verbs.SendSignaled, Bind: &verbs.MWBind{RKey: key, Access: remoteAccess}}
}

func invWR(id uint64, key verbs.RKey) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpLocalInv, Flags: verbs.SendSignaled, InvalidateRKey: key}
}

func sendInvWR(id uint64, key verbs.RKey, sg ...verbs.SGE) verbs.SendWR {
	wr := sendWR(id, sg...)
	wr.Op, wr.InvalidateRKey = verbs.OpSendWithInv, key
	return wr
}

// TestLocalAlone: local operations need no packet, on RC and on UC.
func TestLocalAlone(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC} {
		p := newPair(t, setup{typ: typ})
		first := bindWR(1, windowKey)
		p.post(p.a, first, withFlags(invWR(2, windowKey), 0))
		last := bindWR(3, windowKey+1)
		last.Bind.Addr, last.Bind.Length = memBaseA+64, 8
		p.post(p.a, last)
		*first.Bind, *last.Bind = verbs.MWBind{}, verbs.MWBind{} // Post has copied them
		p.a.wantSends()
		p.run()
		key := p.a.keyOf(windowKey + 1)
		for va, want := range map[uint64]bool{memBaseA + 63: false, memBaseA + 64: true, memBaseA + 65: false} {
			s, err := p.a.qp.cfg.PD.Open(key, p.a.qp.cfg.QPN, va, 8, remoteAccess)
			if s.Release(); (err == nil) != want {
				t.Errorf("the window opens 8 bytes at %#x: %v, want %v", va, err == nil, want)
			}
		}
		p.a.wantSends(wc{1, 0}, wc{3, 0})
		p.a.wantWindows(labels(windowKey, windowKey+1), labels(windowKey))
		if got := p.a.sends[1]; got.wc.Op != verbs.WCBindMW || got.freed != 3 || got.wc.ByteLen != 0 {
			t.Errorf("completion %+v, want WC_BIND_MW of 0 bytes that frees 3 places", got)
		}
		p.post(p.a, invWR(4, windowKey+1))
		p.run()
		if got := p.a.sends[2].wc; got.Op != verbs.WCLocalInv {
			t.Errorf("completion %+v, want WC_LOCAL_INV", got)
		}
		if len(p.log) != 0 || p.a.qp.NextTimeout() != Never {
			t.Errorf("%d packets, next timeout at %v; want neither", len(p.log), p.a.qp.NextTimeout())
		}
	}
}

// localProgram posts local operations before, between and behind all others, WRs 0 to 11.
func localProgram(p *pair) {
	at, to := p.b.mem.remote(0), p.a.mem.sge(1<<16, 700)
	p.post(p.a,
		bindWR(0, windowKey), writeWR(1, at, p.a.mem.sge(0, 700)), invWR(2, windowKey), readWR(3, at, to),
		bindWR(4, windowKey+1), bindWR(5, windowKey+2), addWR(6, at, 1, p.a.mem.sge(1<<17, 8)), invWR(7, windowKey+1),
		sendWR(8, p.a.mem.sge(0, 700)), withFlags(bindWR(9, windowKey+3), 0), writeWR(10, at), invWR(11, windowKey+2))
}

// TestLocalOrder: local operations complete in their turn, and are executed once, whichever packets are lost. They
// are executed before any packet behind them is sent.
func TestLocalOrder(t *testing.T) {
	for _, kind := range []string{"request", "response"} {
		for lost := -1; lost < 16; lost++ {
			name := fmt.Sprintf("%s %d lost", kind, lost)
			p := newPair(t, setup{mtu: verbs.MTU256})
			p.b.postRecv(1, p.b.mem.sge(1<<16, 1024))
			first := map[wire.PSN]bool{}
			p.route = func(from *node, n int, pkt *wire.Packet) []delay {
				if from == p.a && !first[pkt.PSN] {
					first[pkt.PSN] = true
					// PSNs: WRITE 0-2, READ 3-5, atomic 6, SEND 7-9, WRITE 10.
					done := 0
					for l := range verbs.RKey(4) {
						was, is := p.a.wasBound(windowKey+l), p.a.isBound(windowKey+l)
						done += bit(was) + bit(was && !is)
					}
					if want := map[wire.PSN]int{0: 1, 3: 2, 6: 4, 7: 5, 10: 6}[pkt.PSN]; want != 0 && done != want {
						t.Errorf("%s: %d local operations are done when psn %v is sent, want %d", name, done, pkt.PSN, want)
					}
				}
				if n == lost && (from == p.a) == (kind == "request") {
					return nil
				}
				return []delay{testDelay}
			}
			localProgram(p)
			p.run()
			p.a.wantSends(wc{0, 0}, wc{1, 0}, wc{2, 0}, wc{3, 0}, wc{4, 0}, wc{5, 0}, wc{6, 0}, wc{7, 0}, wc{8, 0}, wc{10, 0}, wc{11, 0})
			p.a.wantWindows(labels(windowKey, windowKey+1, windowKey+2, windowKey+3), labels(windowKey, windowKey+1, windowKey+2))
			p.b.wantRecvs(wc{1, 0})
			if t.Failed() {
				t.Fatal(name)
			}
		}
	}
}

// TestLocalNotEarly: a local operation completes only when all work requests before it are complete.
func TestLocalNotEarly(t *testing.T) {
	p := newPair(t, setup{})
	p.post(p.a, bindWR(1, windowKey), writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8)), invWR(3, windowKey), readWR(4, p.b.mem.remote(0), p.a.mem.sge(0, 8)), bindWR(5, windowKey))
	p.cutAfter(0)
	p.transmit()
	p.a.wantSends(wc{1, 0})
	p.a.wantWindows(labels(windowKey, windowKey), labels(windowKey)) // unfenced, they do not wait
	p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: 0}, AETH: wire.AETH{Syndrome: 0x1f}})
	p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0})
	p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadResponseOnly, PSN: 1}, AETH: wire.AETH{Syndrome: 0x1f}, Payload: make([]byte, 8)})
	p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0}, wc{4, 0}, wc{5, 0})
}

// TestLocalFence: a fenced local operation waits for earlier READs and atomics.
func TestLocalFence(t *testing.T) {
	for _, fence := range []bool{false, true} {
		p := newPair(t, setup{})
		wr := bindWR(2, windowKey)
		if fence {
			wr.Flags |= verbs.SendFence
		}
		p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)), wr, writeWR(3, p.b.mem.remote(64)))
		p.transmit()
		if bound := p.a.isBound(windowKey); bound == fence || len(p.log) != 2-bit(fence) {
			t.Errorf("fence %v: bound at once: %v, %d packets; want %v, %d", fence, bound, len(p.log), !fence, 2-bit(fence))
		}
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0})
		p.a.wantWindows(labels(windowKey), nil)
	}
}

// TestLocalFault: a local operation that fails ends the send queue in its turn, when all work requests before it are
// complete.
func TestLocalFault(t *testing.T) {
	const bad = 0xbad
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC} {
		for i, wr := range []verbs.SendWR{bindWR(3, bad), invWR(3, bad), withFlags(bindWR(3, bad), 0)} {
			for _, before := range []int{0, 2} {
				p := newPair(t, setup{typ: typ, mtu: verbs.MTU256})
				var want []wc
				for id := 3 - before; id < 3; id++ {
					p.post(p.a, writeWR(uint64(id), p.b.mem.remote(0), p.a.mem.sge(0, 1000)))
					want = append(want, wc{uint64(id), 0})
				}
				p.post(p.a, wr, bindWR(4, windowKey), withFlags(writeWR(5, p.b.mem.remote(0)), 0))
				p.a.postRecv(50)
				p.run()
				p.a.wantSends(append(want, wc{3, verbs.WCMWBindErr}, wc{4, verbs.WCFlushErr}, wc{5, verbs.WCFlushErr})...)
				p.a.wantWindows(nil, nil)
				if typ == verbs.QPTypeRC {
					p.a.wantState(verbs.QPStateErr)
					p.a.wantRecvs(wc{50, verbs.WCFlushErr})
				} else {
					p.a.wantState(verbs.QPStateSQE)
					p.a.wantRecvs()
				}
				p.b.wantState(verbs.QPStateRTS)
				if n := len(p.packets(p.a, 0)); n != before*4 || t.Failed() {
					t.Fatalf("%v, work request %d behind %d: %d packets, want %d", typ, i, before, n, before*4)
				}
			}
		}
	}
}

// TestLocalFaultGoBack: the packets before a failed local operation are lost, and are sent again. The operation is
// not executed again, and the packets behind it are never sent.
func TestLocalFaultGoBack(t *testing.T) {
	p := newPair(t, setup{})
	p.routeWith(func(from *node, n int, _ *wire.Packet) bool { return from == p.a && n < 2 })
	p.post(p.a, bindWR(1, windowKey), writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8)), bindWR(3, windowKey+1), writeWR(4, p.b.mem.remote(0), p.a.mem.sge(0, 8)),
		invWR(5, 0xbad), writeWR(6, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0}, wc{4, 0}, wc{5, verbs.WCMWBindErr}, wc{6, verbs.WCFlushErr})
	p.a.wantWindows(labels(windowKey, windowKey+1), nil)
	if p.b.qp.Work().WriteBytes != 16 {
		t.Errorf("%d bytes were written, want 16", p.b.qp.Work().WriteBytes)
	}
}

// TestLocalSQD: a drained queue executes no local operation, and ERR flushes it.
func TestLocalSQD(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC} {
		for _, end := range []verbs.QPState{verbs.QPStateRTS, verbs.QPStateErr} {
			p := newPair(t, setup{typ: typ, mtu: verbs.MTU256, turn: 2})
			p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*2*maxWindow)))
			p.transmit()
			p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
			p.post(p.a, bindWR(2, windowKey), writeWR(3, p.b.mem.remote(0)))
			p.run()
			p.a.wantSends(wc{1, 0})
			p.a.wantEvents(verbs.EventSQDrained)
			p.a.wantWindows(nil, nil)
			p.state(p.a, end)
			p.run()
			if end == verbs.QPStateRTS {
				p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0})
				p.a.wantWindows(labels(windowKey), nil)
			} else {
				p.a.wantSends(wc{1, 0}, wc{2, verbs.WCFlushErr}, wc{3, verbs.WCFlushErr})
				p.a.wantWindows(nil, nil)
			}
		}
	}
}

// TestLocalRNR: a local operation behind a SEND that waits for a receive is executed once.
func TestLocalRNR(t *testing.T) {
	p := newPair(t, setup{rnrTimer: 10})
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)), bindWR(2, windowKey), sendWR(3), bindWR(4, windowKey+1))
	p.runUntil(10 * ms)
	p.a.wantSends()
	p.b.postRecv(1, p.b.mem.sge(0, 8))
	p.runUntil(20 * ms)
	p.a.wantSends(wc{1, 0}, wc{2, 0})
	p.b.postRecv(2)
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0}, wc{4, 0})
	p.a.wantWindows(labels(windowKey, windowKey+1), nil)
}

// TestSendWithInv: the peer's window is invalidated when the receive completes. The completion names the window.
func TestSendWithInv(t *testing.T) {
	for _, length := range []int{0, 1, 256, 257, 1000} {
		p := newPair(t, setup{mtu: verbs.MTU256})
		w := p.b.bindWindow(windowKey + 5)
		p.b.postRecv(1, p.b.mem.sge(1<<16, 1024))
		p.post(p.a, writeWR(1, w.remote(0), p.a.mem.sge(0, 8)))
		wr := sendInvWR(2, windowKey+5, p.a.mem.sge(3, length))
		wr.Flags |= verbs.SendSolicited
		p.post(p.a, wr)
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0})
		p.b.wantWindows(labels(windowKey+5), labels(windowKey+5))
		key := p.b.keyOf(windowKey + 5)
		want := verbs.WC{ID: 1, Op: verbs.WCRecv, Flags: verbs.WCFlagWithInv, Imm: uint32(key), ByteLen: uint32(length), QPN: 0x22, SrcQPN: 0x11}
		if got := p.b.recvd[0]; got.wc != want || !got.solicited {
			t.Errorf("%d bytes: %+v, want %+v", length, got, want)
		}
		if got := p.a.sends[1].wc; got.Op != verbs.WCSend {
			t.Errorf("completion %+v, want WC_SEND", got)
		}
		if !bytes.Equal(p.b.mem.data[1<<16:][:length], p.a.mem.data[3:][:length]) {
			t.Errorf("%d bytes: the data differ, want those of the source", length)
		}
		n := max(1, (length+255)/256)
		for i, s := range p.packets(p.a, 0)[1:][:n] {
			want := wantOpcode(verbs.OpSend, i, n)
			if i == n-1 {
				want += map[bool]wire.Opcode{true: wire.RCSendOnlyWithInvalidate - wire.RCSendOnly, false: wire.RCSendLastWithInvalidate - wire.RCSendLast}[n == 1]
			}
			if s.Opcode != want || i == n-1 && s.InvalidateRKey != uint32(key) {
				t.Errorf("packet %d of %d: %v %#x, want %v and, in the last, %#x", i, n, s.Opcode, s.InvalidateRKey, want, key)
			}
		}
		// A duplicate is acknowledged. It does nothing to the window, which is bound again by now.
		p.b.bindWindow(windowKey + 5)
		again := p.last(p.a)
		mark := len(p.log)
		p.inject(p.b, again.Packet)
		p.transmit()
		if got := p.packets(p.b, mark); len(got) != 1 || got[0].PSN != again.PSN || got[0].AETH.Syndrome != 0x1f {
			t.Errorf("a duplicate is answered with %+v, want one ACK of %v", got, again.PSN)
		}
		p.b.wantWindows(labels(windowKey+5, windowKey+5), labels(windowKey+5))
		p.b.wantRecvs(wc{1, 0})
		if err := p.b.qp.cfg.PD.Invalidate(key, p.b.qp.cfg.QPN); err != nil {
			t.Fatal(err)
		}
		p.post(p.a, writeWR(3, w.remote(0), p.a.mem.sge(0, 8)))
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, verbs.WCRemAccessErr})
	}
}

// TestSendWithInvLoss: the window is invalidated once, whichever packets are lost and however long there is no
// receive.
func TestSendWithInvLoss(t *testing.T) {
	for lost := range 10 {
		p := newPair(t, setup{mtu: verbs.MTU256})
		p.b.bindWindow(windowKey)
		p.b.bindWindow(windowKey + 1)
		n := 0
		p.routeWith(func(*node, int, *wire.Packet) bool { n++; return n-1 == lost })
		p.post(p.a, sendInvWR(1, windowKey, p.a.mem.sge(0, 600)), sendInvWR(2, windowKey+1))
		p.runUntil(6 * ms)
		p.b.wantWindows(labels(windowKey, windowKey+1), nil)
		p.b.postRecv(1, p.b.mem.sge(0, 600))
		p.b.postRecv(2, p.b.mem.sge(0, 600))
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0})
		p.b.wantRecvs(wc{1, 0}, wc{2, 0})
		p.b.wantWindows(labels(windowKey, windowKey+1), labels(windowKey, windowKey+1))
	}
}

// TestSendWithInvRefused: a key that cannot be invalidated ends the connection, without a NAK: the
// sender finds out by itself.
func TestSendWithInvRefused(t *testing.T) {
	p := newPair(t, setup{retry: 2})
	p.b.postRecv(1, p.b.mem.sge(0, 64))
	p.b.postRecv(2)
	p.post(p.a, writeWR(1, p.b.mem.remote(64)), sendInvWR(2, 0xbad, p.a.mem.sge(0, 8)), writeWR(3, p.b.mem.remote(64)))
	p.run()
	p.b.wantRecvs(wc{1, verbs.WCRemInvReqErr}, wc{2, verbs.WCFlushErr})
	p.b.wantState(verbs.QPStateErr)
	p.b.wantEvents()
	p.a.wantSends(wc{1, 0}, wc{2, verbs.WCRetryExceeded}, wc{3, verbs.WCFlushErr})
}

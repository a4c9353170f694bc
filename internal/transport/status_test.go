package transport

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

var badSGE = verbs.SGE{Addr: 0x10, Length: 8, LKey: 0xbad}

// TestStatus provokes each completion status that RC has, at the ends that see it. Behind the work request that
// fails, both ends have others, which must all be flushed once, in order.
func TestStatus(t *testing.T) {
	const ok, flush = verbs.WCSuccess, verbs.WCFlushErr
	events := func(es ...verbs.EventType) []verbs.EventType { return es }
	tests := []struct {
		name string
		set  setup
		wr   func(p *pair) verbs.SendWR // work request 2 of a; 1 goes well
		prep func(p *pair)              // after the receives of b are posted, which are 102, 103, 104

		send    verbs.WCStatus // of work request 2
		recv    verbs.WCStatus // of receive 102; WCSuccess if it is not used
		noError bool           // b stays in RTS
		behind  bool           // b has executed SEND 3 all the same: only a response shows the fault
		events  []verbs.EventType
	}{
		{name: "receive too short",
			wr:   func(p *pair) verbs.SendWR { return sendWR(2, p.a.mem.sge(0, 65)) },
			send: verbs.WCRemInvReqErr, recv: verbs.WCLocLenErr},
		{name: "receive too short, second packet",
			wr: func(p *pair) verbs.SendWR { return sendWR(2, p.a.mem.sge(0, 1025)) },
			prep: func(p *pair) {
				p.b.dropReceives()
				p.b.postRecv(102, p.b.mem.sge(0, 1024))
				p.b.postRecv(103)
				p.b.postRecv(104)
			},
			send: verbs.WCRemInvReqErr, recv: verbs.WCLocLenErr},
		{name: "READ with MAX_QP_RD_ATOMIC 0", set: setup{noRD: true},
			wr:   func(p *pair) verbs.SendWR { return readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8)) },
			send: verbs.WCLocQPOpErr, noError: true},
		{name: "atomic with MAX_QP_RD_ATOMIC 0", set: setup{noRD: true},
			wr:   func(p *pair) verbs.SendWR { return addWR(2, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)) },
			send: verbs.WCLocQPOpErr, noError: true},
		{name: "bad lkey of a SEND",
			wr:   func(p *pair) verbs.SendWR { return sendWR(2, badSGE) },
			send: verbs.WCLocProtErr, noError: true},
		{name: "bad lkey in the second packet of a WRITE",
			wr:   func(p *pair) verbs.SendWR { return writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 1024), badSGE) },
			send: verbs.WCLocProtErr, noError: true},
		{name: "bad lkey of a READ",
			wr:   func(p *pair) verbs.SendWR { return readWR(2, p.b.mem.remote(0), badSGE) },
			send: verbs.WCLocProtErr, noError: true, behind: true},
		{name: "bad lkey of an atomic",
			wr:   func(p *pair) verbs.SendWR { return addWR(2, p.b.mem.remote(0), 1, badSGE) },
			send: verbs.WCLocProtErr, noError: true, behind: true},
		{name: "READ into memory without local write",
			wr: func(p *pair) verbs.SendWR {
				return readWR(2, p.b.mem.remote(0), p.a.register(0x1000, 8, 0).sge(0, 8))
			},
			send: verbs.WCLocProtErr, noError: true, behind: true},
		{name: "bad lkey of the receive",
			wr:   func(p *pair) verbs.SendWR { return sendWR(2, p.a.mem.sge(0, 8)) },
			prep: func(p *pair) { p.b.dropReceives(); p.b.postRecv(102, badSGE); p.b.postRecv(103); p.b.postRecv(104) },
			send: verbs.WCRemOpErr, recv: verbs.WCLocProtErr},
		{name: "rkey that nobody has",
			wr: func(p *pair) verbs.SendWR {
				return writeWR(2, verbs.RemoteAddr{VA: memBaseB, RKey: 0xbad}, p.a.mem.sge(0, 8))
			},
			send: verbs.WCRemAccessErr, events: events(verbs.EventQPAccessErr)},
		{name: "WRITE over the end of the region",
			wr:   func(p *pair) verbs.SendWR { return writeWR(2, p.b.mem.remote(memSize-8), p.a.mem.sge(0, 9)) },
			send: verbs.WCRemAccessErr, events: events(verbs.EventQPAccessErr)},
		{name: "WRITE whose end wraps",
			wr: func(p *pair) verbs.SendWR {
				return writeWR(2, verbs.RemoteAddr{VA: 1<<64 - 4, RKey: verbs.RKey(p.b.mem.key)}, p.a.mem.sge(0, 9))
			},
			send: verbs.WCRemAccessErr, events: events(verbs.EventQPAccessErr)},
		{name: "READ of a region without remote read",
			wr: func(p *pair) verbs.SendWR {
				r := p.b.register(0x1000, 8, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
				return readWR(2, r.remote(0), p.a.mem.sge(0, 8))
			},
			send: verbs.WCRemAccessErr, events: events(verbs.EventQPAccessErr)},
		{name: "atomic on a region without remote atomic",
			wr: func(p *pair) verbs.SendWR {
				r := p.b.register(0x1000, 8, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
				return addWR(2, r.remote(0), 1, p.a.mem.sge(0, 8))
			},
			send: verbs.WCRemAccessErr, events: events(verbs.EventQPAccessErr)},
		{name: "WRITE that the QP does not allow", set: setup{access: verbs.AccessRemoteRead},
			wr:   func(p *pair) verbs.SendWR { return writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8)) },
			send: verbs.WCRemInvReqErr, events: events(verbs.EventQPReqErr)},
		{name: "READ that the QP does not allow", set: setup{access: verbs.AccessRemoteWrite},
			wr:   func(p *pair) verbs.SendWR { return readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 8)) },
			send: verbs.WCRemInvReqErr, events: events(verbs.EventQPReqErr)},
		{name: "atomic that the QP does not allow", set: setup{access: verbs.AccessRemoteWrite},
			wr:   func(p *pair) verbs.SendWR { return addWR(2, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)) },
			send: verbs.WCRemInvReqErr, events: events(verbs.EventQPReqErr)},
		{name: "misaligned atomic",
			wr:   func(p *pair) verbs.SendWR { return addWR(2, p.b.mem.remote(4), 1, p.a.mem.sge(0, 8)) },
			send: verbs.WCRemInvReqErr, events: events(verbs.EventQPReqErr)},
		{name: "nobody acknowledges",
			wr:   func(p *pair) verbs.SendWR { return sendWR(2, p.a.mem.sge(0, 8)) },
			prep: func(p *pair) { p.cutAfter(1) },
			send: verbs.WCRetryExceeded, noError: true},
		{name: "no receive", set: setup{rnrRetry: 2},
			wr:   func(p *pair) verbs.SendWR { return sendWR(2, p.a.mem.sge(0, 8)) },
			prep: func(p *pair) { p.b.dropReceives() },
			send: verbs.WCRNRRetryExceeded, noError: true},
		{name: "NAK of a code that RC does not have",
			wr: func(p *pair) verbs.SendWR { return sendWR(2, p.a.mem.sge(0, 8)) },
			prep: func(p *pair) {
				p.cutAfter(1)
				p.answer(1, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge}, AETH: wire.AETH{Syndrome: wire.SyndromeNAK(wire.NAKInvalidRDRequest)}})
			},
			send: verbs.WCRemInvRDReqErr, noError: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.set.retry = 2
			p := newPair(t, tt.set)
			p.b.postRecv(101, p.b.mem.sge(0, 64))
			p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)))
			p.run()
			for id := uint64(102); id < 105; id++ {
				p.b.postRecv(id, p.b.mem.sge(0, 64))
			}
			if tt.prep != nil {
				tt.prep(p)
			}
			p.a.postRecv(50)
			p.a.postRecv(51)
			p.post(p.a, tt.wr(p), withFlags(sendWR(3, p.a.mem.sge(0, 8)), 0), readWR(4, p.b.mem.remote(0), p.a.mem.sge(0, 8)),
				withFlags(writeWR(5, p.b.mem.remote(64), p.a.mem.sge(0, 8)), 0))
			p.run()

			p.a.wantState(verbs.QPStateErr)
			p.a.wantSends(wc{1, ok}, wc{2, tt.send}, wc{3, flush}, wc{4, flush}, wc{5, flush})
			p.a.wantRecvs(wc{50, flush}, wc{51, flush})
			p.a.wantEvents()
			p.b.wantEvents(tt.events...)
			switch {
			case tt.behind:
				p.b.wantState(verbs.QPStateRTS)
				p.b.wantRecvs(wc{101, ok}, wc{102, ok})
			case tt.noError:
				p.b.wantState(verbs.QPStateRTS)
				p.b.wantRecvs(wc{101, ok})
			case tt.recv != ok:
				p.b.wantState(verbs.QPStateErr)
				p.b.wantRecvs(wc{101, ok}, wc{102, tt.recv}, wc{103, flush}, wc{104, flush})
			default:
				p.b.wantState(verbs.QPStateErr)
				p.b.wantRecvs(wc{101, ok}, wc{102, flush}, wc{103, flush}, wc{104, flush})
			}
			for _, s := range p.a.sends[1:2] {
				if err := s.wc.Err(); !errors.Is(err, tt.send) || s.wc.QPN != 0x11 {
					t.Errorf("completion %v of qp %v, want %v of qp 0x11", err, s.wc.QPN, tt.send)
				}
			}
			if p.a.qp.NextTimeout() != Never || p.b.qp.NextTimeout() != Never {
				t.Error("a timer runs on")
			}
			a, b := p.a.qp.Counters(), p.b.qp.Counters()
			for status, n := range map[verbs.WCStatus]uint64{verbs.WCRetryExceeded: a.RetryExceeded, verbs.WCRNRRetryExceeded: a.RNRRetryExceeded,
				verbs.WCRemInvReqErr: a.InvalidNAKs, verbs.WCRemAccessErr: a.AccessNAKs, verbs.WCRemOpErr: a.OperationNAKs} {
				if want := uint64(bit(tt.send == status)); n != want {
					t.Errorf("%v is counted %d times, want %d", status, n, want)
				}
			}
			if want := uint64(bit(tt.send == verbs.WCRemOpErr)); b.RefusedOperation != want {
				t.Errorf("b counts %d operations refused, want %d", b.RefusedOperation, want)
			}
			if n, want := p.b.qp.Work().RecvErrors, uint64(bit(tt.recv != ok)); n != want {
				t.Errorf("b counts %d receives with an error, want %d", n, want)
			}
			if w := p.a.qp.Work(); w.SendErrors != 1 || w.SendFlushes != 3 {
				t.Errorf("a counts %d sends with an error and %d flushed, want 1 and 3", w.SendErrors, w.SendFlushes)
			}
		})
	}
}

// cutAfter loses all packets of b, and those of a from its n-th on.
func (p *pair) cutAfter(n int) {
	p.routeWith(func(from *node, i int, _ *wire.Packet) bool { return from == p.b || i >= n })
}

// routeWith loses the packets for which lose is true.
func (p *pair) routeWith(lose func(from *node, n int, pkt *wire.Packet) bool) {
	p.route = func(from *node, n int, pkt *wire.Packet) []delay {
		if lose(from, n, pkt) {
			return nil
		}
		return []delay{testDelay}
	}
}

// answer delivers to a, soon, a packet made by hand with a's PSN n after its first.
func (p *pair) answer(n int, pkt wire.Packet) {
	pkt.PSN = psn(p.a.rc().recovery.Una()).Add(n - int(p.a.rc().recovery.Una()-seqBase))
	pkt.DestQP, pkt.PKey = uint32(p.a.qp.cfg.QPN), wire.DefaultPKey
	p.deliver(inFlight{at: p.now + testDelay, to: p.a, data: pkt.AppendTo(nil)})
}

// TestLocAccessErr: the region goes away before the last packet of a WRITE with immediate, which has taken a receive
// by then.
func TestLocAccessErr(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	r := p.b.register(0x10000, 4096, allAccess)
	p.b.postRecv(101)
	p.b.postRecv(102)
	p.routeWith(func(from *node, n int, _ *wire.Packet) bool { return from == p.a && n == 1 })
	p.post(p.a, withImm(writeWR(1, r.remote(0), p.a.mem.sge(0, 512)), 5))
	p.runUntil(ms)
	p.b.deregister(r)
	p.run()
	p.a.wantSends(wc{1, verbs.WCRemAccessErr})
	p.b.wantRecvs(wc{101, verbs.WCLocAccessErr}, wc{102, verbs.WCFlushErr})
	p.b.wantEvents()
}

// TestReadRegionGone: the region goes away while READ responses are being sent.
func TestReadRegionGone(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	r := p.b.register(0x10000, 4096, allAccess)
	p.b.postRecv(101)
	p.post(p.a, readWR(1, r.remote(0), p.a.mem.sge(0, 4096)), readWR(2, r.remote(0), p.a.mem.sge(0, 8)))
	p.route = func(from *node, n int, _ *wire.Packet) []delay {
		if from == p.b && n == 5 {
			p.b.deregister(r)
		}
		return []delay{testDelay}
	}
	p.run()
	p.a.wantSends(wc{1, verbs.WCRemAccessErr}, wc{2, verbs.WCFlushErr})
	p.b.wantEvents(verbs.EventQPAccessErr)
	p.b.wantRecvs(wc{101, verbs.WCFlushErr})
	if got := p.last(p.b); got.PSN != 6 || got.AETH.Syndrome != 0x62 {
		t.Errorf("the NAK is %v %v, want PSN 6", got.PSN, got.AETH)
	}
	if n := p.b.qp.Counters().RefusedAccess; n != 1 {
		t.Errorf("b counts %d requests refused for their memory, want 1", n)
	}
}

// TestBadResponse: responses that do not fit the request end it with BAD_RESP_ERR.
func TestBadResponse(t *testing.T) {
	resp := func(op wire.Opcode, psn wire.PSN, n int) wire.Packet {
		return wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn}, AETH: wire.AETH{Syndrome: 0x1f, MSN: 1}, Payload: make([]byte, n)}
	}
	const first, middle, last, only = wire.RCRDMAReadResponseFirst, wire.RCRDMAReadResponseMiddle, wire.RCRDMAReadResponseLast, wire.RCRDMAReadResponseOnly
	for _, tt := range []struct {
		name    string
		atomic  bool
		packets []wire.Packet // PSN counted from the request's
	}{
		{"first too short", false, []wire.Packet{resp(first, 0, 255)}},
		{"first too long", false, []wire.Packet{resp(first, 0, 257)}},
		{"empty middle", false, []wire.Packet{resp(first, 0, 256), resp(middle, 1, 0)}},
		{"last too short", false, []wire.Packet{resp(first, 0, 256), resp(middle, 1, 256), resp(last, 2, 1)}},
		{"last too long", false, []wire.Packet{resp(first, 0, 256), resp(middle, 1, 256), resp(last, 2, 3)}},
		{"only instead of first", false, []wire.Packet{resp(only, 0, 256)}},
		{"last too early", false, []wire.Packet{resp(first, 0, 256), resp(last, 1, 256)}},
		{"middle at the end", false, []wire.Packet{resp(first, 0, 256), resp(middle, 1, 256), resp(middle, 2, 2)}},
		{"atomic's for a READ", false, []wire.Packet{resp(wire.RCAtomicAcknowledge, 0, 0)}},
		{"READ's for an atomic", true, []wire.Packet{resp(only, 0, 8)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t, setup{mtu: verbs.MTU256, psnA: 0xffffff})
			if tt.atomic {
				p.post(p.a, addWR(1, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)))
			} else {
				p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 514)))
			}
			p.post(p.a, sendWR(2))
			p.cutAfter(0)
			p.transmit()
			for i, r := range tt.packets {
				r.PSN = r.PSN.Add(0xffffff)
				p.inject(p.a, r)
				if i < len(tt.packets)-1 {
					p.a.wantSends()
				}
			}
			p.a.wantSends(wc{1, verbs.WCBadRespErr}, wc{2, verbs.WCFlushErr})
			p.a.wantState(verbs.QPStateErr)
		})
	}
}

// TestInvalidRequestCause: a NAK "invalid request" has one code for all causes. The error names those that the
// request leaves, and no others.
func TestInvalidRequestCause(t *testing.T) {
	const access, receive, reads, mtu = "its QP lacks", "its receive is shorter than", "fewer READs and atomics", "its path MTU is not MTU_1024"
	for _, tt := range []struct {
		name string
		set  setup
		mtu  verbs.MTU // of b, unless it is a's
		wr   func(p *pair) verbs.SendWR
		want []string
	}{
		{"WRITE of a packet", setup{access: verbs.AccessRemoteRead}, 0,
			func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)) }, []string{access + " ACCESS_REMOTE_WRITE"}},
		{"READ", setup{access: verbs.AccessRemoteWrite}, 0,
			func(p *pair) verbs.SendWR { return readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3000)) }, []string{access + " ACCESS_REMOTE_READ", reads}},
		{"FETCH_ADD", setup{access: verbs.AccessRemoteWrite}, 0,
			func(p *pair) verbs.SendWR { return addWR(1, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8)) }, []string{access + " ACCESS_REMOTE_ATOMIC", reads}},
		{"SEND that is too long", setup{}, 0,
			func(p *pair) verbs.SendWR { return sendWR(1, p.a.mem.sge(0, 65)) }, []string{receive + " 65 bytes"}},
		{"WRITE to a smaller MTU", setup{}, verbs.MTU256,
			func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3000)) }, []string{access + " ACCESS_REMOTE_WRITE", mtu}},
		{"SEND to a larger MTU", setup{}, verbs.MTU2048,
			func(p *pair) verbs.SendWR { return sendWR(1, p.a.mem.sge(0, 3000)) }, []string{receive + " 3000 bytes", mtu}},
		{"READ from a smaller MTU", setup{}, verbs.MTU512, // seen in the response
			func(p *pair) verbs.SendWR { return readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3000)) }, []string{"is the peer's path MTU MTU_1024"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.set.unconnected = true
			p := newPair(t, tt.set)
			p.connect(p.a, tt.set.attr(p.a, p.b, 0, 0))
			if tt.set.mtu = tt.mtu; tt.mtu == 0 {
				tt.set.mtu = verbs.MTU1024
			}
			p.connect(p.b, tt.set.attr(p.b, p.a, 0, 0))
			p.b.postRecv(2, p.b.mem.sge(0, 64))
			p.post(p.a, tt.wr(p))
			p.run()
			text := p.a.sends[0].wc.Err().Error()
			for _, cause := range []string{access, receive, reads, mtu} {
				if want := slices.ContainsFunc(tt.want, func(s string) bool { return strings.HasPrefix(s, cause) }); strings.Contains(text, cause) != want {
					t.Errorf("%q names %q: %v, want %v", text, cause, !want, want)
				}
			}
			for _, s := range tt.want {
				if !strings.Contains(text, s) {
					t.Errorf("%q does not say %q", text, s)
				}
			}
		})
	}
}

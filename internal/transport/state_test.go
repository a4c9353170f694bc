package transport

import (
	"errors"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// reach takes a QP that is in RESET to a state.
func (p *pair) reach(e *node, s verbs.QPState) {
	p.t.Helper()
	a := setup{}.attr(e, e.peer, 5, 7)
	for _, step := range []struct {
		state verbs.QPState
		mask  verbs.QPAttrMask
	}{{verbs.QPStateInit, maskInit}, {verbs.QPStateRTR, maskRTR}, {verbs.QPStateRTS, maskRTS}, {verbs.QPStateSQD, verbs.MaskState}} {
		if s == verbs.QPStateReset {
			return
		}
		a.State = step.state
		p.modify(e, a, step.mask)
		if s == verbs.QPStateErr { // from INIT: there was never a send queue
			p.state(e, s)
			return
		}
		if step.state == s {
			return
		}
	}
}

var allStates = []verbs.QPState{verbs.QPStateReset, verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS, verbs.QPStateSQD, verbs.QPStateErr}

// TestPostInState: the result of Post in each state: IBTA C10-96.
func TestPostInState(t *testing.T) {
	for _, s := range allStates {
		p := newPair(t, setup{unconnected: true})
		p.reach(p.a, s)
		p.a.wantState(s)
		wr := writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8))
		err := p.a.qp.Post(&wr)
		if refused := s == verbs.QPStateReset || s == verbs.QPStateInit || s == verbs.QPStateRTR; refused != errors.Is(err, verbs.ErrState) || !refused && err != nil {
			t.Errorf("%v: post: %v; want ErrState: %v", s, err, refused)
		}
		p.transmit()
		if sent := len(p.log) > 0; sent != (s == verbs.QPStateRTS) {
			t.Errorf("%v: %d packets; want some: %v", s, len(p.log), s == verbs.QPStateRTS)
		}
		if s == verbs.QPStateErr {
			p.a.wantSends(wc{1, verbs.WCFlushErr})
			for i := range uint64(63) {
				wr := readWR(i+2, verbs.RemoteAddr{}, p.a.mem.sge(0, 5000))
				p.post(p.a, wr)
			}
			if err := p.a.qp.Post(&wr); !errors.Is(err, verbs.ErrQueueFull) {
				t.Errorf("65 flushed work requests that nobody polls: %v, want ErrQueueFull", err)
			}
			p.a.polled(64)
			p.post(p.a, wr)
			if p.a.sends[64].freed != 65 {
				t.Errorf("%+v, want 65 places freed", p.a.sends[64])
			}
		} else {
			p.a.wantSends()
		}
	}
}

// TestEstablishedByPSN: only a request with the expected PSN shows that the peer has its connection.
func TestEstablishedByPSN(t *testing.T) {
	p := newPair(t, setup{unconnected: true})
	p.reach(p.a, verbs.QPStateRTR)
	p.a.postRecv(1, p.a.mem.sge(0, 8))
	for _, psn := range []wire.PSN{6, 8, 0, 0x800000} {
		if p.inject(p.a, req(wire.RCSendOnly, psn, 3)); p.a.qp.Established() {
			t.Errorf("established by psn %v, and 7 is expected", psn)
		}
	}
	p.a.wantEvents()
	p.inject(p.a, req(wire.RCSendOnly, 7, 3))
	p.a.wantEvents(verbs.EventCommEst)
	if !p.a.qp.Established() {
		t.Error("not established by the expected psn")
	}
}

// TestPacketInState: requests are taken from RTR on. The first one makes the QP established, and in RTR it raises
// COMM_EST, once.
func TestPacketInState(t *testing.T) {
	for _, s := range allStates {
		p := newPair(t, setup{unconnected: true})
		p.reach(p.a, s)
		p.a.postRecv(1, p.a.mem.sge(0, 8))
		p.a.postRecv(2, p.a.mem.sge(0, 8))
		p.inject(p.a, req(wire.RCSendOnly, 7, 3))
		p.inject(p.a, req(wire.RCSendOnly, 8, 3))
		p.inject(p.a, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, PSN: 5}, AETH: wire.AETH{Syndrome: 0x61}})
		p.transmit()
		established := false
		switch s {
		case verbs.QPStateRTR, verbs.QPStateRTS, verbs.QPStateSQD:
			established = true
			p.a.wantRecvs(wc{1, 0}, wc{2, 0})
			if got := p.last(p.a); got.PSN != 8 || got.AETH.Syndrome != 0x1f {
				t.Errorf("%v: %+v, want an ACK of PSN 8", s, got)
			}
		default:
			if s == verbs.QPStateErr {
				p.a.wantRecvs(wc{1, verbs.WCFlushErr}, wc{2, verbs.WCFlushErr})
			} else {
				p.a.wantRecvs()
			}
			if len(p.log) != 0 {
				t.Errorf("%v: %d answers, want none", s, len(p.log))
			}
		}
		if got := p.a.qp.Established(); got != established {
			t.Errorf("%v: established: %v, want %v", s, got, established)
		}
		if s == verbs.QPStateRTR {
			p.a.wantEvents(verbs.EventCommEst)
		} else {
			p.a.wantEvents()
		}
		p.a.wantState(s)
	}
}

// TestAttr: Attr reports the attributes of Modify, and the PSNs as they are now.
func TestAttr(t *testing.T) {
	p := newPair(t, setup{unconnected: true})
	in := verbs.QPAttr{
		State: verbs.QPStateInit, Port: 1, PKeyIndex: 1, Access: verbs.AccessRemoteRead,
	}
	p.modify(p.a, &in, maskInit)
	in = verbs.QPAttr{State: verbs.QPStateRTR, AH: verbs.AHAttr{HopLimit: 9, DGID: verbs.GID{15: 1}}, PathMTU: verbs.MTU512, DestQPN: 0x22, RQPSN: 0x123, MaxDestRDAtomic: 3, MinRNRTimer: 4}
	p.modify(p.a, &in, maskRTR)
	rts := verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 9, RetryCnt: 3, RNRRetry: 2, SQPSN: 0xffffff, MaxRDAtomic: 5,
		AltAH: verbs.AHAttr{HopLimit: 8}, AltPort: 2, AltPKeyIndex: 1, AltTimeout: 11, PathMigState: verbs.MigRearm}
	p.modify(p.a, &rts, maskRTS|verbs.MaskAltPath|verbs.MaskPathMigState)
	got := p.a.qp.Attr()
	want := in
	want.State, want.CurState, want.Port, want.Access = verbs.QPStateRTS, verbs.QPStateRTS, 1, verbs.AccessRemoteRead
	want.Timeout, want.RetryCnt, want.RNRRetry, want.SQPSN, want.MaxRDAtomic, want.Cap = 9, 3, 2, 0xffffff, 5, p.a.qp.cfg.Cap
	want.PKeyIndex = 1
	want.AltAH, want.AltPort, want.AltPKeyIndex, want.AltTimeout, want.PathMigState = rts.AltAH, 2, 1, 11, verbs.MigRearm
	if got != want {
		t.Errorf("Attr:\n%+v, want\n%+v", got, want)
	}
	p.a.postRecv(1)
	p.inject(p.a, req(wire.RCSendOnly, 0x123, 0))
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 1025)))
	if got := p.a.qp.Attr(); got.SQPSN != 2 || got.RQPSN != 0x124 {
		t.Errorf("SQ_PSN %v, RQ_PSN %v; want 2, 0x124", got.SQPSN, got.RQPSN)
	}
	bad := verbs.QPAttr{State: verbs.QPStateInit}
	if err := p.a.qp.Modify(0, &bad, maskInit); !errors.Is(err, verbs.ErrState) || p.a.qp.Attr().State != verbs.QPStateRTS {
		t.Errorf("RTS->INIT: %v, state %v; want ErrState and RTS", err, p.a.qp.State())
	}
	p.state(p.a, verbs.QPStateReset)
	if got, want := p.a.qp.Attr(), (verbs.QPAttr{Cap: p.a.qp.cfg.Cap}); got != want {
		t.Errorf("after RESET: %+v, want %+v", got, want)
	}
}

// TestNews: an event alone is news, and so is another state. A device takes them for no other reason.
func TestNews(t *testing.T) {
	q := newPair(t, setup{}).a.qp
	if q.HasNews(verbs.QPStateRTS) || !q.HasNews(verbs.QPStateSQD) {
		t.Errorf("news in RTS: %v, for who has seen SQD: %v; want false, true", q.HasNews(verbs.QPStateRTS), q.HasNews(verbs.QPStateSQD))
	}
	if q.raise(verbs.EventCommEst, nil); !q.HasNews(verbs.QPStateRTS) {
		t.Error("an event is no news, want it to be")
	}
	// A QP in RESET has nothing that could fail: a CQ that it names may have lost others' completions.
	p := newPair(t, setup{unconnected: true})
	p.a.qp.Fail(errModified)
	p.a.wantState(verbs.QPStateReset)
	p.a.wantEvents()
}

// TestExpect: how well a packet fits by its PSN, at both ends of the PSNs that a peer may send now. Where the address
// is another than the peer's, all depends on that.
func TestExpect(t *testing.T) {
	p := newPair(t, setup{psnA: 1000, psnB: 2000})
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 4*1024)))
	p.transmit()
	u := newPair(t, setup{typ: verbs.QPTypeUC, psnA: 1000, psnB: 2000})
	for _, tt := range []struct {
		q    *QP
		op   wire.Opcode
		base wire.PSN
		want map[int]Expectation // by the PSN's distance from base
	}{
		{p.a.qp, wire.RCSendOnly, 2000, map[int]Expectation{-repeatedPSNs - 1: Unexpected, -repeatedPSNs: Expected, 0: Expected, 1: Ahead, windowPSNs: Ahead, windowPSNs + 1: Unexpected}},
		{p.a.qp, wire.RCAcknowledge, 1000, map[int]Expectation{-answeredPSNs - 1: Unexpected, -answeredPSNs: Expected, 0: Expected, 3: Expected, 4: Unexpected}},
		{u.a.qp, wire.UCSendOnly, 2000, map[int]Expectation{-1: Unexpected, 0: Expected, ucLostPSNs: Expected, ucLostPSNs + 1: Ahead, windowPSNs: Ahead, windowPSNs + 1: Unexpected}},
	} {
		for d, want := range tt.want {
			if got, base := tt.q.Expect(&wire.Packet{BTH: wire.BTH{Opcode: tt.op, PSN: tt.base.Add(d)}}); got != want || base != tt.base {
				t.Errorf("%v with psn %v%+d: got %v from %v on, want %v", tt.op, tt.base, d, got, base, want)
			}
		}
	}
}

// TestReset: RESET forgets everything, without completions. The QP can be connected again.
func TestReset(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256})
	p.b.postRecv(1, p.b.mem.sge(0, 4096))
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 4096)), readWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 512)))
	p.routeWith(func(from *node, n int, _ *wire.Packet) bool { return from == p.a && n == 9 })
	p.runUntil(2 * testDelay)
	for _, e := range []*node{p.a, p.b} {
		p.state(e, verbs.QPStateReset)
		if e.qp.NextTimeout() != Never {
			t.Errorf("%s: the next timeout is at %v, want none", e.name, e.qp.NextTimeout())
		}
	}
	p.flight = nil
	p.run()
	p.a.wantSends()
	p.b.wantRecvs()

	p.route = nil
	p.connect(p.a, setup{}.attr(p.a, p.b, 100, 200))
	p.connect(p.b, setup{}.attr(p.b, p.a, 200, 100))
	p.b.postRecv(2, p.b.mem.sge(0, 4096))
	p.post(p.a, sendWR(3, p.a.mem.sge(0, 4096)), addWR(4, p.b.mem.remote(8), 1, p.a.mem.sge(0, 8)))
	p.run()
	p.a.wantSends(wc{3, 0}, wc{4, 0})
	p.b.wantRecvs(wc{2, 0})
	if got := p.a.sends[0].freed; got != 1 {
		t.Errorf("the first completion after RESET frees %d places, want 1", got)
	}
}

// TestResetForgets: RESET takes back settings that were made apart from Modify, and packets that were due. It clears
// the failure.
func TestResetForgets(t *testing.T) {
	for _, fail := range []bool{false, true} {
		p := newPair(t, setup{})
		q := p.a.qp
		p.inject(p.a, rdma(req(wire.RCRDMAWriteOnly, 0, 0), 0, 0, 0))
		if err := q.SetCongestionControl(verbs.CongestionDCQCN); err != nil {
			t.Fatal(err)
		}
		q.SetAdaptiveRouting(routed)
		q.PeerIsOurs()
		q.notify.due = true
		if !q.Established() || !q.AllowsMarks() {
			t.Fatalf("before: established %v, marks %v; want both", q.Established(), q.AllowsMarks())
		}
		if fail {
			p.state(p.a, verbs.QPStateErr)
		}
		p.state(p.a, verbs.QPStateReset)
		if q.Established() || q.Failure() != nil || q.AllowsMarks() || q.routing != q.cfg.Routing || q.notify.due || p.a.rc().hello != (helloState{}) {
			t.Errorf("after RESET (failed before: %v): established %v, failure %v, marks %v, routing %+v, notification %v, hello %+v; want all as with a new QP",
				fail, q.Established(), q.Failure(), q.AllowsMarks(), q.routing, q.notify.due, p.a.rc().hello)
		}
	}
}

// TestErr: Modify to ERR flushes both queues. The receive of a message that is under way comes first.
func TestErr(t *testing.T) {
	for _, fail := range []bool{false, true} {
		p := newPair(t, setup{mtu: verbs.MTU256})
		p.b.postRecv(1, p.b.mem.sge(0, 4096))
		p.b.postRecv(2, p.b.mem.sge(0, 4096))
		p.routeWith(func(from *node, n int, _ *wire.Packet) bool { return from == p.a && n >= 9 })
		p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(1<<16, 512)), writeWR(2, p.b.mem.remote(0)), sendWR(3, p.a.mem.sge(0, 4096)))
		p.post(p.b, readWR(50, p.a.mem.remote(0), p.b.mem.sge(0, 8)), withFlags(writeWR(51, p.a.mem.remote(0)), 0))
		p.step(testDelay) // b has the packets, and has not answered
		if fail {
			p.b.qp.Fail(nil)
			p.b.qp.Fail(nil)
			p.b.wantEvents(verbs.EventQPFatal)
		} else {
			p.state(p.b, verbs.QPStateErr)
			p.b.wantEvents()
		}
		p.b.wantRecvs(wc{1, verbs.WCFlushErr}, wc{2, verbs.WCFlushErr})
		p.b.wantSends(wc{50, verbs.WCFlushErr}, wc{51, verbs.WCFlushErr})
		n := len(p.packets(p.b, 0))
		p.run()
		if len(p.packets(p.b, 0)) != n {
			t.Error("a QP in error goes on sending")
		}
		p.b.postRecv(3)
		p.state(p.b, verbs.QPStateErr) // as a device does for a receive that is posted in ERR
		p.b.wantRecvs(wc{1, verbs.WCFlushErr}, wc{2, verbs.WCFlushErr}, wc{3, verbs.WCFlushErr})
		p.a.wantSends(wc{1, verbs.WCRetryExceeded}, wc{2, verbs.WCFlushErr}, wc{3, verbs.WCFlushErr})
	}
}

// TestSQD: in SQD work requests that were started finish, and no others start. One event says that the
// queue has drained. In RTS the queue goes on.
func TestSQD(t *testing.T) {
	for _, kind := range []string{"WRITE", "READ", "SEND without receive"} {
		for _, notify := range []bool{false, true} {
			for _, lose := range []int{-1, 0, 1} {
				name := fmt.Sprintf("%s, notify %v, packet %d lost", kind, notify, lose)
				p := newPair(t, setup{mtu: verbs.MTU256, rd: 1})
				p.routeWith(func(from *node, n int, _ *wire.Packet) bool { return from == p.a && n == lose })
				second := writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 600))
				switch kind {
				case "WRITE":
					p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*2*maxWindow)), second)
				case "READ":
					p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*2*readChunk)), second)
				default:
					p.post(p.a, sendWR(1, p.a.mem.sge(0, 600)))
				}
				p.transmit() // the first has begun, the second has not
				if kind == "SEND without receive" {
					p.post(p.a, second)
				}
				p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: notify}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
				if !p.a.qp.Attr().SQDraining {
					t.Errorf("%s: not draining, want it to", name)
				}
				p.a.wantEvents()
				p.runUntil(p.now + ms)
				p.b.postRecv(1, p.b.mem.sge(0, 4096))
				p.run()
				p.a.wantSends(wc{1, 0})
				want := []verbs.EventType{verbs.EventSQDrained}
				if !notify {
					want = nil
				}
				p.a.wantEvents(want...)
				if notify && p.a.before[0] != 1 {
					t.Errorf("%s: %d completions before the event, want 1", name, p.a.before[0])
				}
				if p.a.qp.Attr().SQDraining {
					t.Errorf("%s: still draining, want an end", name)
				}
				p.modify(p.a, &verbs.QPAttr{Timeout: 5, RetryCnt: 1}, verbs.MaskTimeout|verbs.MaskRetryCnt)
				p.post(p.a, writeWR(3, p.b.mem.remote(0)))
				p.run()
				p.a.wantSends(wc{1, 0})
				p.a.wantEvents(want...)
				p.state(p.a, verbs.QPStateRTS)
				p.run()
				p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0})
				p.a.wantEvents(want...)

				// A second time, with nothing to drain.
				p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
				p.a.wantEvents(append(want, verbs.EventSQDrained)...)
				if t.Failed() {
					t.Fatal(name)
				}
			}
		}
	}
}

// TestSQDLeft: a queue that is still draining goes on in RTS, with the work request that was begun and those that
// wait, and raises no event.
func TestSQDLeft(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU256, rd: 1})
	p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 256*2*maxWindow)), writeWR(2, p.b.mem.remote(0), p.a.mem.sge(0, 600)))
	p.transmit()
	p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: true}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify)
	if !p.a.qp.Attr().SQDraining {
		t.Error("not draining, want it to")
	}
	p.state(p.a, verbs.QPStateRTS)
	if p.a.qp.Attr().SQDraining {
		t.Error("draining in RTS, want an end")
	}
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0})
	p.a.wantEvents()
}

// TestSQDMoreReads: a larger max_rd_atomic forgets no outstanding READ, for which a fence waits.
func TestSQDMoreReads(t *testing.T) {
	p := newPair(t, setup{rd: 1, destRD: 16})
	p.cutAfter(0)
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	p.transmit()
	p.state(p.a, verbs.QPStateSQD)
	p.modify(p.a, &verbs.QPAttr{MaxRDAtomic: 16}, verbs.MaskMaxRDAtomic)
	if n := len(p.a.rc().requester.outstanding); n != 1 {
		t.Errorf("%d READs are outstanding, want 1", n)
	}
}

// TestSQDAttributes: attributes that SQD->SQD changes hold at once.
func TestSQDAttributes(t *testing.T) {
	p := newPair(t, setup{noTimeout: true})
	lost := 0
	p.routeWith(func(from *node, n int, _ *wire.Packet) bool { lost++; return true })
	p.post(p.a, writeWR(1, p.b.mem.remote(0)))
	p.runUntil(ms)
	p.modify(p.a, &verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState)
	if got := p.a.qp.NextTimeout(); got != Never {
		t.Errorf("timeout 0: next timeout %v, want none", got)
	}
	p.modify(p.a, &verbs.QPAttr{Timeout: 3, RetryCnt: 2}, verbs.MaskTimeout|verbs.MaskRetryCnt)
	if got, want := p.a.qp.NextTimeout(), ms+wire.ACKTimeout(3); got != want {
		t.Errorf("with timeout 3 the timer ends at %v, want %v", got, want)
	}
	p.run()
	p.a.wantSends(wc{1, verbs.WCRetryExceeded})
	if lost != 3 {
		t.Errorf("%d tries with retry_cnt 2, want 3", lost)
	}

	p = newPair(t, setup{rd: 1})
	p.state(p.a, verbs.QPStateSQD)
	p.state(p.b, verbs.QPStateSQD)
	p.modify(p.a, &verbs.QPAttr{MaxRDAtomic: 8}, verbs.MaskMaxRDAtomic)
	p.modify(p.b, &verbs.QPAttr{MaxDestRDAtomic: 8, Access: verbs.AccessRemoteRead, MinRNRTimer: 9},
		verbs.MaskMaxDestRDAtomic|verbs.MaskAccessFlags|verbs.MaskMinRNRTimer)
	p.state(p.a, verbs.QPStateRTS)
	for i := range 9 {
		p.post(p.a, readWR(uint64(i), p.b.mem.remote(0), p.a.mem.sge(0, 8)))
	}
	if p.transmit(); len(p.log) != 8 {
		t.Errorf("%d READs at a time, want 8", len(p.log))
	}
	p.run()
	if len(p.a.sends) != 9 {
		t.Errorf("%d READs are done, want 9", len(p.a.sends))
	}
	p.post(p.a, sendWR(20))
	p.runUntil(p.now + 2*testDelay)
	if got := p.last(p.b).AETH.Syndrome; got != 0x29 {
		t.Errorf("answer %v, want an RNR NAK with timer 9", got)
	}
	p.post(p.a, writeWR(21, p.b.mem.remote(0)))
	p.b.postRecv(1)
	p.run()
	if got := p.a.sends[len(p.a.sends)-1].wc; got.ID != 21 || got.Status != verbs.WCRemInvReqErr {
		t.Errorf("WRITE after the QP's flags have changed: %+v, want ID 21 and REM_INV_REQ_ERR", got)
	}
}

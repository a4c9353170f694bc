package cm

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// req is a REQ such as a's machine sends to b.
func (w *world) req(id, qpn uint32) *wire.REQ {
	return &wire.REQ{LocalCommID: id, ServiceID: testService, LocalGUID: 'a' << 24, LocalQPN: qpn, PKey: 0xffff, MTU: 3,
		LocalCMTimeout: 18, RemoteCMTimeout: 18, MaxCMRetries: 15,
		Primary: wire.CMPath{LocalGID: w.a.addr.As16(), RemoteGID: w.b.addr.As16(), ACKTimeout: 17}}
}

// A REP that nobody answers is repeated as often, and after as long, as the REQ says.
func TestREPTimeout(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	w.lossOf("b REP", "b REJ 4", "b DREQ")
	w.b.inject(w.a.addr, 1, wire.CMREQ, &wire.REQ{LocalCommID: 1, ServiceID: testService, PKey: 0xffff, MTU: 1, LocalCMTimeout: 20, MaxCMRetries: 7,
		Primary: wire.CMPath{RemoteGID: w.b.addr.As16(), ACKTimeout: 19}})
	d := w.b.want(EventRequest).Conn
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.advance(8*4096*time.Millisecond - 1)
	w.wantSent(slices.Repeat([]string{"b REP"}, 8)...)
	w.b.wantNone()
	w.advance(1)
	w.b.want(EventUnreachable)
	w.wantSent("b REJ 4")
	w.advance(time.Hour) // for the case that it was the answers that were lost
	w.wantSent(slices.Repeat([]string{"b DREQ"}, maxProbes)...)
	w.b.wantNone()
	w.wantEmpty()
}

// If the REJ by which the passive side gives up is lost, a DREQ tells the active side.
func TestREPTimeoutReachesLatePeer(t *testing.T) {
	w := newWorld(t)
	c, d := w.halfOpen()
	w.lossOf("a RTU", "b REJ 4")
	w.advance(16*milliseconds(DefaultCMTimeout) + 100*time.Millisecond)
	w.b.want(EventUnreachable)
	w.wantState(c, StateEstablished)
	w.wantState(d, StateRejected)
	w.advance(2 * milliseconds(DefaultCMTimeout))
	w.a.want(EventDisconnected)
	w.wantExit(w.a)
	w.b.wantNone()
}

// A peer that was told to wait repeats its REQ as late as that. The attempt may be over by then, and the REQ is
// not a new one: the REJ answers it.
func TestREPTimeoutBeforeREQComesAgain(t *testing.T) {
	w := newWorld(t)
	_, d := w.pending()
	w.ok(d.Delay(w.now, 24)) // 69 s
	w.lossOf("b REP", "b REJ 4", "b DREQ")
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.advance(time.Minute)
	w.b.want(EventUnreachable)
	w.forget()
	w.lose = nil
	w.advance(15 * time.Second)
	w.wantSent("a REQ", "b REJ 4")
	w.b.wantNone()
	w.a.want(EventRejected)
}

func TestCommunicationEstablished(t *testing.T) {
	w := newWorld(t)
	_, d := w.halfOpen()
	w.ok(d.Established(w.now))
	if e := w.b.want(EventEstablished); e.PrivateData != nil {
		t.Errorf("private data: got %q, want none, as no message has come", e.PrivateData)
	}
	w.wantState(d, StateEstablished)
	if err := d.Established(w.now); !errors.Is(err, ErrState) {
		t.Errorf("established twice: got error %v, want %v", err, ErrState)
	}
	w.advance(time.Minute)
	w.wantSent()
	w.b.inject(w.a.addr, 1, wire.CMRTU, &wire.RTU{LocalCommID: d.RemoteID(), RemoteCommID: d.ID()}) // it comes late
	w.b.wantNone()
}

// A DREQ shows that the peer was established, even if its RTU has never come. It does not show the
// RTU's private data.
func TestDREQForRTU(t *testing.T) {
	w := newWorld(t)
	c, d := w.halfOpen()
	w.ok(c.Disconnect(w.now, nil))
	w.wantSent("a DREQ", "b DREP")
	if e := w.b.want(EventEstablished); e.PrivateData == nil || len(e.PrivateData) != 0 {
		t.Errorf("private data: got %q, want an empty one", e.PrivateData)
	}
	w.b.want(EventDisconnected)
	w.a.want(EventDisconnected)
	w.wantState(d, StateTimeWait)
	w.wantExit(w.a, w.b)
}

// A REQ comes again in each state.
func TestRepeatedREQ(t *testing.T) {
	for _, test := range []struct {
		name string
		to   func(w *world) (c, d *Conn)
		want []string
	}{
		{"pending", (*world).pending, []string{"b MRA"}},
		{"delayed", func(w *world) (c, d *Conn) {
			c, d = w.pending()
			w.ok(d.Delay(w.now, 20))
			w.forget()
			return c, d
		}, []string{"b MRA"}},
		{"replied", (*world).replied, nil},
		{"connected", (*world).connected, nil},
		{"disconnecting", func(w *world) (c, d *Conn) {
			c, d = w.connected()
			w.lossOf("b DREQ")
			w.ok(d.Disconnect(w.now, nil))
			w.forget()
			return c, d
		}, nil},
		{"time-wait", func(w *world) (c, d *Conn) {
			c, d = w.connected()
			w.ok(d.Disconnect(w.now, nil))
			w.forget()
			return c, d
		}, []string{"b REJ 10"}},
		{"rejected", func(w *world) (c, d *Conn) {
			c, d = w.pending()
			w.ok(d.Reject(w.now, wire.RejNoQP, nil, nil))
			w.forget()
			return c, d
		}, []string{"b REJ 1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			var req []byte
			w.lose = func(what string, mad []byte) bool {
				if what == "a REQ" {
					req = slices.Clone(mad)
				}
				return false
			}
			c, d := test.to(w)
			before, mine := d.State(), c.State()
			w.b.Handle(w.now, Path{Local: w.b.addr, Remote: w.a.addr}, req)
			w.wantSent(test.want...)
			w.b.wantNone()
			if after := d.State(); after != before && after != StateMRAREQSent {
				t.Errorf("got state %v, want %v or %v", after, before, StateMRAREQSent)
			}
			if after := c.State(); after != mine && after != StateMRAREQRcvd {
				t.Errorf("the sender: got state %v, want %v or %v", after, mine, StateMRAREQRcvd)
			}
			if n := w.b.Stats().Ignored.Of(wire.CMREQ); n != 1 {
				t.Errorf("duplicates: got %d counted, want 1", n)
			}
		})
	}
}

// A host that has restarted and uses the QP of an old connection again ends that connection, and may
// try again.
func TestStaleREQ(t *testing.T) {
	w := newWorld(t)
	_, d := w.connected()
	w.a.restart(99)
	w.a.connect(w.b, 0x11)
	w.wantSent("a REQ", "b REJ 10", "b DREQ", "a DREP")
	if e := w.a.want(EventRejected); e.Reason != wire.RejStaleConn || e.Message != wire.CMMessageREQ {
		t.Fatalf("rejected: got %+v, want reason %v for the REQ", e, wire.RejStaleConn)
	}
	if e := w.b.want(EventDisconnected); e.Conn != d {
		t.Fatalf("disconnected: got %#x, want %#x", e.Conn.ID(), d.ID())
	}
	w.a.connect(w.b, 0x11) // in time-wait
	w.b.want(EventRequest)
}

// If the old connection is not established, it ends by its own messages alone.
func TestStaleREQWhilePending(t *testing.T) {
	w := newWorld(t)
	_, d := w.pending()
	w.a.restart(99)
	w.a.connect(w.b, 0x11)
	w.wantSent("a REQ", "b REJ 10")
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.wantSent("b REP", "a REJ 6")
	w.b.want(EventRejected)
}

// The same QPN at another address or GUID is another QP.
func TestNotStale(t *testing.T) {
	w := newWorld(t)
	w.connected()
	w.b.inject(w.node("c", "10.0.0.3").addr, 1, wire.CMREQ, w.req(1, 0x11))
	other := w.req(1, 0x11)
	other.LocalGUID = 5
	w.b.inject(w.a.addr, 1, wire.CMREQ, other)
	w.b.want(EventRequest)
	w.b.want(EventRequest)
}

// Each REQ that cannot be served is rejected with the reason.
func TestREQRejected(t *testing.T) {
	for _, test := range []struct {
		reason wire.RejReason
		ari    int
		spoil  func(*wire.REQ)
	}{
		{wire.RejInvalidServiceID, 0, func(r *wire.REQ) { r.ServiceID++ }},
		{wire.RejInvalidTransportType, 0, func(r *wire.REQ) { r.Transport = wire.CMTransportRD }},
		{wire.RejInvalidTransportType, 0, func(r *wire.REQ) { r.Transport, r.ExtTransport = wire.CMTransportExtended, wire.CMExtTransportXRC }},
		{wire.RejInvalidGID, 0, func(r *wire.REQ) { r.PKey = 0x8001 }},
		{wire.RejInvalidGID, 16, func(r *wire.REQ) { r.Primary.RemoteGID[15]++ }},
		{wire.RejInvalidMTU, 1, func(r *wire.REQ) { r.MTU = 0 }},
		{wire.RejInvalidMTU, 1, func(r *wire.REQ) { r.MTU = 6 }},
	} {
		w := newWorld(t)
		w.b.listen(0)
		req := w.req(7, 0x11)
		test.spoil(req)
		w.b.inject(w.a.addr, 77, wire.CMREQ, req)
		_, mad, ok := w.b.Transmit()
		if !ok {
			t.Errorf("%v: got no answer, want a REJ", test.reason)
			continue
		}
		h, _ := wire.DecodeMADHeader(mad)
		rej, _ := wire.DecodeREJ(mad[wire.MADHeaderSize:])
		if h.TID != 77 || rej.LocalCommID != 0 || rej.RemoteCommID != 7 || rej.Message != wire.CMMessageREQ || rej.Reason != test.reason || len(rej.Info()) != test.ari {
			t.Errorf("got %+v, TID %d, want a REJ of the REQ to 7 with reason %v and %d bytes of information, TID 77", rej, h.TID, test.reason, test.ari)
		}
		w.wantEmpty()
		w.b.wantNone()
	}
}

// RoCE has no LIDs. The fields of a REQ in their place, of either path, do not matter, nor those of a LAP.
func TestLIDsAreIgnored(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	for i, lid := range []uint16{0, 1, 0xbfff, 0xc000, 0xffff} {
		req := w.req(uint32(i+1), uint32(0x11+i))
		req.Primary.LocalLID, req.Primary.RemoteLID = lid, ^lid
		req.Alternate.LocalLID, req.Alternate.RemoteLID = lid, ^lid
		w.b.inject(w.a.addr, 1, wire.CMREQ, req)
		d := w.b.want(EventRequest).Conn
		w.b.inject(w.a.addr, 9, wire.CMLAP, &wire.LAP{LocalCommID: uint32(i + 1), RemoteCommID: d.ID(), RemoteQPN: req.LocalQPN,
			Alternate: req.Alternate})
		_, mad, ok := w.b.Transmit()
		if apr, err := wire.DecodeAPR(mad[wire.MADHeaderSize:]); !ok || err != nil || apr.Status != wire.APRUnsupported {
			t.Errorf("LID %#x: a LAP is answered by %+v, %v; want an APR with status %d", lid, apr, ok, wire.APRUnsupported)
		}
	}
}

// A REQ with the P_Key of a limited member is accepted, and so is one for UC.
func TestREQAccepted(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	req := w.req(1, 0x11)
	req.PKey, req.Transport, req.Primary.TrafficClass, req.Primary.ACKTimeout = 0x7fff, wire.CMTransportUC, 0x40, 0
	w.b.inject(w.a.addr, 1, wire.CMREQ, req)
	e := w.b.want(EventRequest)
	if !e.Params.UC || e.Path.TrafficClass != 0x40 || e.Conn.ACKTimeout() == 0 {
		t.Errorf("got %+v, ACK timeout %d, want UC, traffic class 0x40 and a timeout", e, e.Conn.ACKTimeout())
	}
	w.ok(e.Conn.Accept(w.now, testParams(2)))
	if p, _, _ := w.b.Transmit(); p.TrafficClass != 0x40 {
		t.Errorf("REP: got traffic class %#x, want 0x40", p.TrafficClass)
	}
}

// A communication ID may be used again after its connection was rejected.
func TestREQWithOldID(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	w.b.inject(w.a.addr, 1, wire.CMREQ, w.req(1, 0x11))
	w.ok(w.b.want(EventRequest).Conn.Reject(w.now, wire.RejNoQP, nil, nil))
	w.b.inject(w.a.addr, 2, wire.CMREQ, w.req(1, 0x11))
	w.b.want(EventRequest)
}

func TestAcceptRefusesWhatCannotBeSent(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	if err := d.Accept(w.now, Params{PrivateData: make([]byte, 197)}); !errors.Is(err, ErrPrivateData) {
		t.Errorf("too much private data: got error %v, want %v", err, ErrPrivateData)
	}
	if err := d.Accept(w.now, Params{QPN: 1 << 24}); !errors.Is(err, ErrInvalid) {
		t.Errorf("QPN of 25 bits: got error %v, want %v", err, ErrInvalid)
	}
	if err := c.Accept(w.now, Params{}); !errors.Is(err, ErrState) {
		t.Errorf("accept of the own request: got error %v, want %v", err, ErrState)
	}
	w.wantSent()
	w.ok(d.Accept(w.now, Params{QPN: 1}))
	if err := d.Accept(w.now, Params{QPN: 1}); !errors.Is(err, ErrState) {
		t.Errorf("accept twice: got error %v, want %v", err, ErrState)
	}
}

// While an end gives a connection up, whose peer answers no DREQ, a new connection of the peer's QP is
// not stale: it proves that the old one is gone.
func TestREQWhileGivingUp(t *testing.T) {
	w := newWorld(t)
	_, d := w.connected()
	w.lossOf("b DREQ")
	w.ok(d.Disconnect(w.now, nil))
	w.forget()
	w.lose = nil
	w.a.restart(99)
	w.a.connect(w.b, 0x11)
	w.wantSent("a REQ")
	if e := w.b.want(EventDisconnected); e.Conn != d || e.TimedOut {
		t.Errorf("disconnected: got %#x, timed out %v, want %#x, not timed out", e.Conn.ID(), e.TimedOut, d.ID())
	}
	w.b.want(EventRequest)
}

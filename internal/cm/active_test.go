package cm

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

func TestConnectAndDisconnect(t *testing.T) {
	w := newWorld(t)
	l := w.b.listen(0)
	c := w.a.connect(w.b, 0x11)
	w.wantSent("a REQ")
	e := w.b.want(EventRequest)
	d := e.Conn
	if e.Listener != l || e.Path.Remote != w.a.addr || e.Path.Local != w.b.addr {
		t.Fatalf("got a request for listener %v on %v, want listener %v, from %v to %v", e.Listener, e.Path, l, w.a.addr, w.b.addr)
	}
	if p := e.Params; p.QPN != 0x11 || p.PSN != 0x1011 || p.UC || p.ResponderResources != 3 || p.InitiatorDepth != 4 || p.RNRRetryCount != 6 ||
		len(p.PrivateData) != wire.REQPrivateDataSize || !bytes.HasPrefix(p.PrivateData, []byte("private\x00")) {
		t.Fatalf("request: got %+v, want the parameters of testParams(0x11), with %d bytes of private data", p, wire.REQPrivateDataSize)
	}
	if e.Request != (RequestParams{Service: testService, MTU: 3, RetryCount: 7, ACKTimeout: 17, PKey: 0xffff}) || d.Requested() != e.Request {
		t.Fatalf("request: got %+v and %+v, want the service %#x, MTU 3, 7 retries and ACK timeout 17", e.Request, d.Requested(), testService)
	}
	w.wantState(c, StateREQSent)
	w.wantState(d, StateREQRcvd)

	w.ok(d.Accept(w.now, testParams(0x22)))
	w.wantSent("b REP")
	e = w.a.want(EventReply)
	if p := e.Params; e.Conn != c || p.QPN != 0x22 || p.PSN != 0x1022 || p.ResponderResources != 3 || p.InitiatorDepth != 4 || p.RNRRetryCount != 6 ||
		len(p.PrivateData) != wire.REPPrivateDataSize || !bytes.HasPrefix(p.PrivateData, []byte("private\x00")) {
		t.Fatalf("reply: got %+v for %#x, want the parameters of testParams(0x22) for %#x, with %d bytes of private data", p, e.Conn.ID(), c.ID(), wire.REPPrivateDataSize)
	}
	if c.RemoteID() != d.ID() || d.RemoteID() != c.ID() || c.Remote().QPN != 0x22 || d.Remote().QPN != 0x11 {
		t.Fatalf("got IDs %#x, %#x and %#x, %#x, and QPNs %#x and %#x, want each end to know the other, and QPNs 0x22 and 0x11", c.ID(), c.RemoteID(), d.ID(), d.RemoteID(), c.Remote().QPN, d.Remote().QPN)
	}
	if c.ACKTimeout() != 17 || d.ACKTimeout() != 17 {
		t.Fatalf("ACK timeouts: got codes %d and %d, want 17 twice", c.ACKTimeout(), d.ACKTimeout())
	}
	w.wantState(c, StateREPRcvd)
	w.wantState(d, StateREPSent)

	w.ok(c.Ready(w.now))
	w.wantSent("a RTU")
	if e = w.b.want(EventEstablished); e.Conn != d || len(e.PrivateData) != wire.RTUPrivateDataSize {
		t.Fatalf("established: got %#x with %d bytes, want %#x with %d", e.Conn.ID(), len(e.PrivateData), d.ID(), wire.RTUPrivateDataSize)
	}
	w.wantState(c, StateEstablished)
	w.wantState(d, StateEstablished)
	w.advance(time.Hour)
	w.wantSent()

	w.ok(c.Disconnect(w.now, []byte("bye")))
	w.wantSent("a DREQ", "b DREP")
	if e = w.b.want(EventDisconnected); e.Conn != d || e.TimedOut || len(e.PrivateData) != wire.DREQPrivateDataSize || string(e.PrivateData[:4]) != "bye\x00" {
		t.Fatalf("disconnected: got %+v, want %#x, by a DREQ with %d bytes that begin with bye", e, d.ID(), wire.DREQPrivateDataSize)
	}
	if e = w.a.want(EventDisconnected); e.Conn != c || e.TimedOut {
		t.Fatalf("disconnected: got %+v, want %#x, by a DREP", e, c.ID())
	}
	w.wantState(c, StateTimeWait)
	w.wantState(d, StateTimeWait)
	w.advance(milliseconds(17) - 3*testDelay)
	w.a.wantNone()
	w.b.wantNone()
	w.wantExit(w.a, w.b)
	w.wantState(c, StateIdle)
	w.wantSent()
}

// The REQ is Linux's, except for the numbers that each side may choose.
func TestREQFields(t *testing.T) {
	w := newWorld(t)
	c, err := w.a.Connect(0, Path{Local: w.a.addr, Remote: w.b.addr, TrafficClass: 0x20}, ConnectParams{Service: testService, FlowLabel: 0xc15a1,
		Params: Params{QPN: 0x12, PSN: 0xabcdef, FlowControl: true, SRQ: true, RNRRetryCount: 9, ResponderResources: 1, InitiatorDepth: 2},
		MTU:    5, RetryCount: 9, PacketLifetime: 18, RemoteCMTimeout: 20, LocalCMTimeout: 20})
	w.ok(err)
	p, mad, ok := w.a.Transmit()
	if !ok || p != c.Path() || len(mad) != wire.MADSize {
		t.Fatalf("transmit: got %d bytes on %v, %v, want %d on %v", len(mad), p, ok, wire.MADSize, c.Path())
	}
	h, err := wire.DecodeMADHeader(mad)
	w.ok(err)
	if attr, ok := h.CM(); !ok || attr != wire.CMREQ {
		t.Fatalf("header: got %+v, want that of a REQ", h)
	}
	got, err := wire.DecodeREQ(mad[wire.MADHeaderSize:])
	w.ok(err)
	want := wire.REQ{LocalCommID: c.ID(), ServiceID: testService, LocalGUID: 'a' << 24, LocalQPN: 0x12, ResponderResources: 1, InitiatorDepth: 2,
		RemoteCMTimeout: 20, FlowControl: true, StartingPSN: 0xabcdef, LocalCMTimeout: 20, RetryCount: 7, PKey: 0xffff, MTU: 5, RNRRetryCount: 7,
		MaxCMRetries: 15, SRQ: true, Primary: wire.CMPath{LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: w.a.addr.As16(), RemoteGID: w.b.addr.As16(),
			FlowLabel: 0xc15a1, TrafficClass: 0x20, HopLimit: 64, ACKTimeout: 19}}
	if got != want {
		t.Fatalf("REQ\n%+v, want\n%+v", got, want)
	}
}

// On InfiniBand a REQ has the LIDs of a path within the subnet. Of one by routers it has none, as with Linux.
func TestREQLIDs(t *testing.T) {
	for _, c := range []struct {
		way  Way
		want wire.CMPath
	}{
		{Way{LocalLID: 4, RemoteLID: 7, SL: 3}, wire.CMPath{LocalLID: 4, RemoteLID: 7, SL: 3, SubnetLocal: true}},
		{Way{LocalLID: 4, RemoteLID: 7, SL: 3, Routed: true}, wire.CMPath{LocalLID: 0xffff, RemoteLID: 0xffff, SL: 3}},
	} {
		w := newWorld(t)
		_, err := w.a.Connect(0, w.a.path(w.b), ConnectParams{Service: testService, MTU: 5, Way: c.way})
		w.ok(err)
		_, mad, _ := w.a.Transmit()
		got, err := wire.DecodeREQ(mad[wire.MADHeaderSize:])
		w.ok(err)
		if p := &got.Primary; p.LocalLID != c.want.LocalLID || p.RemoteLID != c.want.RemoteLID || p.SL != c.want.SL || p.SubnetLocal != c.want.SubnetLocal {
			t.Errorf("%+v: the REQ's path is %+v, want %+v", c.way, *p, c.want)
		}
	}
}

// The connecting end waits for acknowledgements as long as the channel adapter at the other end may take. The REP
// says how long that is.
func TestACKDelayOfPeer(t *testing.T) {
	w := newWorld(t)
	w.b.cfg.ACKDelay = 21
	c, d := w.replied()
	if c.ACKTimeout() != 21 || d.ACKTimeout() != 17 {
		t.Errorf("ACK timeouts: got codes %d and %d, want 21, the delay at the other end, and 17", c.ACKTimeout(), d.ACKTimeout())
	}
}

// A REQ for UC differs in one field. If the caller gives an ACK timeout, the packet lifetime
// follows from it.
func TestConnectUC(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	c, err := w.a.Connect(0, w.a.path(w.b), ConnectParams{Service: testService, Params: Params{UC: true}, MTU: 1, ACKTimeout: 12})
	w.ok(err)
	if e := w.b.want(EventRequest); !e.Params.UC || e.Conn.ACKTimeout() != 12 {
		t.Errorf("request: got %+v, ACK timeout %d, want UC, ACK timeout 12", e.Params, e.Conn.ACKTimeout())
	}
	if want := 2*milliseconds(11) + milliseconds(DefaultCMTimeout); w.a.NextTimeout() != want {
		t.Errorf("repeated after %v, want %v", w.a.NextTimeout(), want)
	}
	c.Close(w.now)
}

func TestConnectRefusesWhatCannotBeSent(t *testing.T) {
	w := newWorld(t)
	for name, spoil := range map[string]func(*ConnectParams, *Path){
		"MTU":          func(p *ConnectParams, _ *Path) { p.MTU = 6 },
		"QPN":          func(p *ConnectParams, _ *Path) { p.QPN = 1 << 24 },
		"PSN":          func(p *ConnectParams, _ *Path) { p.PSN = 1 << 24 },
		"timeout":      func(p *ConnectParams, _ *Path) { p.LocalCMTimeout = 32 },
		"retries":      func(p *ConnectParams, _ *Path) { p.MaxCMRetries = 16 },
		"private data": func(p *ConnectParams, _ *Path) { p.PrivateData = make([]byte, 93) },
		"address":      func(_ *ConnectParams, p *Path) { *p = Path{Local: p.Local} },
	} {
		path, params := w.a.path(w.b), ConnectParams{MTU: 1}
		spoil(&params, &path)
		if _, err := w.a.Connect(0, path, params); !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrPrivateData) {
			t.Errorf("%s: got error %v, want %v or %v", name, err, ErrInvalid, ErrPrivateData)
		}
	}
	w.wantSent()
	w.wantEmpty()
}

// A REQ that nobody answers is repeated 15 times, after twice the packet lifetime and the
// response timeout.
func TestREQTimeout(t *testing.T) {
	for _, test := range []struct {
		name   string
		params ConnectParams
		every  time.Duration
		sends  int
	}{
		{"defaults", ConnectParams{}, 1536 * time.Millisecond, 16},
		{"Linux", ConnectParams{PacketLifetime: 18, RemoteCMTimeout: 20}, 6144 * time.Millisecond, 16},
		{"a long path", ConnectParams{ACKTimeout: 31}, 17408 * time.Millisecond, 16}, // twice 8.2 s and 1 s, not 2.3 hours
		{"few", ConnectParams{RemoteCMTimeout: 8, PacketLifetime: 8, MaxCMRetries: 2}, 3 * time.Millisecond, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.lossOf("a REQ", "a REJ 4")
			test.params.MTU = 1
			_, err := w.a.Connect(w.now, w.a.path(w.b), test.params)
			w.ok(err)
			w.advance(time.Duration(test.sends)*test.every - 1)
			w.a.wantNone()
			if len(w.sent) != test.sends {
				t.Fatalf("sent %v, want %d REQs", w.sent, test.sends)
			}
			w.advance(1)
			w.a.want(EventUnreachable)
			w.wantSent(append(slices.Repeat([]string{"a REQ"}, test.sends), "a REJ 4")...)
			w.wantEmpty()
		})
	}
}

// A repeated message is the same bytes.
func TestREQRepeatsItself(t *testing.T) {
	w := newWorld(t)
	var seen [][]byte
	w.lose = func(_ string, mad []byte) bool { seen = append(seen, slices.Clone(mad)); return true }
	w.a.connect(w.b, 0x11)
	w.advance(2 * time.Second)
	if len(seen) != 2 || !bytes.Equal(seen[0], seen[1]) {
		t.Fatalf("got %d REQs %x, want two that are the same", len(seen), seen)
	}
}

// If the RTU is lost, the REP comes again and the RTU is repeated, with its private data.
func TestLostRTU(t *testing.T) {
	w := newWorld(t)
	c, d := w.replied()
	w.lossOf("a RTU")
	w.ok(c.ReadyWith(w.now, []byte("ready")))
	w.forget()
	w.lose = nil
	w.wantState(d, StateREPSent)
	w.advance(milliseconds(DefaultCMTimeout) + testDelay)
	w.wantSent("b REP", "a RTU")
	if e := w.b.want(EventEstablished); !bytes.HasPrefix(e.PrivateData, []byte("ready\x00")) {
		t.Errorf("established: got private data %q, want ready", bytes.TrimRight(e.PrivateData, "\x00"))
	}
	w.a.wantNone()
	if n := w.a.Stats().Ignored.Of(wire.CMREP); n != 1 {
		t.Errorf("duplicates: got %d counted, want 1", n)
	}
}

// While the user has not answered the reply, a REP that comes again is answered by an MRA.
func TestRepeatedREPGetsMRA(t *testing.T) {
	w := newWorld(t)
	c, d := w.replied()
	w.advance(1100 * time.Millisecond)
	w.wantSent("b REP", "a MRA")
	w.wantState(c, StateMRAREPSent)
	w.wantState(d, StateMRAREPRcvd)
	w.advance(milliseconds(24) + milliseconds(17) - 100*time.Millisecond)
	w.wantSent()
	w.advance(100 * time.Millisecond)
	w.wantSent("b REP", "a MRA") // again, and it extends nothing
	w.ok(c.Ready(w.now))
	w.wantSent("a RTU")
	w.b.want(EventEstablished)
}

// A REP that belongs to no connection is answered by a REJ, so that its sender does not wait.
func TestREPForNobody(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	w.lossOf("a REJ 4")
	c.Close(w.now) // and b does not hear of it
	w.wantSent("a REJ 4")
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.wantSent("b REP", "a REJ 6")
	if e := w.b.want(EventRejected); e.Reason != wire.RejInvalidCommID || e.Message != wire.CMMessageREP {
		t.Fatalf("rejected: got %+v, want reason %v for the REP", e, wire.RejInvalidCommID)
	}
	w.advance(time.Minute)
	w.b.wantNone()
	w.wantEmpty()
}

// A REP with another ID than the connection's comes from a peer that has taken a repeated REQ for a
// new one.
func TestSecondREP(t *testing.T) {
	w := newWorld(t)
	c, _ := w.connected()
	w.a.inject(w.b.addr, 1, wire.CMREP, &wire.REP{LocalCommID: testDEAD, RemoteCommID: c.ID(), LocalQPN: 0x33, LocalGUID: 'b' << 24})
	w.wantSent("a REJ 6")
	w.wantState(c, StateEstablished)
}

// If the peer makes a new connection with the QP of an old one, the old one ends.
func TestStaleREP(t *testing.T) {
	w := newWorld(t)
	old, _ := w.connected()
	w.b.restart(99)
	w.b.listen(0)
	c := w.a.connect(w.b, 0x12)
	d := w.b.want(EventRequest).Conn
	w.ok(d.Accept(w.now, testParams(0x22))) // the QPN that the old one had
	w.wantSent("a REQ", "b REP", "a REJ 10", "a DREQ", "b DREP")
	if e := w.b.want(EventRejected); e.Conn != d || e.Reason != wire.RejStaleConn || e.Message != wire.CMMessageREP {
		t.Fatalf("rejected: got %+v, want %#x, reason %v for the REP", e, d.ID(), wire.RejStaleConn)
	}
	if e := w.a.want(EventDisconnected); e.Conn != old {
		t.Fatalf("disconnected: got %#x, want the old connection %#x", e.Conn.ID(), old.ID())
	}
	w.wantState(c, StateREQSent)
	w.advance(time.Second) // the old one is forgotten
	w.a.want(EventTimeWaitExit)
	w.a.inject(w.b.addr, 1, wire.CMREP, &wire.REP{LocalCommID: d.ID(), RemoteCommID: c.ID(), LocalQPN: 0x22, LocalGUID: 'b' << 24})
	w.wantSent("a REJ 10")      // a copy of the REP must not revive it
	w.advance(10 * time.Second) // the REQ is repeated, and may be taken again
	w.b.want(EventRequest)
}

func TestReadyOnlyAfterREP(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	for _, x := range []*Conn{c, d} {
		if err := x.Ready(w.now); !errors.Is(err, ErrState) {
			t.Errorf("ready in %v: got error %v, want %v", x.State(), err, ErrState)
		}
	}
}

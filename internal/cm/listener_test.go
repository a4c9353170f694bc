package cm

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

func TestListenConflicts(t *testing.T) {
	one, two := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	for _, test := range []struct {
		first, second netip.Addr
		ok            bool
	}{
		{one, two, true}, {one, one, false}, {one, netip.Addr{}, false}, {netip.Addr{}, one, false}, {netip.Addr{}, netip.Addr{}, false},
		{one, netip.MustParseAddr("::ffff:10.0.0.2"), false},
	} {
		m := New(Config{})
		l, err := m.Listen(1, test.first, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = m.Listen(2, test.second, 0); err != nil {
			t.Errorf("listen on another service: got error %v, want none", err)
		}
		_, err = m.Listen(1, test.second, 0)
		if test.ok != (err == nil) || err != nil && !errors.Is(err, ErrServiceInUse) {
			t.Errorf("%v beside %v: got error %v, want success %v, or else %v", test.second, test.first, err, test.ok, ErrServiceInUse)
		}
		if test.ok {
			continue
		}
		l.Close(0)
		l.Close(0)
		if l, err = m.Listen(1, test.second, 0); err != nil || l.Service() != 1 || l.Local() != bare(test.second) {
			t.Errorf("listen at %v after %v: got %+v, %v, want a listener there", test.second, test.first, l, err)
		}
	}
}

// A listener at one address takes nothing that is sent to another.
func TestListenAtAddress(t *testing.T) {
	w := newWorld(t)
	_, err := w.b.Listen(testService, netip.MustParseAddr("10.0.0.9"), 0)
	w.ok(err)
	w.a.connect(w.b, 0x11)
	w.wantSent("a REQ", "b REJ 8")
	l, err := w.b.Listen(testService, w.b.addr, 0)
	w.ok(err)
	w.a.connect(w.b, 0x11)
	if e := w.b.want(EventRequest); e.Listener != l {
		t.Errorf("request: got listener at %v, want the one at %v", e.Listener.Local(), l.Local())
	}
}

// A listener that closes rejects the requests that its user has not seen. The others remain the
// user's.
func TestListenerClose(t *testing.T) {
	w := newWorld(t)
	l := w.b.listen(0)
	w.a.connect(w.b, 0x11)
	d := w.b.want(EventRequest).Conn
	w.a.resolve(w.b)
	s := w.b.want(EventSIDRRequest).SIDR
	w.a.connect(w.b, 0x12)
	w.a.resolve(w.b)
	for range 2 { // before b's events are taken
		_, mad, _ := w.a.Transmit()
		w.b.Handle(w.now, Path{Local: w.b.addr, Remote: w.a.addr}, mad)
	}
	w.sent = nil
	l.Close(w.now)
	w.wantSent("b REJ 28", "b SIDR_REP")
	w.b.wantNone()
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.ok(s.Reply(w.now, SIDRReply{}))
	w.wantSent("b REP", "b SIDR_REP")
	w.a.connect(w.b, 0x13)
	w.wantSent("a REQ", "b REJ 8")
}

// A REQ that finds no room may find room when it comes again.
func TestBacklog(t *testing.T) {
	w := newWorld(t)
	w.b.listen(2)
	w.a.connect(w.b, 0x11)
	w.a.resolve(w.b)
	d, s := w.b.want(EventRequest).Conn, w.b.want(EventSIDRRequest).SIDR
	w.forget()
	w.a.connect(w.b, 0x12)
	w.wantSent("a REQ")
	w.a.resolve(w.b)
	w.wantSent("a SIDR_REQ", "b SIDR_REP")
	if n := w.b.Stats().Refused; n != 2 {
		t.Errorf("refused: got %d counted, want 2", n)
	}
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.ok(s.Reply(w.now, SIDRReply{}))
	w.b.wantNone()
	w.advance(2 * time.Second)
	w.b.want(EventRequest)
}

// A request makes room for another one in each way in which it stops waiting.
func TestBacklogFreed(t *testing.T) {
	for name, free := range map[string]func(w *world, c, d *Conn){
		"accept": func(w *world, _, d *Conn) { w.ok(d.Accept(w.now, testParams(0x22))) },
		"reject": func(w *world, _, d *Conn) { w.ok(d.Reject(w.now, wire.RejNoQP, nil, nil)) },
		"close":  func(w *world, _, d *Conn) { d.Close(w.now) },
		"cancel": func(w *world, c, _ *Conn) { c.Close(w.now) },
	} {
		w := newWorld(t)
		w.b.listen(1)
		c, d := w.pending()
		free(w, c, d)
		w.forget()
		w.a.connect(w.b, 0x12)
		w.b.want(EventRequest)
		if t.Failed() {
			t.Fatalf("it fails after %s", name)
		}
	}
}

// However many hosts ask, the records of their requests are bounded.
func TestFloodOfREQs(t *testing.T) {
	w := newWorld(t)
	for i := range uint64(10) {
		_, err := w.b.Listen(testService+i, netip.Addr{}, 0)
		w.ok(err)
	}
	before := liveHeap()
	for i := range uint32(20000) {
		req := w.req(1+i, i)
		req.ServiceID += uint64(i % 10)
		w.b.inject(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), 1, wire.CMREQ, req)
		w.drain(nil)
	}
	if s := w.b.Stats(); s.Conns != maxAttempts || s.Requests != maxAttempts || s.Displaced != 20000-maxAttempts || s.Refused != 0 || w.b.queued() > maxQueue {
		t.Errorf("got %+v and %d queued, want %d connections, all of them requests, %d displaced, and at most %d queued", s, w.b.queued(), maxAttempts, 20000-maxAttempts, maxQueue)
	}
	w.wantBurden(before, maxAttempts, 0)
}

// The records of connections that are over are bounded too.
func TestFloodOfRejected(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	before, answers := liveHeap(), 0
	for i := range uint32(maxRetired + 100) {
		w.b.inject(w.a.addr, 1, wire.CMREQ, w.req(1+i, i))
		e, ok := w.b.Event()
		if !ok {
			t.Fatal("got no event, want a request")
		}
		e.Conn.Close(w.now)
		for ; ok; answers++ {
			_, _, ok = w.b.Transmit()
		}
		answers-- // the last is none
	}
	w.drained = answers
	w.wantBurden(before, maxRetired, maxRetired+100)
	if s := w.b.Stats(); s.Conns != maxRetired || s.Retired != maxRetired || s.Evicted != 100 || s.Timers != maxRetired {
		t.Errorf("got %+v, want %d connections, all of them retired and with a timer, and 100 evicted", s, maxRetired)
	}
	w.advance(time.Hour)
	w.wantEmpty()
}

// Records that are forgotten early go in their order, and a connection in time-wait reports its exit.
func TestEviction(t *testing.T) {
	w := newWorld(t)
	l := w.b.listen(0)
	_, d := w.connected()
	w.ok(d.Disconnect(w.now, nil))
	w.b.want(EventDisconnected)
	w.a.resolve(w.b)
	w.ok(w.b.want(EventSIDRRequest).SIDR.Reply(w.now, SIDRReply{}))
	w.forget()
	for i := range uint32(maxRetired) {
		w.b.inject(w.a.addr, 1, wire.CMREQ, w.req(1+i, 0x100+i))
		w.b.want(EventRequest).Conn.Close(w.now)
		w.flying = nil
		if i == maxRetired-3 {
			w.b.wantNone()
			w.wantState(d, StateTimeWait)
		} else if i == maxRetired-2 {
			w.b.want(EventTimeWaitExit)
			w.wantState(d, StateIdle)
		}
	}
	if s := w.b.Stats(); s.Evicted != 2 || s.SIDRs != 0 || s.Retired != maxRetired || l.unanswered.Len() != 0 {
		t.Errorf("got %+v and %d unanswered, want 2 evicted, %d retired, and nothing else", s, l.unanswered.Len(), maxRetired)
	}
}

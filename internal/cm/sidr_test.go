package cm

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

func (n *node) resolve(to *node) *SIDR {
	n.w.t.Helper()
	s, err := n.Resolve(n.w.now, n.path(to), SIDRParams{Service: testService, PrivateData: []byte("question")})
	n.w.ok(err)
	return s
}

func TestResolve(t *testing.T) {
	w := newWorld(t)
	l := w.b.listen(0)
	s := w.a.resolve(w.b)
	e := w.b.want(EventSIDRRequest)
	if e.Listener != l || e.SIDR.ID() != s.ID() || e.SIDR.Service() != testService || e.Path.Remote != w.a.addr || e.Request.Service != testService ||
		len(e.PrivateData) != wire.SIDRREQPrivateDataSize || !bytes.HasPrefix(e.PrivateData, []byte("question\x00")) {
		t.Fatalf("got %+v, want a request for service %#x with ID %#x, from %v, with %d bytes of private data", e, testService, s.ID(), w.a.addr, wire.SIDRREQPrivateDataSize)
	}
	w.ok(e.SIDR.Reply(w.now, SIDRReply{QPN: 0x33, QKey: 0x01234567, PrivateData: []byte("answer")}))
	w.wantSent("a SIDR_REQ", "b SIDR_REP")
	e = w.a.want(EventSIDRReply)
	if e.SIDR != s || e.Status != wire.SIDRSuccess || e.QPN != 0x33 || e.QKey != 0x01234567 ||
		len(e.PrivateData) != wire.SIDRREPPrivateDataSize || !bytes.HasPrefix(e.PrivateData, []byte("answer\x00")) {
		t.Fatalf("got %+v, want success with QPN 0x33 and Q_Key 0x01234567, and %d bytes of private data", e, wire.SIDRREPPrivateDataSize)
	}
	w.a.wantEmpty(t)
	w.advance(sidrLinger)
	w.wantEmpty()
	w.wantSent()
	w.a.wantNone()
	w.b.wantNone()
}

func TestSIDRRejected(t *testing.T) {
	for _, status := range []wire.SIDRStatus{wire.SIDRUnsupported, wire.SIDRRejected, wire.SIDRNoQP, wire.SIDRRedirect, wire.SIDRUnsupportedVersion, 200} {
		w := newWorld(t)
		if status != wire.SIDRUnsupported {
			w.b.listen(0)
		}
		w.a.resolve(w.b)
		w.settle()
		switch status {
		case wire.SIDRUnsupported: // nobody listens
		case wire.SIDRRejected:
			w.b.want(EventSIDRRequest).SIDR.Close(w.now)
		default:
			w.ok(w.b.want(EventSIDRRequest).SIDR.Reply(w.now, SIDRReply{Status: status, QPN: 0x33, QKey: 1}))
		}
		if e := w.a.want(EventSIDRReply); e.Status != status || e.QPN != 0 || e.QKey != 0 {
			t.Errorf("got %+v, want status %v and neither QPN nor Q_Key", e, status)
		}
		w.advance(time.Minute)
		w.wantEmpty()
	}
}

func TestSIDRTimeout(t *testing.T) {
	w := newWorld(t)
	w.lossOf("a SIDR_REQ")
	s := w.a.resolve(w.b)
	w.advance(16*1024*time.Millisecond - 1)
	w.a.wantNone()
	w.advance(1)
	if e := w.a.want(EventUnreachable); e.SIDR != s || e.Conn != nil {
		t.Errorf("unreachable: got %+v, want the SIDR exchange alone", e)
	}
	w.wantSent(slices.Repeat([]string{"a SIDR_REQ"}, 16)...)
	w.wantEmpty()
}

// A request that comes again is not a new one. Until it is answered it is dropped, and later the
// answer is repeated.
func TestRepeatedSIDRREQ(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	w.a.resolve(w.b)
	s := w.b.want(EventSIDRRequest).SIDR
	w.advance(2 * time.Second)
	w.wantSent("a SIDR_REQ", "a SIDR_REQ")
	w.b.wantNone()
	w.lossOf("b SIDR_REP")
	w.ok(s.Reply(w.now, SIDRReply{QPN: 0x33}))
	w.wantSent("b SIDR_REP")
	w.lose = nil
	w.advance(2 * time.Second)
	w.wantSent("a SIDR_REQ", "b SIDR_REP")
	w.b.wantNone()
	w.a.want(EventSIDRReply)
}

// The same ID with another transaction ID is another request.
func TestSIDRREQWithOldID(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	for tid := range uint64(2) {
		w.b.inject(w.a.addr, tid, wire.CMSIDRREQ, &wire.SIDRREQ{RequestID: 9, PKey: wire.DefaultPKey, ServiceID: testService})
		w.ok(w.b.want(EventSIDRRequest).SIDR.Reply(w.now, SIDRReply{}))
	}
	w.b.inject(w.node("c", "10.0.0.3").addr, 1, wire.CMSIDRREQ, &wire.SIDRREQ{RequestID: 9, PKey: wire.DefaultPKey, ServiceID: testService})
	w.b.want(EventSIDRRequest)
}

func TestSIDRCloseOfSender(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	s := w.a.resolve(w.b)
	w.settle()
	s.Close(w.now)
	s.Close(w.now)
	w.ok(w.b.want(EventSIDRRequest).SIDR.Reply(w.now, SIDRReply{}))
	w.a.wantNone()
	if n := w.a.Stats().Unknown.Of(wire.CMSIDRREP); n != 1 {
		t.Errorf("unknown: got %d SIDR_REPs counted, want 1", n)
	}
	w.a.wantEmpty(t)
}

func TestSIDRRefuses(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	if _, err := w.a.Resolve(0, w.a.path(w.b), SIDRParams{PrivateData: make([]byte, 217)}); !errors.Is(err, ErrPrivateData) {
		t.Errorf("too much private data: got error %v, want %v", err, ErrPrivateData)
	}
	if _, err := w.a.Resolve(0, Path{}, SIDRParams{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no address: got error %v, want %v", err, ErrInvalid)
	}
	if _, err := w.a.Resolve(0, w.a.path(w.b), SIDRParams{Timeout: 32}); !errors.Is(err, ErrInvalid) {
		t.Errorf("timeout: got error %v, want %v", err, ErrInvalid)
	}
	s := w.a.resolve(w.b)
	if err := s.Reply(0, SIDRReply{}); !errors.Is(err, ErrState) {
		t.Errorf("reply to the own request: got error %v, want %v", err, ErrState)
	}
	d := w.b.want(EventSIDRRequest).SIDR
	if err := d.Reply(0, SIDRReply{QPN: 1 << 24}); !errors.Is(err, ErrInvalid) {
		t.Errorf("QPN of 25 bits: got error %v, want %v", err, ErrInvalid)
	}
	if err := d.Reply(0, SIDRReply{PrivateData: make([]byte, 137)}); !errors.Is(err, ErrPrivateData) {
		t.Errorf("too much private data: got error %v, want %v", err, ErrPrivateData)
	}
	w.ok(d.Reply(w.now, SIDRReply{}))
	if err := d.Reply(0, SIDRReply{}); !errors.Is(err, ErrState) {
		t.Errorf("reply twice: got error %v, want %v", err, ErrState)
	}
}

package cm

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// A peer that is told to wait repeats its REQ after that time, and no more often in total.
func TestMRAForREQ(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	w.ok(d.Delay(w.now, 20))
	w.wantSent("b MRA")
	w.wantState(c, StateMRAREQRcvd)
	w.wantState(d, StateMRAREQSent)
	every := milliseconds(20) + milliseconds(17) // the service time and the ACK timeout
	w.advance(every - 1)
	w.wantSent()
	w.advance(1)
	w.wantSent("a REQ", "b MRA") // a second one extends nothing
	w.advance(14 * every)
	w.wantSent(slices.Repeat([]string{"a REQ", "b MRA"}, 14)...)
	w.advance(every)
	w.wantSent("a REJ 4")
	w.a.want(EventUnreachable)
	w.b.want(EventRejected)
	if err := d.Accept(w.now, testParams(0x22)); !errors.Is(err, ErrState) {
		t.Errorf("accept after the peer gave up: got error %v, want %v", err, ErrState)
	}
}

// An end whose user waits long for acknowledgements repeats its REQ in time all the same. Otherwise the peer,
// which expects to hear of it, would forget the request while its own user is about to answer.
func TestMRAForREQOnLongPath(t *testing.T) {
	w := newWorld(t)
	w.b.listen(0)
	_, err := w.a.Connect(w.now, w.a.path(w.b), ConnectParams{Service: testService, MTU: 1, ACKTimeout: 31})
	w.ok(err)
	w.wantSent("a REQ")
	d := w.b.want(EventRequest).Conn
	w.ok(d.Delay(w.now, 20))
	w.wantSent("b MRA")
	every := milliseconds(20) + milliseconds(maxTimeWaitCode)
	w.advance(every - 1)
	w.wantSent()
	w.advance(10*every + 1)
	w.wantSent(slices.Repeat([]string{"a REQ", "b MRA"}, 11)...)
	w.wantState(d, StateMRAREQSent)
}

// If the user answers late, the machine itself tells the peer to wait.
func TestLateAccept(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	w.advance(time.Minute)
	w.wantSent("a REQ", "b MRA")
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.a.want(EventReply)
	w.ok(c.Ready(w.now))
	w.b.want(EventEstablished)
}

func TestMRAForREP(t *testing.T) {
	w := newWorld(t)
	c, d := w.replied()
	w.ok(c.Delay(w.now, 21))
	w.wantSent("a MRA")
	w.wantState(c, StateMRAREPSent)
	w.wantState(d, StateMRAREPRcvd)
	w.advance(milliseconds(21) + milliseconds(17) - 1)
	w.wantSent()
	w.ok(c.Ready(w.now))
	w.b.want(EventEstablished)
}

// After an MRA the active side knows the peer's communication ID, and its REJ names it.
func TestREJAfterMRA(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	w.ok(d.Delay(w.now, 20))
	w.settle()
	w.ok(c.Reject(w.now, wire.RejConsumerDefined, nil, nil))
	w.wantSent("b MRA", "a REJ 28")
	w.b.want(EventRejected) // by the communication ID that the MRA told
}

// MRAs that make no sense change nothing.
func TestMRAOutOfPlace(t *testing.T) {
	w := newWorld(t)
	c, d := w.connected()
	for message := range uint8(4) {
		w.a.inject(w.b.addr, 1, wire.CMMRA, &wire.MRA{LocalCommID: d.ID(), RemoteCommID: c.ID(), Message: message, ServiceTimeout: 31})
	}
	w.wantState(c, StateEstablished)
	if s := w.a.Stats(); s.Timers != 0 || s.Ignored.Of(wire.CMMRA)+s.Unknown.Of(wire.CMMRA) != 4 {
		t.Errorf("got %+v, want no timer, and 4 MRAs that are ignored or unknown", s)
	}
	w = newWorld(t)
	c, d = w.pending()
	next := w.a.NextTimeout()
	w.a.inject(w.b.addr, 1, wire.CMMRA, &wire.MRA{LocalCommID: d.ID(), RemoteCommID: c.ID(), Message: wire.CMMessageREP, ServiceTimeout: 31})
	w.a.inject(w.b.addr, 1, wire.CMMRA, &wire.MRA{LocalCommID: d.ID(), RemoteCommID: testDEAD, Message: wire.CMMessageREQ, ServiceTimeout: 31})
	w.wantState(c, StateREQSent)
	if w.a.NextTimeout() != next {
		t.Errorf("next timeout: got %v, want %v as before", w.a.NextTimeout(), next)
	}
}

func TestDelayRefuses(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	if err := c.Delay(w.now, 1); !errors.Is(err, ErrState) {
		t.Errorf("delay of what the peer is to answer: got error %v, want %v", err, ErrState)
	}
	if err := d.Delay(w.now, 32); !errors.Is(err, ErrInvalid) {
		t.Errorf("code of 6 bits: got error %v, want %v", err, ErrInvalid)
	}
}

package cm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Every reason arrives as it was sent, from either side.
func TestEveryReason(t *testing.T) {
	ari, private := []byte{1, 2, 3}, []byte("no")
	check := func(t *testing.T, e Event, reason wire.RejReason, message uint8) {
		t.Helper()
		if e.Reason != reason || e.Message != message || !bytes.Equal(e.ARI, ari) || len(e.PrivateData) != wire.REJPrivateDataSize || !bytes.HasPrefix(e.PrivateData, private) {
			t.Fatalf("got %+v, want reason %v for message %d, with information %x and private data %q", e, reason, message, ari, private)
		}
	}
	for reason := wire.RejReason(1); reason <= 36; reason++ {
		t.Run(fmt.Sprint(uint16(reason)), func(t *testing.T) {
			w := newWorld(t)
			_, d := w.pending()
			w.ok(d.Reject(w.now, reason, ari, private))
			check(t, w.a.want(EventRejected), reason, wire.CMMessageREQ)
			w.b.wantNone()

			w = newWorld(t)
			c, _ := w.replied()
			w.ok(c.Reject(w.now, reason, ari, private))
			check(t, w.b.want(EventRejected), reason, wire.CMMessageREP)
			w.a.wantNone()
			w.advance(time.Hour)
			w.a.wantNone()
			w.b.wantNone()
			w.wantEmpty()
		})
	}
}

// A REJ comes in each state. "b" sends it unless the test says otherwise.
func TestREJInEachState(t *testing.T) {
	for _, test := range []struct {
		name    string
		to      func(w *world) (c, d *Conn)
		fromA   bool
		message uint8
		want    State // StateIdle if it is forgotten
		event   bool
	}{
		{"REQ_SENT", (*world).pending, false, wire.CMMessageREQ, StateIdle, true},
		{"MRA_REQ_RCVD", func(w *world) (c, d *Conn) {
			c, d = w.pending()
			w.ok(d.Delay(w.now, 20))
			w.forget()
			return c, d
		}, false, wire.CMMessageREQ, StateIdle, true},
		{"REP_RCVD", (*world).replied, false, wire.CMMessageOther, StateTimeWait, true},
		{"ESTABLISHED", (*world).connected, false, wire.CMMessageOther, StateTimeWait, true},
		{"DREQ_SENT", func(w *world) (c, d *Conn) {
			c, d = w.connected()
			w.lossOf("a DREQ")
			w.ok(c.Disconnect(w.now, nil))
			w.forget()
			return c, d
		}, false, wire.CMMessageOther, StateTimeWait, true},
		{"TIMEWAIT", func(w *world) (c, d *Conn) {
			c, d = w.connected()
			w.ok(c.Disconnect(w.now, nil))
			w.forget()
			return c, d
		}, false, wire.CMMessageOther, StateTimeWait, false},
		{"REQ_RCVD", (*world).pending, true, wire.CMMessageOther, StateTimeWait, true},
		{"REP_SENT", (*world).halfOpen, true, wire.CMMessageREP, StateTimeWait, true},
		{"REJECTED", func(w *world) (c, d *Conn) {
			c, d = w.pending()
			w.ok(d.Reject(w.now, 1, nil, nil))
			w.forget()
			return c, d
		}, true, wire.CMMessageOther, StateRejected, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			from, to := w.b, w.a
			c, d := test.to(w)
			if test.fromA {
				from, to, c, d = w.a, w.b, d, c
			}
			to.inject(from.addr, 1, wire.CMREJ, &wire.REJ{LocalCommID: d.ID(), RemoteCommID: c.ID(), Message: test.message, Reason: wire.RejConsumerDefined})
			w.wantState(c, test.want)
			if test.event {
				if e := to.want(EventRejected); e.Conn != c || e.Reason != wire.RejConsumerDefined {
					t.Fatalf("rejected: got %+v, want %#x, reason %v", e, c.ID(), wire.RejConsumerDefined)
				}
			}
			to.wantNone()
			w.wantSent()
		})
	}
}

// A peer that believes in an older connection rejects the REQ. Packets of that connection may be under way, so the
// attempt ends in time-wait.
func TestStaleREJ(t *testing.T) {
	w := newWorld(t)
	c, _ := w.pending()
	w.a.inject(w.b.addr, 1, wire.CMREJ, &wire.REJ{RemoteCommID: c.ID(), Message: wire.CMMessageREQ, Reason: wire.RejStaleConn})
	w.wantState(c, StateTimeWait)
	w.a.want(EventRejected)
	w.advance(time.Minute)
	w.wantState(c, StateIdle)
}

// An active side that gives up names its GUID, since it may not know the peer's communication ID.
func TestREJTimeout(t *testing.T) {
	w := newWorld(t)
	c, _ := w.pending()
	var rej wire.REJ
	w.lose = func(_ string, mad []byte) bool { rej, _ = wire.DecodeREJ(mad[wire.MADHeaderSize:]); return false }
	c.Close(w.now)
	w.wantSent("a REJ 4")
	if rej.LocalCommID != c.ID() || rej.RemoteCommID != 0 || rej.Message != wire.CMMessageOther || binary.BigEndian.Uint64(rej.Info()) != 'a'<<24 {
		t.Errorf("got %+v, want a REJ from %#x to 0, of no message in particular, with a's GUID", rej, c.ID())
	}
	if e := w.b.want(EventRejected); e.Reason != wire.RejTimeout || len(e.ARI) != 8 {
		t.Errorf("rejected: got %+v, want reason %v with 8 bytes of information", e, wire.RejTimeout)
	}
	w.advance(time.Minute)
	w.wantEmpty()
}

// The user does not hear of a request that was taken back before it has seen it.
func TestREJBeforeRequestIsTaken(t *testing.T) {
	w := newWorld(t)
	l := w.b.listen(0)
	c := w.a.connect(w.b, 0x11)
	_, mad, _ := w.a.Transmit()
	w.b.Handle(w.now, Path{Local: w.b.addr, Remote: w.a.addr}, mad)
	c.Close(w.now)
	_, mad, _ = w.a.Transmit()
	w.b.Handle(w.now, Path{Local: w.b.addr, Remote: w.a.addr}, mad)
	if e, ok := w.b.Event(); ok {
		t.Errorf("got event %v, want none", e.Type)
	}
	if l.unanswered.Len() != 0 || w.b.Stats().Requests != 0 {
		t.Errorf("got %d and %d unanswered requests, want none", l.unanswered.Len(), w.b.Stats().Requests)
	}
}

// A lost REJ is repeated when the REQ comes again, whatever state it was sent from.
func TestLostREJ(t *testing.T) {
	w := newWorld(t)
	_, d := w.pending()
	w.lossOf("b REJ 27")
	w.ok(d.Reject(w.now, wire.RejInsufficientRespResources, nil, []byte("why")))
	w.wantSent("b REJ 27")
	w.lose = nil
	w.advance(2 * time.Second)
	w.wantSent("a REQ", "b REJ 27")
	if e := w.a.want(EventRejected); !bytes.HasPrefix(e.PrivateData, []byte("why")) {
		t.Errorf("rejected: got private data %q, want why", e.PrivateData)
	}
	w.b.wantNone()
	w.advance(time.Hour)
	w.wantEmpty()
}

// So it is if the REP was lost before.
func TestLostREJBehindREP(t *testing.T) {
	w := newWorld(t)
	_, d := w.pending()
	w.lossOf("b REP", "b REJ 28")
	w.ok(d.Accept(w.now, testParams(0x22)))
	d.Close(w.now)
	w.wantSent("b REP", "b REJ 28")
	w.lose = nil
	w.advance(1530 * time.Millisecond)
	w.wantSent("b DREQ", "a DREP") // a has not even had the REP: the answer only says that it is not connected
	w.a.wantNone()
	w.advance(time.Second)
	w.wantSent("a REQ", "b REJ 28")
	if e := w.a.want(EventRejected); e.Message != wire.CMMessageREQ {
		t.Errorf("rejected: got message %d, want the REQ", e.Message)
	}
	w.advance(time.Hour)
	w.wantSent()
	w.wantEmpty()
}

// If the DREQ that follows up a REJ overtakes the REP, the REP comes to nothing.
func TestREJOfLateREP(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.pump()
	rep := w.flying[0]
	w.flying = nil
	w.lossOf("b REJ 28")
	d.Close(w.now)
	w.advance(milliseconds(DefaultCMTimeout) + testDelay)
	w.wantSent("b REP", "b REJ 28", "b DREQ", "a DREP")
	w.a.Handle(w.now, rep.path, rep.mad) // only now
	w.wantSent("a REJ 10")
	w.a.wantNone()
	w.wantState(c, StateREQSent)
	w.lose = nil
	w.advance(time.Second)
	w.wantSent("a REQ", "b REJ 28")
	w.a.want(EventRejected)
}

// If the REJ that takes back a REP is lost, a DREQ follows it up.
func TestRejectedAfterREP(t *testing.T) {
	w := newWorld(t)
	c, d := w.halfOpen()
	w.lossOf("b REJ 28")
	d.Close(w.now)
	w.wantSent("b REJ 28")
	w.advance(milliseconds(DefaultCMTimeout) + testDelay)
	w.wantSent("b DREQ", "a DREP")
	w.a.want(EventDisconnected)
	w.wantState(c, StateTimeWait)
	w.wantExit(w.a)
	w.b.wantNone()
}

// An RTU, which shows that the REJ was lost, is followed up at once.
func TestRTUAfterREJ(t *testing.T) {
	w := newWorld(t)
	c, d := w.replied()
	w.lossOf("b REJ 28")
	d.Close(w.now)
	w.wantSent("b REJ 28")
	w.ok(c.Ready(w.now))
	w.wantSent("a RTU", "b DREQ", "a DREP")
	w.a.want(EventDisconnected)
	w.wantExit(w.a)
	w.b.wantNone()
}

// A slow active side hears of the end before it is ready.
func TestProbeBeforeReady(t *testing.T) {
	w := newWorld(t)
	c, d := w.replied()
	w.lossOf("b REJ 28")
	d.Close(w.now)
	w.advance(milliseconds(DefaultCMTimeout) + testDelay)
	w.wantSent("b REJ 28", "b DREQ", "a DREP")
	w.a.want(EventDisconnected)
	if err := c.Ready(w.now); !errors.Is(err, ErrState) {
		t.Errorf("ready: got error %v, want %v", err, ErrState)
	}
}

// A REJ that overtakes the REP ends the attempt. The REP then finds no connection.
func TestREJOvertakesREP(t *testing.T) {
	w := newWorld(t)
	_, d := w.pending()
	w.ok(d.Accept(w.now, testParams(0x22)))
	d.Close(w.now)
	w.pump()
	w.flying[0], w.flying[1] = w.flying[1], w.flying[0]
	w.wantSent("b REP", "b REJ 28", "a REJ 6")
	w.a.want(EventRejected)
	w.advance(time.Hour)
	w.wantSent()
	w.wantEmpty()
}

func TestRejectRefuses(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	if err := d.Reject(w.now, 1, make([]byte, 73), nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("too much reject information: got error %v, want %v", err, ErrInvalid)
	}
	if err := d.Reject(w.now, 1, nil, make([]byte, 149)); !errors.Is(err, ErrPrivateData) {
		t.Errorf("too much private data: got error %v, want %v", err, ErrPrivateData)
	}
	w.ok(d.Accept(w.now, testParams(0x22)))
	w.a.want(EventReply)
	w.ok(c.Ready(w.now))
	w.b.want(EventEstablished)
	for _, x := range []*Conn{c, d} {
		if err := x.Reject(w.now, 1, nil, nil); !errors.Is(err, ErrState) {
			t.Errorf("reject of what is established: got error %v, want %v", err, ErrState)
		}
	}
}

// Close sends the message that the state calls for.
func TestClose(t *testing.T) {
	for _, test := range []struct {
		name   string
		to     func(w *world) (c, d *Conn)
		closeB bool
		sent   []string
		want   EventType // at the other side; 0 for none
	}{
		{"REQ_SENT", (*world).pending, false, []string{"a REJ 4"}, EventRejected},
		{"REQ_RCVD", (*world).pending, true, []string{"b REJ 28"}, EventRejected},
		{"REP_RCVD", (*world).replied, false, []string{"a REJ 28"}, EventRejected},
		{"REP_SENT", (*world).replied, true, []string{"b REJ 28"}, EventRejected},
		{"REP_SENT to established", (*world).halfOpen, true, []string{"b REJ 28"}, EventRejected},
		{"ESTABLISHED", (*world).connected, false, []string{"a DREQ", "b DREP"}, EventDisconnected},
		{"ESTABLISHED, passive", (*world).connected, true, []string{"b DREQ", "a DREP"}, EventDisconnected},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			c, d := test.to(w)
			mine, other := w.a, w.b
			if test.closeB {
				c, mine, other = d, w.b, w.a
			}
			c.Close(w.now)
			w.wantSent(test.sent...)
			other.want(test.want)
			w.advance(time.Hour)
			mine.wantNone()
			if test.want == EventDisconnected {
				other.want(EventTimeWaitExit)
			}
			other.wantNone()
			w.wantEmpty()
			c.Close(w.now) // again
			w.sent = nil
			w.wantSent()
		})
	}
}

// After Close no event arrives, not even one that was queued before.
func TestCloseDropsEvents(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	w.ok(d.Accept(w.now, testParams(0x22)))
	_, mad, _ := w.b.Transmit()
	w.a.Handle(w.now, Path{Local: w.a.addr, Remote: w.b.addr}, mad)
	if c.State() != StateREPRcvd {
		t.Fatalf("got state %v, want %v", c.State(), StateREPRcvd)
	}
	c.Close(w.now)
	w.a.wantNone()
}

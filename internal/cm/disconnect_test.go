package cm

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// A DREQ that nobody answers is repeated 15 times. Each side repeats it after a time of its own. Before that it is repeated
// soon, in case it was lost.
func TestDREQTimeout(t *testing.T) {
	for _, test := range []struct {
		name    string
		passive bool
		every   time.Duration
	}{
		{"active", false, 1536 * time.Millisecond},
		{"passive", true, 1024 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			c, d := w.connected()
			n := w.a
			if test.passive {
				n, c = w.b, d
			}
			w.lossOf(n.name + " DREQ")
			w.ok(c.Disconnect(w.now, nil))
			w.advance(earlyDREQ - 1)
			w.wantSent(n.name + " DREQ")
			for _, after := range []time.Duration{1, 2, 4, 8, 16} { // and 32 times as long is longer than every
				w.advance(1)
				w.wantSent(n.name + " DREQ")
				w.advance(2*after*earlyDREQ - 1)
			}
			w.advance(16*test.every - 32*earlyDREQ)
			n.wantNone()
			w.wantSent(slices.Repeat([]string{n.name + " DREQ"}, 15)...)
			w.advance(1)
			if e := n.want(EventDisconnected); !e.TimedOut {
				t.Error("disconnected: got TimedOut false, want true")
			}
			w.wantState(c, StateTimeWait)
			w.advance(time.Minute)
			n.want(EventTimeWaitExit)
			w.wantSent()
			n.wantEmpty(t)
		})
	}
}

// The DREP has the connection's type of service, also where the link does not tell the DREQ's.
func TestDREPTrafficClass(t *testing.T) {
	w := newWorld(t)
	c, d := w.connected()
	for _, c := range []*Conn{c, d} {
		c.path.TrafficClass = 0x20
		mad := wire.NewCMHeader(wire.CMDREQ, 1)
		dreq := wire.DREQ{LocalCommID: c.remoteID, RemoteCommID: c.id, RemoteQPN: c.ownParams.QPN}
		c.m.Handle(w.now, Path{Local: c.path.Local, Remote: c.path.Remote}, dreq.AppendTo(mad.AppendTo(nil)))
		if p, mad, _ := c.m.Transmit(); describe(mad) != "DREP" || p.TrafficClass != 0x20 {
			t.Errorf("%s with traffic class %#x, want DREP with 0x20", describe(mad), p.TrafficClass)
		}
	}
}

// If DREQs cross, each is answered.
func TestCrossingDREQs(t *testing.T) {
	w := newWorld(t)
	c, d := w.connected()
	w.ok(c.Disconnect(w.now, nil))
	w.ok(d.Disconnect(w.now, nil))
	w.wantSent("a DREQ", "b DREQ", "b DREP", "a DREP")
	w.a.want(EventDisconnected)
	w.b.want(EventDisconnected)
	w.wantExit(w.a, w.b)
}

// If one of two crossing DREQs is lost, both ends still hear of the end.
func TestCrossingDREQsOneLost(t *testing.T) {
	w := newWorld(t)
	c, d := w.connected()
	w.lossOf("b DREQ")
	w.ok(c.Disconnect(w.now, nil))
	w.ok(d.Disconnect(w.now, nil))
	w.wantSent("a DREQ", "b DREQ", "b DREP")
	w.a.want(EventDisconnected)
	w.b.want(EventDisconnected)
	w.wantExit(w.a, w.b)
	w.wantSent()
}

// If the DREP is lost, a repeated DREQ is answered in time-wait, and also after it.
func TestLostDREP(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		w := newWorld(t)
		c, d := w.connected()
		w.lossOf("b DREP")
		w.ok(c.Disconnect(w.now, nil))
		w.wantSent("a DREQ", "b DREP")
		w.lose = nil
		w.now += wait
		w.b.HandleTimeout(w.now)
		if wait > 0 {
			w.wantState(d, StateIdle)
		}
		w.advance(2 * time.Second)
		w.wantSent("a DREQ", "b DREP")
		w.a.want(EventDisconnected)
	}
}

// A DREQ for a connection that does not exist is answered all the same.
func TestDREQForNobody(t *testing.T) {
	w := newWorld(t)
	c, _ := w.pending()
	for _, own := range []uint32{testDEAD, c.ID()} {
		w.a.inject(w.b.addr, 5, wire.CMDREQ, &wire.DREQ{LocalCommID: 7, RemoteCommID: own, RemoteQPN: 0x11})
		_, mad, ok := w.a.Transmit()
		h, _ := wire.DecodeMADHeader(mad)
		drep, err := wire.DecodeDREP(mad[wire.MADHeaderSize:])
		if !ok || err != nil || h.TID != 5 || drep.LocalCommID != own || drep.RemoteCommID != 7 {
			t.Errorf("got %+v, TID %d, %v, want a DREP from %#x to 7, TID 5", drep, h.TID, ok, own)
		}
	}
	w.wantState(c, StateREQSent)
}

// A DREQ that names another QP is ignored.
func TestDREQForAnotherQP(t *testing.T) {
	w := newWorld(t)
	c, d := w.connected()
	w.a.inject(w.b.addr, 5, wire.CMDREQ, &wire.DREQ{LocalCommID: d.ID(), RemoteCommID: c.ID(), RemoteQPN: 0x12})
	w.wantSent()
	w.wantState(c, StateEstablished)
}

func TestDisconnectInOtherStates(t *testing.T) {
	w := newWorld(t)
	c, d := w.pending()
	for _, x := range []*Conn{c, d} {
		if err := x.Disconnect(w.now, nil); !errors.Is(err, ErrState) {
			t.Errorf("disconnect in %v: got error %v, want %v", x.State(), err, ErrState)
		}
	}
	w = newWorld(t)
	c, d = w.connected()
	if err := c.Disconnect(w.now, make([]byte, 221)); !errors.Is(err, ErrPrivateData) {
		t.Errorf("too much private data: got error %v, want %v", err, ErrPrivateData)
	}
	w.ok(c.Disconnect(w.now, nil))
	w.wantSent("a DREQ", "b DREP")
	w.ok(d.Disconnect(w.now, nil)) // the answer is on its way already
	w.ok(c.Disconnect(w.now, nil))
	w.wantSent()
}

// A connection that is closed in DREQ_SENT goes on repeating its DREQ.
func TestCloseKeepsAsking(t *testing.T) {
	w := newWorld(t)
	c, _ := w.connected()
	w.lossOf("a DREQ")
	w.ok(c.Disconnect(w.now, nil))
	c.Close(w.now)
	w.wantSent("a DREQ")
	w.lose = nil
	w.advance(2 * time.Second)
	w.wantSent("a DREQ", "b DREP")
	w.b.want(EventDisconnected)
	w.advance(time.Minute)
	w.a.wantNone()
	w.wantEmpty()
}

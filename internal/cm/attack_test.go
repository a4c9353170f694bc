package cm

// Attacks by strangers with forged messages of the connection manager. They know the address, the GUID
// and the QPNs of both ends, but no communication ID. Attacks by peers with the times that they name
// are in times_test.go.

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// A REJ (timeout) that names only the peer's communication ID and GUID ends nothing once the peer must
// know our communication ID. It ended established connections.
func TestForgedTimeoutREJ(t *testing.T) {
	for name, to := range map[string]func(w *world) (c, d *Conn){
		"established": (*world).connected,
		"replied":     (*world).replied,
		"disconnecting": func(w *world) (c, d *Conn) {
			c, d = w.connected()
			w.lossOf("a DREQ", "b DREQ")
			w.ok(c.Disconnect(w.now, nil))
			w.ok(d.Disconnect(w.now, nil))
			w.forget()
			return c, d
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c, d := to(w)
			wasC, wasD := c.State(), d.State()
			w.a.inject(w.b.addr, 1, wire.CMREJ, timeoutREJ('b'<<24, d.ID()))
			w.wantState(c, wasC)
			w.a.wantNone()
			if d.State() != StateREPSent { // in which the active side may have heard of no ID
				w.b.inject(w.a.addr, 1, wire.CMREJ, timeoutREJ('a'<<24, c.ID()))
				w.wantState(d, wasD)
				w.b.wantNone()
			}
			if s := w.a.Stats(); s.Unknown.Of(wire.CMREJ) != 1 {
				t.Errorf("got %d REJs counted as unknown, want 1", s.Unknown.Of(wire.CMREJ))
			}
		})
	}
}

func timeoutREJ(guid uint64, id uint32) *wire.REJ {
	rej := &wire.REJ{LocalCommID: id, Message: wire.CMMessageOther, Reason: wire.RejTimeout, ARILen: guidSize}
	binary.BigEndian.PutUint64(rej.ARI[:], guid)
	return rej
}

// Communication IDs come in no order that a stranger could continue, and all of a block come before one
// comes again.
func TestIDsCannotBeContinued(t *testing.T) {
	var s, other idSource
	s.init(secretOf(1))
	other.init(secretOf(2))
	const bits, n = 12, 1 << 12
	seen := make([]bool, n)
	var steps []uint32
	same := 0
	last := s.next(bits)
	seen[last] = true
	other.next(bits)
	for range n - 1 {
		id := s.next(bits)
		if id >= n || seen[id] {
			t.Fatalf("got ID %#x after %d others, want a new one below %#x", id, len(steps), n)
		}
		if seen[id] = true; id == other.next(bits) {
			same++
		}
		steps = append(steps, (id-last)%n)
		last = id
	}
	slices.Sort(steps)
	if d := len(slices.Compact(steps)); d < n/2 {
		t.Errorf("the distances between IDs have %d values, want more than %d", d, n/2)
	}
	if same > 20 {
		t.Errorf("two secrets give the same ID %d times of %d, want it seldom", same, n)
	}
}

// A REQ or REP that names the QP of an established connection's peer ends nothing, if the peer still has
// the connection. The peer is asked, seldom enough that a flood of such messages is no flood of questions.
func TestForgedStaleConnection(t *testing.T) {
	w := newWorld(t)
	c, d := w.connected()
	w.lossOf("b REJ 10") // which goes to a, who has not asked
	for i := range uint32(100) {
		w.b.inject(w.a.addr, 1, wire.CMREQ, w.req(testDEAD+i, 0x11))
		w.settle()
	}
	w.a.inject(w.b.addr, 1, wire.CMREQ, &wire.REQ{LocalCommID: testDEAD, LocalGUID: 'b' << 24, LocalQPN: 0x22, ServiceID: testService, PKey: 0xffff, MTU: 3})
	w.lose = nil
	w.advance(doubtPause - 1)
	questions := 0
	for _, what := range w.sent {
		if what == "b DREP" || what == "a DREP" {
			t.Errorf("sent %s: an end that has the connection must not answer", what)
		}
		if what == "b DREQ" {
			questions++
		}
	}
	if questions != doubtRepeats {
		t.Errorf("b asked %d times, want %d", questions, doubtRepeats)
	}
	if n := len(w.sent); n > 100+1+2*doubtRepeats { // a REJ each, and the answers to questions
		t.Errorf("%d MADs were sent for 101 REQs, want no more than a REJ each, %d questions and their answers", n, doubtRepeats)
	}
	if a, b := w.a.Stats(), w.b.Stats(); a.Conns != 1 || b.Conns != 1 {
		t.Errorf("%d and %d connections, want the one that there was", a.Conns, b.Conns)
	}
	w.wantState(c, StateEstablished)
	w.wantState(d, StateEstablished)
	w.a.wantNone()
	w.b.wantNone()
}

// A forged DREP answers no question, if it lacks one of the numbers that only the ends know.
func TestForgedAnswerToDoubt(t *testing.T) {
	w := newWorld(t)
	c, d := w.connected()
	drep := &wire.DREP{LocalCommID: c.ID(), RemoteCommID: d.ID()}
	w.b.inject(w.a.addr, d.doubt.tid, wire.CMDREP, drep) // before there is a question
	w.lossOf("b REJ 10")
	w.b.inject(w.a.addr, 1, wire.CMREQ, w.req(testDEAD, 0x11))
	w.b.inject(w.a.addr, d.doubt.tid+1, wire.CMDREP, drep)
	w.b.inject(w.a.addr, d.doubt.tid, wire.CMDREP, &wire.DREP{LocalCommID: c.ID() + 1, RemoteCommID: d.ID()})
	w.b.inject(w.a.addr, d.doubt.tid, wire.CMDREP, &wire.DREP{LocalCommID: c.ID(), RemoteCommID: d.ID() + 1})
	w.wantState(d, StateEstablished)
	w.b.wantNone()
	w.b.inject(w.a.addr, d.doubt.tid, wire.CMDREP, drep)
	w.b.want(EventDisconnected)
}

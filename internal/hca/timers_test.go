package hca

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestTimersAfterArrivals: acknowledgements that wait in the link when the timers come due are taken
// first. A machine that was busy elsewhere does not repeat packets that have arrived.
func TestTimersAfterArrivals(t *testing.T) {
	const qps = 3 * receiveBatch
	net := sim.New(sim.Config{})
	a, b := simDevice(t, net, 1), simDevice(t, net, 2)
	var xs, ys []*end
	for range qps {
		x, y := connect(t, a, b, options{cap: verbs.QPCap{MaxSendWR: 1}})
		xs, ys = append(xs, x), append(ys, y)
	}
	e := (*impl(a).engines.Load())[0]
	e.rx.Lock() // nobody receives at a
	for i, x := range xs {
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, Remote: verbs.RemoteAddr{}})
		for deadline := time.Now().Add(patience); !ys[i].hasReceived(); runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("WRITE %d did not arrive", i)
			}
		}
	}
	// All acknowledgements wait in a's link, and at this time all timers are due.
	now := time.Duration(e.timers.next.Load()) + time.Second
	for {
		n, _, err := e.serveFar(now, 0, true)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	e.rx.Unlock()
	if c := counters(xs...); c.Timeouts != 0 || c.Retransmits != 0 {
		t.Errorf("%d timeouts and %d repeated packets, want none", c.Timeouts, c.Retransmits)
	}
	for _, x := range xs {
		x.done()
	}
}

// slow is a link whose Recv calls a function before it looks.
type slow struct {
	link.Link
	before *func()
}

func (s slow) Recv(batch []link.Datagram) (int, error) {
	if f := *s.before; f != nil {
		*s.before = nil
		f()
	}
	return s.Link.Recv(batch)
}

// TestTimersAfterStall: an acknowledgement restarts the timers of the packets that are still under way, from when it was
// received. A host that took the processor away before does not make for repeats.
func TestTimersAfterStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = time.Millisecond
		net := sim.New(sim.Config{Delay: delay})
		var before func()
		d, err := Open(net.Netdev("sim", simAddr(1)), Config{Driven: true, Middleware: []link.Middleware{
			func(l link.Link) link.Link { return slow{l, &before} },
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		x, _ := connect(t, verbs.NewDevice(d), simDevice(t, net, 2), options{})
		post := func() { x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled}) }
		end := func() {
			time.Sleep(2 * delay)
			d.Drive(false)
			x.done()
		}
		for range 8 { // for the round trip to be known
			post()
			end()
		}
		post()
		before = func() {
			time.Sleep(20 * time.Millisecond) // meanwhile the acknowledgement comes
			post()
		}
		d.Drive(false)
		x.done()
		d.Drive(false)
		end()
		if c := counters(x); c.Timeouts != 0 || c.Probes != 0 || c.Retransmits != 0 {
			t.Errorf("%d timeouts, %d probes and %d repeated packets, want none", c.Timeouts, c.Probes, c.Retransmits)
		}
	})
}

// ceaseless is a link on which something always arrives while it is on, if only rubbish.
type ceaseless struct {
	link.Link
	on *atomic.Bool
}

func (c ceaseless) Recv(batch []link.Datagram) (int, error) {
	n, err := c.Link.Recv(batch)
	if n == 0 && err == nil && c.on.Load() {
		batch[0] = link.Datagram{Payload: []byte("rubbish")}
		n = 1
	}
	return n, err
}

// TestTimersAmongArrivals: timers wait while packets arrive, but not for ever.
func TestTimersAmongArrivals(t *testing.T) {
	net := sim.New(sim.Config{})
	var on atomic.Bool
	a := simDevice(t, net, 1, func(l link.Link) link.Link { return ceaseless{l, &on} })
	b := simDevice(t, net, 2)
	x, _ := connect(t, a, b, options{cap: verbs.QPCap{MaxSendWR: 1}})
	e, peer := (*impl(a).engines.Load())[0], (*impl(b).engines.Load())[0]
	peer.rx.Lock() // it acknowledges nothing
	e.rx.Lock()
	e.unserved = 0
	on.Store(true)
	x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, Remote: verbs.RemoteAddr{}})
	now := time.Duration(e.timers.next.Load()) + time.Second
	for i := range timerPatience {
		if c := counters(x); c.Timeouts+c.Probes != 0 {
			t.Errorf("after %d receives that brought something, a timer was served; want them all first", i)
			break
		}
		if _, _, err := e.serveFar(now, 0, true); err != nil {
			t.Fatal(err)
		}
	}
	if c := counters(x); c.Timeouts+c.Probes == 0 {
		t.Errorf("after %d receives that brought something, no timer was served, want one served", timerPatience)
	}
	on.Store(false)
	e.rx.Unlock()
	peer.rx.Unlock()
	x.done()
}

// hasReceived reports whether a packet of the peer was executed.
func (e *end) hasReceived() bool {
	q := e.impl()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.t.Established()
}

// TestTimerMovesEarlier: a QP that waits for a timeout already, and then for an earlier one, is due at the
// earlier one.
func TestTimerMovesEarlier(t *testing.T) {
	var ts timers
	q, other := &qp{}, &qp{}
	q.timer.place, other.timer.place = -1, -1
	ts.set(other, 8*time.Millisecond)
	ts.set(q, 10*time.Millisecond)
	ts.set(q, 5*time.Millisecond)
	if next := time.Duration(ts.next.Load()); next != 5*time.Millisecond {
		t.Errorf("the next timer is at %v, want 5ms", next)
	}
	if got := ts.due(5 * time.Millisecond); got != q {
		t.Errorf("at 5ms QP %p is due, want %p", got, q)
	}
}

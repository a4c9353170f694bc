package hca

import (
	"runtime"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestTimersAfterArrivals: acknowledgements that wait in the link when the timers come due are taken
// first. A machine that was busy elsewhere does not repeat what has arrived.
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
		n, err := e.serve(now)
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

// hasReceived reports whether a packet of the peer was executed.
func (e *end) hasReceived() bool {
	q := e.impl()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.t.Established()
}

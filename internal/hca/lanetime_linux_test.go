//go:build !adverb_portable

package hca

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestLaneTripIsMeasured: an engine reads the clock, and waits. Meanwhile the program posts and its peer answers. The round
// trip is the time from the post to when the answer is taken, though the engine's look at the clock was before both.
func TestLaneTripIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newLanePair(t, options{driven: true})
		mine, theirs := p.x.mr(8), p.y.mr(8)
		q := p.x.impl()
		e := q.out.eng
		const waits, trip = 12 * time.Millisecond, 300 * time.Microsecond
		for range 3 {
			early := e.dev.now()
			time.Sleep(waits)
			p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{mine.SGE(0, 8)}, Remote: theirs.Remote(0)})
			p.drain(p.y)
			time.Sleep(trip)
			e.rx.Lock()
			n := e.receiveNear(early)
			e.rx.Unlock()
			if got := time.Duration(q.t.Gauges().RoundTrip); n == 0 || got != trip {
				t.Fatalf("%d packets have come, and the round trip is %v, want %v", n, got, trip)
			}
			p.want(p.x)
		}
		for _, d := range []*end{p.x, p.y} {
			d.dev.Close()
		}
	})
}

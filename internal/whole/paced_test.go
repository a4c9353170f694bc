package whole

import (
	"math/rand/v2"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/verbs"
)

// Some ends have another congestion control than others, and change it now and then. So they wait for their pace, or
// for a window of less than a packet. Their work is complete in the end, as the work of other ends is. Notifications
// of congestion (CNP) come only where the network marks, and where the path's packets allow marks.

// leastRate is the least rate of dcqcn in bytes a second: see docs/CONGESTION.md.
const leastRate = 1_250_000

// drawPace decides which congestion controls the ends of a connection have, by side.
func (c *conn) drawPace() {
	r := rand.New(rand.NewPCG(c.w.plan.Seed, uint64(0x9ace0+c.index)))
	c.class = link.ECT0
	class := []uint8{0, link.ECT0, 1, 0x68, 0x68 | link.ECT0}[r.IntN(5)]
	for side := range c.control {
		if control := c.drawControl(r); c.w.plan.Pace {
			c.control[side], c.class = control, class
		}
	}
}

// drawControl returns a congestion control that the connection may have.
func (c *conn) drawControl(r *rand.Rand) verbs.CongestionControl {
	control := []verbs.CongestionControl{verbs.CongestionWindow, verbs.CongestionDCQCN, verbs.CongestionDCQCN, verbs.CongestionDelay, verbs.CongestionDelay}[r.IntN(5)]
	if c.typ == verbs.QPTypeUC && control == verbs.CongestionDelay {
		control = verbs.CongestionDCQCN
	}
	return control
}

// pace gives a new end its congestion control.
func (e *end) pace() {
	if k := e.c.control[e.side]; k != verbs.CongestionWindow {
		e.setControl(k)
	}
}

// setControl has an end use a congestion control from now on.
func (e *end) setControl(k verbs.CongestionControl) {
	e.n.w.logf("%v: congestion control %v", e, k)
	e.control, e.marked = k, e.marked || k == verbs.CongestionDCQCN
	e.n.w.must(e.qp.SetCongestionControl(k))
}

// watchPace checks the rate at which the end sends, now and then.
func (e *end) watchPace() {
	if !e.n.w.plan.Pace {
		return
	}
	c, err := e.qp.Counters()
	e.n.w.must(err)
	rate := c.Value("rate_limit_bytes")
	if rate > 0 && !e.paced {
		e.paced = true
		e.n.w.totals.Paced++
	}
	if rate > 0 && e.control == verbs.CongestionWindow || rate > 0 && rate < leastRate && e.control == verbs.CongestionDCQCN {
		e.n.w.failf("%v: the rate is %d bytes in a second under %v", e, rate, e.control)
	}
}

// verifyPace checks the end's counts of congestion at the end of a life.
func (e *end) verifyPace(c verbs.Counters) {
	w := e.n.w
	n := c.Value("rp_cnp_handled")
	w.totals.CNPs += n
	marks := w.plan.MarkCE > 0 || w.plan.Ways > 0
	allows := e.c.class&link.ECNMask != link.NotECT || e.marked
	if n > 0 && !(marks && allows) && w.plan.Forgeries == 0 {
		w.failf("%v: %d notifications of congestion count; the network marks: %v, what it sends allows marks: %v", e, n, marks, allows)
	}
}

// TestWholePaced makes runs in which ends have a pace, on networks that mark much, and on such with queues.
func TestWholePaced(t *testing.T) {
	for _, ways := range []int{0, 2} {
		sum, runs := changed(t, 4000, func(p *plan) {
			p.Pace, p.MarkCE, p.Ways = true, 0.05, ways
			p.Queue, p.Lives, p.Ops, p.Corrupt, p.Forgeries = 0, 1, 60, 0, 0
		})
		if sum.Paced < runs || sum.CNPs < 5*runs {
			t.Errorf("%d ways: %d ends were paced in %d runs, and %d CNPs came; want some", ways, sum.Paced, runs, sum.CNPs)
		}
	}
}

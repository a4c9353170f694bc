package whole

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Some ends send WRITEs in the form that lets switches route each packet by itself, and some accept that form. Such
// WRITEs keep no order among themselves. So their programs do not WRITE again where a WRITE is under way. All else is
// as for the others.

// drawRouting decides how the ends of a connection use adaptive routing, by side.
func (c *conn) drawRouting() {
	r := rand.New(rand.NewPCG(c.w.plan.Seed, uint64(0x70e0+c.index)))
	mark := []uint16{0, verbs.DefaultRoutingMark, 0x20, 0x7f}[r.IntN(4)]
	for side := range c.routing {
		c.routing[side] = verbs.AdaptiveRouting{Send: r.IntN(3) > 0, Accept: r.IntN(3) > 0, Mark: mark, Patience: time.Duration(1 + r.IntN(int(2*time.Millisecond)))}
		if !c.w.plan.Route {
			c.routing[side] = verbs.AdaptiveRouting{}
		}
	}
}

// route has a new end use adaptive routing as drawRouting has decided.
func (e *end) route() {
	if r := e.c.routing[e.side]; r != (verbs.AdaptiveRouting{}) && e.c.typ == verbs.QPTypeRC {
		e.setRouting(r)
	}
}

// crosses reports whether o, which is new, would WRITE where WRITEs are under way that may come after o.
func (e *end) crosses(o *op) bool {
	if !e.c.routing[e.side].Send || !o.writes() || o.area == nil || o.expect != verbs.WCSuccess {
		return false
	}
	at := o.area.off + o.off
	for _, x := range e.ops[e.done:] {
		if x.writes() && x.area != nil && x.area.r == o.area.r && x.area.off+x.off < at+o.length && at < x.area.off+x.off+x.length {
			if o.roam != nil {
				o.roam.uses-- // o is not posted
			}
			return true
		}
	}
	return false
}

// TestWholeRouted makes runs in which packets overtake one another much, on networks that lose little.
func TestWholeRouted(t *testing.T) {
	sum, runs := changed(t, 2000, func(p *plan) {
		p.Route, p.Reorder, p.Duplicate, p.Loss, p.Corrupt = true, 0.2, 0.02, 0.005, 0
		p.Queue, p.Lives = 0, 1
	})
	if sum.Held < 10*runs {
		t.Errorf("%d packets were held or placed before others in %d runs; want some", sum.Held, runs)
	}
}

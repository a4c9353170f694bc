package whole

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// conn is a connection between two nodes, which is made once or several times.
type conn struct {
	w     *world
	index int
	nodes [2]*node
	typ   verbs.QPType
	byCM  bool
	rnd   *rand.Rand
	lives int // that are left
	life  int
	ends  [2]*end // of this life; nil before it
	phase phase
	over  bool

	secured bool
	routing [2]verbs.AdaptiveRouting
	control [2]verbs.CongestionControl
	class   uint8 // the path's traffic class

	terms
}

// terms are what both ends of a life have in common.
type terms struct {
	mtu     verbs.MTU
	retry   verbs.Retry
	rnr     uint8
	rdAtom  int
	most    [2]uint64 // receives that each program posts at most
	exposed bool      // somebody who knows all the connection's numbers has ended the connection
	broken  bool      // by kill, or by illegal work: an end may fail for no fault of its own
}

type phase uint8

const (
	waiting  phase = iota // for the life to begin
	opening               // by the connection manager
	running               // the programs post
	breaking              // one end has failed, and the other will
	ending                // all work is done
)

func (c *conn) String() string { return fmt.Sprintf("conn%d.%d", c.index, c.life) }

func (c *conn) describe() string {
	s := fmt.Sprintf("%v of %v and %v, %v, phase %d", c, c.nodes[0], c.nodes[1], c.typ, c.phase)
	for _, e := range c.ends {
		if e != nil {
			s += fmt.Sprintf("\n  %v in %v: %d of %d posted, %d complete, %d received of %d; failed %v, closed %v, node awake %v",
				e, e.qp.State(), len(e.ops), e.goal, e.done, e.got, len(e.peer().messages), e.failed, e.closed, e.n.awake())
		}
	}
	return s
}

func newConn(w *world, i int) *conn {
	c := &conn{w: w, index: i, typ: verbs.QPTypeRC, rnd: rand.New(rand.NewPCG(w.plan.Seed, uint64(5000+i)))}
	a := c.rnd.IntN(len(w.nodes))
	b := (a + 1 + c.rnd.IntN(len(w.nodes)-1)) % len(w.nodes)
	if c.rnd.IntN(10) == 0 {
		b = a // the node connects to itself
	}
	c.nodes = [2]*node{w.nodes[a], w.nodes[b]}
	if uc := c.rnd.IntN(3) == 0; uc && w.plan.UC {
		c.typ = verbs.QPTypeUC
	}
	cm := c.rnd.IntN(2) == 0
	c.byCM = cm && w.plan.CM && c.typ == verbs.QPTypeRC && a != b
	c.lives = 1 + c.rnd.IntN(w.plan.Lives)
	c.drawSecurity()
	c.drawRouting()
	c.drawPaths()
	c.drawPace()
	w.in(within(c.rnd, busyTime), c.begin)
	return c
}

// begin begins a life, once both nodes are up.
func (c *conn) begin() {
	w, r := c.w, c.rnd
	for _, n := range c.nodes {
		if !n.awake() {
			w.in(time.Millisecond, c.begin)
			return
		}
	}
	c.life++
	w.totals.Conns++
	c.terms = terms{retry: verbs.Retry{Timeout: uint8(9 + r.IntN(5)), RetryCount: 7, RNRRetryCount: 7}, rnr: uint8(1 + r.IntN(14))}
	port, err := c.nodes[0].dev.QueryPort(1)
	w.must(err)
	c.mtu = verbs.MTU(1 + r.IntN(int(port.ActiveMTU)))
	c.rdAtom = 1 << r.IntN(5)
	c.retry.MaxRDAtomic = c.rdAtom
	switch {
	case w.plan.calm() && !c.byCM:
		c.retry.Timeout = 0 // nothing may ever wait for a timeout
	case w.plan.Weak && r.IntN(2) == 0:
		c.retry.RetryCount, c.retry.RNRRetryCount = uint8(r.IntN(3)), uint8(r.IntN(4))
	}
	c.drawRetries()
	if c.byCM {
		c.phase = opening
		c.ends = [2]*end{newEnd(c, 0), nil}
		c.nodes[0].agent.connect(c)
		return
	}
	c.ends = [2]*end{newEnd(c, 0), newEnd(c, 1)}
	c.agree()
	for _, e := range c.ends {
		e.toRTR()
	}
	for _, e := range c.ends {
		e.toRTS()
	}
	c.start()
}

// start lets the programs post.
func (c *conn) start() {
	c.phase = running
	c.w.logf("%v: %v of %v and %v runs, MTU %v, %+v", c, c.typ, c.ends[0], c.ends[1], c.mtu, c.retry)
	for _, e := range c.ends {
		e.start()
	}
	c.change()
	if k := c.rnd.IntN(4); k < 2 && c.w.plan.Kill {
		life, e, rudely := c.life, c.ends[k], c.rnd.IntN(2) == 0
		c.w.in(within(c.rnd, 5*time.Millisecond), func() {
			switch {
			case c.life != life || c.phase != running || !e.n.awake():
			case rudely:
				c.leave(e)
			default:
				e.kill()
			}
		})
	}
}

// leave has an end go in the midst of everything: its QP goes to RESET, and is closed. A receive of the SRQ
// that the QP holds must be there for others again.
func (c *conn) leave(e *end) {
	c.w.logf("%v leaves", e)
	if c.byCM {
		e.disconnect()
	}
	e.reset()
	c.broken, c.phase = true, breaking
	c.w.totals.Failed++
	c.breakOff()
	c.flushed()
}

// look takes the life to the next phase when the time has come.
func (c *conn) look() {
	if c.phase != running {
		return
	}
	x, y := c.ends[0], c.ends[1]
	switch {
	case x.failed || y.failed:
		c.phase = breaking
		c.broken = true
		c.w.totals.Failed++
		c.breakOff()
		c.flushed()
	case x.finished() && y.finished():
		c.phase = ending
		pause := within(c.rnd, time.Millisecond)
		if c.typ == verbs.QPTypeUC {
			pause += 5 * time.Millisecond // for packets that are under way
		}
		c.later(pause, c.finish)
	}
}

// later calls a function later, unless the life is over by then.
func (c *conn) later(d time.Duration, do func()) {
	life := c.life
	c.w.in(d, func() {
		if c.life == life && !c.over {
			do()
		}
	})
}

// breakOff sees to it that both ends fail. An end that waits for the other must fail by itself, in the time
// that its retries take.
func (c *conn) breakOff() {
	for _, e := range c.ends {
		if e.failed || e.closed {
			continue
		}
		if c.typ == verbs.QPTypeRC && e.outstanding() && c.retry.Timeout > 0 && c.rnd.IntN(2) == 0 {
			limit, before := c.patience(), e.done
			c.w.logf("%v must fail within %v", e, limit)
			c.later(limit, func() { c.mustHaveFailed(e, before) })
			return
		}
		c.later(within(c.rnd, 20*time.Millisecond), func() {
			if c.phase == breaking && !e.failed && !e.closed {
				if !e.n.awake() {
					c.breakOff()
					return
				}
				e.kill()
			}
		})
	}
}

// patience is the time after which an end whose peer is silent has failed: the time of all its retries, and of
// everything else that the end may wait for.
func (c *conn) patience() time.Duration {
	return 4*time.Duration(c.retry.RetryCount+1)*wire.ACKTimeout(c.retry.Timeout) + time.Second
}

func (c *conn) mustHaveFailed(e *end, before int) {
	if e.failed || e.closed {
		return
	}
	if !e.n.awake() {
		c.later(4*busyTime, func() { c.mustHaveFailed(e, before) })
		return
	}
	if e.outstanding() && !e.unsignaled() && e.done == before && e.qp.State() != verbs.QPStateErr {
		c.w.failf("%v: the peer is gone, and work request %d is neither complete nor failed after %v", e, e.done, c.patience())
	}
	e.kill()
}

// flushed ends the life once both ends have failed and all their work requests are flushed.
func (c *conn) flushed() {
	if c.phase != breaking {
		return
	}
	for _, e := range c.ends {
		if !e.flushed() {
			c.later(8*time.Millisecond, c.flushed)
			return
		}
	}
	c.phase = ending
	c.finish()
}

// finish checks the results of the life, and ends the life.
func (c *conn) finish() {
	if c.phase != ending { // a node has crashed
		return
	}
	for _, e := range c.ends {
		if !e.n.awake() && !e.crashed {
			c.later(time.Millisecond, c.finish)
			return
		}
	}
	for _, e := range c.ends {
		e.verify()
	}
	for _, e := range c.ends {
		if !e.closed && c.byCM {
			e.disconnect()
		}
	}
	reset := c.rnd.IntN(3) == 0
	for _, e := range c.ends {
		switch {
		case e.closed:
		case reset:
			e.reset()
		default:
			e.close()
		}
	}
	c.nextLife()
}

// nextLife begins another life, or none.
func (c *conn) nextLife() {
	c.phase, c.ends = waiting, [2]*end{}
	if c.lives--; c.lives <= 0 {
		c.over = true
		return
	}
	c.later(within(c.rnd, 5*time.Millisecond), c.begin)
}

// crashed takes note that a node is gone.
func (c *conn) crashed(n *node) {
	if c.phase == waiting || c.nodes[0] != n && c.nodes[1] != n {
		return
	}
	c.broken = true
	gone := true
	for i, e := range c.ends {
		if e != nil && c.nodes[i] == n {
			e.dead()
		}
		gone = gone && (e == nil || e.closed)
	}
	switch {
	case gone:
		c.nextLife()
	case c.phase == opening && c.nodes[0] == n:
		c.refuse()
	case c.phase == opening: // the other end hears of the crash from its connection manager
	case c.phase == running || c.phase == ending:
		c.phase = breaking
		c.breakOff()
		c.flushed()
	}
}

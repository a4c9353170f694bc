package whole

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Some completion queues are tight: they have room for few completions, and their programs do not look for a
// while. So tight queues overrun. Completions from before the loss are polled, and none from behind the loss; Poll and
// an event tell of the loss, and all QPs of the queue fail. No other QPs fail, but for the peers of those QPs.

const (
	tightRoom = 20                   // completions of a tight queue, at most
	sleepTime = 3 * time.Millisecond // the time for which the queue's program does not look, at most
)

// cqueue is a completion queue, as the programs that poll it know it.
type cqueue struct {
	n     *node
	cq    *verbs.CQ
	rnd   *rand.Rand
	room  int
	tight bool   // the queue may be too small
	ends  []*end // that use it
	ud    *udEnd // that uses it, or nil

	left  int // completions of closed ends, at most
	peak  int // completions that may have waited at a time since the queue was empty
	taken int // completions since the queue was empty

	sleeps time.Duration // until when nobody looks
	bell   bell
	lost   bool // Poll has told of a loss
	told   int  // events that told of the loss
}

func newQueue(n *node, room int) *cqueue {
	cq, err := n.dev.CreateCQ(room)
	n.w.must(err)
	x := &cqueue{n: n, cq: cq, room: cq.Cap(), rnd: rand.New(rand.NewPCG(n.w.plan.Seed, 0xc9e<<32+uint64(n.w.queues)))}
	n.w.queues++
	x.drawBell()
	n.queues = append(n.queues, x)
	return x
}

// drawQueues gives a new end its queues: the node's, its own, or tight ones, which ends may share.
func (e *end) drawQueues() {
	n := e.n
	own := e.rnd.IntN(2) == 0 && !e.srq
	r := rand.New(rand.NewPCG(n.w.plan.Seed, uint64(0x71647+100*e.c.index+10*e.c.life+e.side)))
	which, share, room := r.IntN(8), r.IntN(2) == 0, 1+r.IntN(tightRoom)
	sends, recvs := which == 0 || which == 1, which == 0 || which == 2
	if e.srq {
		recvs = (recvs || which == 3) && n.shared.mayLose()
	}
	if n.w.plan.Full && (sends || recvs) {
		x := n.tightQueue(share, room)
		if sends {
			e.scq = x
		}
		if recvs {
			e.rcq = x
		}
		e.c.broken = true
	}
	if e.scq == nil || e.rcq == nil {
		x := n.cq
		if own {
			x = newQueue(n, 2*(64+recvSlotN))
		}
		e.scq, e.rcq = cmp.Or(e.scq, x), cmp.Or(e.rcq, x)
	}
	for _, x := range e.queues() {
		x.ends = append(x.ends, e)
	}
}

// tightQueue returns a new tight queue, or one that there is.
func (n *node) tightQueue(share bool, room int) *cqueue {
	for _, x := range n.queues {
		if share && x.tight && (len(x.ends) > 0 || x.ud != nil) && !x.robbed() {
			return x
		}
	}
	x := newQueue(n, room)
	x.tight = true
	return x
}

// queues returns the one or two queues of the end.
func (e *end) queues() []*cqueue {
	if e.scq == e.rcq {
		return []*cqueue{e.scq}
	}
	return []*cqueue{e.scq, e.rcq}
}

// robbed reports whether completions are lost.
func (x *cqueue) robbed() bool { return x.lost || x.told > 0 }

// robbed reports whether completions of the end may be lost.
func (e *end) robbed() bool { return e.scq.robbed() || e.rcq.robbed() }

func (e *end) tight() bool { return e.scq.tight || e.rcq.tight }

// waiting is how many completions of the end may wait in x: those of work that is posted and was not polled. The end
// may take as many receives of the SRQ as messages are sent to the end.
func (e *end) waiting(x *cqueue) (n int) {
	if e.scq == x {
		n = len(e.ops) - e.done
	}
	switch {
	case e.rcq != x:
	case e.srq:
		n += e.coming()
	default:
		n += int(e.posted - e.taken)
	}
	return n
}

func (x *cqueue) waiting() int {
	n := x.left
	if x.ud != nil {
		n += x.ud.waiting()
	}
	for _, e := range x.ends {
		n += e.waiting(x)
	}
	return n
}

// noteRoom takes note that the end is about to post.
func (e *end) noteRoom() {
	for _, x := range e.queues() {
		x.peak = max(x.peak, x.waiting())
	}
}

// leaveQueues takes a closed end off its queues. Those that nobody uses any more are closed.
func (e *end) leaveQueues() {
	for _, x := range e.queues() {
		x.left += e.waiting(x)
		x.ends = slices.DeleteFunc(x.ends, func(y *end) bool { return y == e })
		if x != x.n.cq && len(x.ends) == 0 && x.ud == nil {
			x.close()
		}
	}
}

func (x *cqueue) close() {
	x.n.w.must(x.cq.Close())
	x.n.queues = slices.DeleteFunc(x.n.queues, func(y *cqueue) bool { return y == x })
}

// look polls, unless the program has something else to do.
func (x *cqueue) look() bool {
	n := x.n
	if x.tight && n.w.now() < x.sleeps {
		return false
	}
	if n.rnd.IntN(3) == 0 {
		return false // later
	}
	if x.tight && x.rnd.IntN(10) == 0 {
		x.sleeps = n.w.now() + within(x.rnd, sleepTime)
		return false
	}
	if x.bell.waits {
		return x.wait()
	}
	return x.poll(1 + n.rnd.IntN(maxPoll))
}

const maxPoll = 16

// drain polls until nothing is left.
func (x *cqueue) drain() {
	for x.poll(maxPoll) {
	}
}

// poll takes up to most completions, and reports whether there were some.
func (x *cqueue) poll(most int) bool {
	var wcs [maxPoll]verbs.WC
	n := x.n
	k, err := x.cq.Poll(wcs[:most])
	if x.lost && !errors.Is(err, verbs.ErrCQOverrun) {
		n.w.failf("%v: %d completions come behind those that were lost, %v", n, k, err)
	}
	x.taken += k
	x.hear()
	defer x.noteDry(k)
	for i := range wcs[:k] {
		x.found(n.completed(&wcs[i]), &wcs[i])
	}
	switch {
	case errors.Is(err, verbs.ErrCQOverrun):
		x.overrun("Poll")
		x.foundNone(true)
		if !x.lost && x.taken < x.room {
			n.w.failf("%v: a queue with room for %d overran, and gave only %d completions", n, x.room, x.taken)
		}
		x.lost = true
	case err != nil:
		n.w.must(err)
	case k == 0:
		if x.told > 0 {
			n.w.failf("%v: an event says that a queue overran, and Poll does not", n)
		}
		x.foundNone(false)
		x.left, x.taken = 0, 0
		x.peak = x.waiting()
	}
	return k > 0
}

// overrun checks that the queue may have overrun.
func (x *cqueue) overrun(who string) {
	n := x.n
	if !x.tight || x.peak <= x.room {
		n.w.failf("%v: %s says that a queue overran which has room for %d; no more than %d were waiting", n, who, x.room, x.peak)
	}
	if !x.robbed() {
		n.w.totals.Overruns++
		n.w.logf("%v: a queue of %d overran, of %v: %s", n, x.room, x.ends, who)
	}
}

// cqEvent is EventCQErr.
func (n *node) cqEvent(cq *verbs.CQ) {
	i := slices.IndexFunc(n.queues, func(x *cqueue) bool { return x.cq == cq })
	if i < 0 {
		n.w.failf("%v: an event of a queue that there is not", n)
	}
	x := n.queues[i]
	x.overrun("an event")
	if x.told++; x.told > 1 {
		n.w.failf("%v: %d events say that a queue overran, want one", n, x.told)
	}
}

// fatalEvent is EventQPFatal.
func (e *end) fatalEvent() {
	if e.fatal++; e.fatal > 1 || e.scq.told+e.rcq.told == 0 || e.qp.State() != verbs.QPStateErr {
		e.n.w.failf("%v: event EVENT_QP_FATAL, %d times, in state %v, want it once after EVENT_CQ_ERR", e, e.fatal, e.qp.State())
	}
}

// settled reports whether everything about the lost completions of a failed end is known.
func (e *end) settled() bool {
	for _, x := range e.queues() {
		if e.robbed() {
			x.drain()
		}
		if x.robbed() && (!x.lost || x.told == 0) {
			return false
		}
	}
	p := e.peer()
	first := e.status == verbs.WCSuccess && !e.scq.robbed() // the overrun made the end fail: no work request had failed
	if e.robbed() && first && !e.killed && p.bad == nil && p.victims == 0 && e.fatal == 0 {
		e.n.w.failf("%v: it failed because a queue overran, and no event says so", e)
	}
	if e.blames && !e.robbed() {
		e.n.w.failf("%v: work was flushed, and nothing was lost", e)
	}
	return true
}

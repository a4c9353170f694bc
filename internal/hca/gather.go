package hca

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// What a program posts one by one, and the acknowledgement of what it has just received, need not leave
// by a system call each. They wait, for company, while the program polls busily, which is while the
// engine's goroutine naps. Posts wait as a turn of their QP, which the program's next poll gives: see
// turns. An acknowledgement waits for the program's answer, whose train it ends, or for a poll that
// finds nothing: see debts. A program may also end with the last message that it takes. What waits then is lost, and
// its peer waits in vain, as it would not with a card. So an acknowledgement waits only if the program has answered
// sureAnswers messages in a row, and has receives for more. And it waits only for peers like us, which
// take it before the answer from the train: a program learns that its SEND has arrived before it sees
// the answer to it. So neither the program nor its answer waits for the acknowledgement's system call. Among
// secured packets nobody sees which is an acknowledgement, so there it does not wait.
//
// One goroutine may drive both ends, as tests and first programs do. It then polls at one end, in vain, for what
// waits at the other. So after vainPolls of them the poll sends it: see serveOthers.
//
// If the nap ends before a poll comes, the goroutine sends what waits. If that has waited for long, the QP
// gathers nothing for gatherPause: its program waits for something else than completions.
type gather struct {
	polls  uint32 // of the send CQ, at the latest post
	unseen uint32 // polls that the engine was not told of: see countPoll

	waits  bool          // something waits for the next poll
	longer uint8         // how often the latest pause was doubled: see late
	owes   bool          // an acknowledgement waits: the QP is among the engine's debts
	debt   uint32        // the number of the latest such
	since  time.Duration // when it began to wait
	after  time.Duration // until when nothing may wait

	delivered     bool  // a receive was completed since the latest transmit
	answers       bool  // the program has sent since the latest message came
	answeredInRow uint8 // messages that the program has answered, up to sureAnswers
}

const (
	// A QP gathers up to gatherPackets packets. With as many it transmits at once.
	gatherPackets = 32

	// A wait of gatherLong or more, when the nap ends, shows that the program does not poll. Programs that do
	// poll come back sooner.
	gatherLong = napTime / 4

	// A QP gathers nothing for gatherPause after the goroutine had to send for it. The nap that was lost is half
	// a percent of that. If it happens again soon the pause doubles, up to gatherLonger times: where a program
	// polls on all processors, the goroutine waits for one of them for long.
	gatherPause  = 200 * napMost
	gatherLonger = 6

	// An acknowledgement may wait once the program has answered sureAnswers messages in a row.
	sureAnswers = 16

	// An acknowledgement of up to shortRun packets in a row may wait. A longer run is a stream, whose window
	// the acknowledgement moves.
	shortRun = 2

	// An acknowledgement may wait if the acknowledge timeout is deferredACK or longer.
	deferredACK = 8 * napMost
)

// mayGather reports whether what was just posted may wait for the program's next poll. The first post
// after a poll may not: the program may be waiting for its effect in some other way. Nor may a post
// while nothing is under way on RC: there is no acknowledgement that it could leave with.
func (q *qp) mayGather() bool {
	polls := q.sendCQ.Polls()
	first := polls != q.gather.polls
	q.gather.polls = polls
	e := q.out.eng
	if e == nil || q.lane.out != nil {
		return false
	}
	if first {
		if q.typ != verbs.QPTypeRC {
			q.countPoll(e)
		}
		return false
	}
	return e.napping.Load() && q.t.Underway(gatherPackets) && q.startWait(q.dev.now())
}

// countPoll tells the engine of polls that it does not see: those that find the completions of UC and UD, which
// come with the posts. Nothing else may come that would wake the goroutine, so that it could nap.
func (q *qp) countPoll(e *engine) {
	g := &q.gather
	if g.unseen++; g.unseen < busyUnseen {
		return
	}
	g.unseen = 0
	e.polls.add(busyUnseen, busyUnseen)
	if !e.napping.Load() {
		e.link.Wake()
	}
}

// startWait notes since when something waits. It reports false if nothing may.
func (q *qp) startWait(now time.Duration) bool {
	if now < q.gather.after {
		return false
	}
	if !q.gather.waits && !q.gather.owes {
		q.gather.since = now
	}
	return true
}

// late is called when the nap has ended before a poll came for what waits.
func (g *gather) late(now time.Duration) {
	if now-g.since >= gatherLong {
		g.pause(now)
	}
}

// pause has nothing wait for a time: the program waits for something else.
func (g *gather) pause(now time.Duration) {
	switch {
	case g.after == 0 || now >= g.after+gatherPause<<g.longer:
		g.longer = 0
	case g.longer < gatherLonger:
		g.longer++
	}
	g.after = now + gatherPause<<g.longer
}

// owe has an acknowledgement wait. It reports whether none did before.
func (g *gather) owe() bool {
	if g.owes {
		return false
	}
	g.owes = true
	g.debt++
	return true
}

// settled is called when the engine has taken the debt off its list.
func (g *gather) settled() { g.owes = false }

// end is called when the QP is about to transmit: nothing waits from then on.
func (g *gather) end() { g.waits, g.owes, g.delivered = false, false, false }

// endWait sends what waits for the program's next poll. The caller is about to end the connection.
func (q *qp) endWait() {
	q.t.Uncork()
	if q.gather.waits || q.gather.owes || q.t.HasPackets() {
		q.transmit(q.dev.now())
	}
}

// wait leaves what q has to send to the program's next poll.
func (q *qp) wait() {
	q.publish()
	q.gather.waits = true
	q.queue()
}

// debts are the QPs of an engine that owe an acknowledgement. The engine's receive lock guards them.
type debts struct {
	list  []debt
	fresh bool // the goroutine slept until now: a program that waited may answer before the acknowledgement leaves
}

// debt is what a QP owes, unless it has answered since.
type debt struct {
	qp *qp
	n  uint32 // gather.debt
}

// answer ends a run of packets for q, which is locked: it sends the answers, or lets an acknowledgement
// wait. It unlocks q. The caller holds e.rx.
func (e *engine) answer(now time.Duration, q *qp) {
	e.answerOr(now, q, e.row <= shortRun && q.security == nil && q.peer.IsAdverb() && q.out.eng == e)
}

// answerNow is answer for packets that came by a lane. Their acknowledgement takes no system call, so it leaves at
// once, and does not depend on what the program does next.
func (e *engine) answerNow(now time.Duration, q *qp) { e.answerOr(now, q, false) }

// answerOr is answer. waits says that the packets and their sender let the acknowledgement wait.
func (e *engine) answerOr(now time.Duration, q *qp, waits bool) {
	q.t.ReleaseMemory()
	waits = waits && q.t.ExpectsMore()
	if e.own && (!waits || q.gather.answeredInRow < sureAnswers) { // the program, which runs elsewhere, may end with what it is told
		q.transmitPublished(&e.batch, now)
	}
	q.publish()
	news := q.gather.delivered && (!q.gather.owes || q.gather.answers)
	if news {
		q.gather.note()
	}
	if waits && news && q.gather.answeredInRow == sureAnswers && (e.debts.fresh || e.napping.Load()) && q.t.DeferACK(deferredACK) && q.startWait(now) {
		if q.gather.owe() {
			e.debts.list = append(e.debts.list, debt{q, q.gather.debt})
		}
	} else {
		if q.gather.owes { // and the peer may have sent again for it
			q.gather.late(now)
		}
		q.transmitPublished(&e.batch, now)
	}
	q.mu.Unlock()
}

// note takes note that a message has come, and whether the one before was answered.
func (g *gather) note() {
	if !g.answers {
		g.answeredInRow = 0
	} else if g.answeredInRow < sureAnswers {
		g.answeredInRow++
	}
	g.answers = false
}

// settle sends the acknowledgements that the first n QPs owe. late says that no poll came for them. now is 0 if
// nobody has looked at the clock yet. The caller holds e.rx.
func (e *engine) settle(now time.Duration, n int, late bool) {
	if n == 0 {
		return
	}
	d := &e.debts
	for _, debt := range d.list[:n] {
		q := debt.qp
		q.mu.Lock()
		if q.gather.owes && q.gather.debt == debt.n { // its program has not answered meanwhile
			if now == 0 {
				now = e.dev.now()
			}
			if late {
				q.gather.late(now)
			}
			if !q.closed {
				q.transmitBy(&e.batch, now)
			}
			q.gather.settled()
		}
		q.mu.Unlock()
	}
	rest := 0
	if n < len(d.list) {
		rest = copy(d.list, d.list[n:])
	}
	for i := rest; i < len(d.list); i++ { // few, mostly one
		d.list[i].qp = nil
	}
	d.list = d.list[:rest]
}

// processEngines are the engines of this process.
var processEngines struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*engine]
}

// join adds e to them, and leave takes it out.
func (e *engine) join() {
	p := &processEngines
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*engine
	if l := p.list.Load(); l != nil {
		list = slices.Clone(*l)
	}
	list = append(list, e)
	p.list.Store(&list)
}

func (e *engine) leave() {
	p := &processEngines
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(*p.list.Load()), func(x *engine) bool { return x == e })
	p.list.Store(&list)
}

// serveOthers works for the other engines of the process, which e's polls may be waiting for, and lets other
// goroutines run. If owed is set, acknowledgements that wait there for a poll leave. The caller does not hold e.rx.
func (e *engine) serveOthers(owed bool) {
	for _, o := range *processEngines.list.Load() {
		if o == e || !o.rx.TryLock() {
			continue
		}
		if n := len(o.debts.list); owed && n > 0 {
			now := o.dev.now()
			for _, d := range o.debts.list {
				d.qp.mu.Lock()
				d.qp.gather.pause(now)
				d.qp.mu.Unlock()
			}
			o.settle(now, n, false)
		}
		if o.outside {
			n, now := o.serveNear(false)
			o.serveFar(now, n, true) // a closed link is the device's end, which its goroutine sees too
		}
		o.rx.Unlock()
	}
	runtime.Gosched()
}

// vainMost is after how many empty polls in a row a poll serves the others. It divides vainPolls.
func vainMost() int {
	if runtime.GOMAXPROCS(0) == 1 {
		return vainPollsAlone
	}
	return vainPolls
}

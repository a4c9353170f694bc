package hca

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// A packet that a program posts alone, and the acknowledgement of a message that has just come, need not leave
// by a system call each. They are delayed while the program polls busily, which is while the engine's goroutine
// naps, and leave together. Posts are delayed as a turn of their QP, which the program's next poll gives: see
// turns. An acknowledgement is delayed until the program's answer, whose train the acknowledgement ends, or until a
// poll finds nothing: see delayedACKs.
//
// A program may end with the last message that it takes. Its delayed acknowledgement is lost then, and its peer waits
// in vain, as a card's peer would not. So an acknowledgement is delayed only if the program has answered
// sureAnswers messages in a row, and has receives for more. And the peer must be an adverb. An adverb takes the
// acknowledgement from the train before the answer, so that a program learns that its SEND has arrived before the
// program sees the answer to that SEND. So neither the program nor its answer waits for the acknowledgement's system
// call. Among secured packets nobody sees which packet is an acknowledgement, so there none is delayed.
//
// One goroutine may drive both ends, as tests and first programs do. The goroutine then polls at one end, in vain, for
// packets that are delayed at the other end. So after vainPolls such polls a poll sends them: see serveOthers.
//
// If the nap ends before a poll comes, the engine's goroutine sends the delayed packets. If these were delayed for long,
// the QP gathers nothing for gatherPause: its program waits for something else than completions.
type gather struct {
	polls  uint32 // of the send CQ, at the latest post
	unseen uint32 // polls that the engine was not told of: see countPoll

	waits      bool          // posts wait for the next poll
	longer     uint8         // how often the latest pause was doubled: see late
	ackDelayed bool          // the QP is among the engine's delayedACKs
	delays     uint32        // the number of the latest delayed acknowledgement
	since      time.Duration // when the delay began
	after      time.Duration // until when nothing may be delayed

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

	// A QP gathers nothing for gatherPause after the goroutine had to send the QP's packets. The nap that was lost is
	// half a percent of the pause. If the goroutine has to send again soon, the pause doubles, up to gatherLonger times:
	// where a program polls on all processors, the goroutine waits for a processor for long.
	gatherPause  = 200 * napMost
	gatherLonger = 6

	// An acknowledgement may be delayed once the program has answered sureAnswers messages in a row.
	sureAnswers = 16

	// An acknowledgement of up to shortRun packets in a row may be delayed. A longer run is a stream, whose window
	// the acknowledgement moves.
	shortRun = 2

	// An acknowledgement may be delayed if the acknowledge timeout is deferredACK or longer.
	deferredACK = 8 * napMost
)

// mayGather reports whether the work requests that were just posted may wait for the program's next poll. The first post
// after a poll may not wait: the program may be waiting for its effect in some other way. Nor may a post
// wait while nothing is under way on RC: no acknowledgement comes with which the post could leave.
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

// countPoll tells the engine of polls that the engine does not see: polls that find the completions of UC and UD, which
// come with the posts. If nothing comes from the network, nothing else wakes the goroutine so that it could nap.
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

// startWait notes when a delay begins. It reports false if nothing may be delayed.
func (q *qp) startWait(now time.Duration) bool {
	if now < q.gather.after {
		return false
	}
	if !q.gather.waits && !q.gather.ackDelayed {
		q.gather.since = now
	}
	return true
}

// late is called when the nap has ended before a poll came for the delayed packets.
func (g *gather) late(now time.Duration) {
	if now-g.since >= gatherLong {
		g.pause(now)
	}
}

// pause has nothing delayed for a time: the program waits for something else than completions.
func (g *gather) pause(now time.Duration) {
	switch {
	case g.after == 0 || now >= g.after+gatherPause<<g.longer:
		g.longer = 0
	case g.longer < gatherLonger:
		g.longer++
	}
	g.after = now + gatherPause<<g.longer
}

// delayACK delays an acknowledgement. It reports whether none was delayed before.
func (g *gather) delayACK() bool {
	if g.ackDelayed {
		return false
	}
	g.ackDelayed = true
	g.delays++
	return true
}

// ackSent is called when the engine takes the delayed acknowledgement off its list.
func (g *gather) ackSent() { g.ackDelayed = false }

// end is called when the QP is about to transmit: nothing is delayed from then on.
func (g *gather) end() { g.waits, g.ackDelayed, g.delivered = false, false, false }

// endWait sends the packets that are delayed. The caller is about to end the connection.
func (q *qp) endWait() {
	q.t.Uncork()
	if q.gather.waits || q.gather.ackDelayed || q.t.HasPackets() {
		q.transmit(q.dev.now())
	}
}

// wait delays q's packets until the program's next poll.
func (q *qp) wait() {
	q.publish()
	q.gather.waits = true
	q.queue()
}

// delayedACKs are the QPs of an engine whose acknowledgement is delayed. The engine's receive lock guards them.
type delayedACKs struct {
	list  []delayedACK
	fresh bool // the goroutine slept until now: a program that waited may answer before the acknowledgement leaves
}

// delayedACK is a delayed acknowledgement. If the QP has transmitted since, the acknowledgement has left.
type delayedACK struct {
	qp *qp
	n  uint32 // gather.delays
}

// answer ends a run of packets for q, which is locked: it sends the answers, or delays an acknowledgement.
// It unlocks q. The caller holds e.rx.
func (e *engine) answer(now time.Duration, q *qp) {
	e.answerOr(now, q, e.row <= shortRun && q.security == nil && q.peer.IsAdverb() && q.out.eng == e)
}

// answerNow is answer for packets that came by a lane. Their acknowledgement takes no system call, so it leaves at
// once, whatever the program does next.
func (e *engine) answerNow(now time.Duration, q *qp) { e.answerOr(now, q, false) }

// answerOr is answer. waits says whether the packets and their sender let the acknowledgement be delayed.
func (e *engine) answerOr(now time.Duration, q *qp, waits bool) {
	q.t.ReleaseMemory()
	waits = waits && q.t.ExpectsMore()
	if e.own && (!waits || q.gather.answeredInRow < sureAnswers) { // the program, which runs elsewhere, may end with this message
		q.transmitPublished(&e.batch, now)
	}
	q.publish()
	news := q.gather.delivered && (!q.gather.ackDelayed || q.gather.answers)
	if news {
		q.gather.note()
	}
	if waits && news && q.gather.answeredInRow == sureAnswers && (e.delayed.fresh || e.napping.Load()) && q.t.DeferACK(deferredACK) && q.startWait(now) {
		if q.gather.delayACK() {
			e.delayed.list = append(e.delayed.list, delayedACK{q, q.gather.delays})
		}
	} else {
		if q.gather.ackDelayed { // and the peer may have repeated packets for want of it
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

// sendDelayed sends the acknowledgements of the first n QPs on the list. late says whether the delay ended without a
// poll. now is 0 if nobody has looked at the clock yet. The caller holds e.rx.
func (e *engine) sendDelayed(now time.Duration, n int, late bool) {
	if n == 0 {
		return
	}
	d := &e.delayed
	for _, ack := range d.list[:n] {
		q := ack.qp
		q.mu.Lock()
		if q.gather.ackDelayed && q.gather.delays == ack.n { // the program has not answered meanwhile
			if now == 0 {
				now = e.dev.now()
			}
			if late {
				q.gather.late(now)
			}
			if !q.closed {
				q.transmitBy(&e.batch, now)
			}
			q.gather.ackSent()
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

// join adds e to the engines of the process, and leave removes e.
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
// goroutines run. If acks is set, the acknowledgements that are delayed there leave. The caller does not hold e.rx.
func (e *engine) serveOthers(acks bool) {
	for _, o := range *processEngines.list.Load() {
		if o == e || !o.rx.TryLock() {
			continue
		}
		if n := len(o.delayed.list); acks && n > 0 {
			now := o.dev.now()
			for _, d := range o.delayed.list {
				d.qp.mu.Lock()
				d.qp.gather.pause(now)
				d.qp.mu.Unlock()
			}
			o.sendDelayed(now, n, false)
		}
		if o.outside {
			n, now := o.serveNear(false)
			o.serveFar(now, n, true) // a closed link is the device's end, which its goroutine sees too
		}
		o.rx.Unlock()
	}
	runtime.Gosched()
}

// vainMost is the number of empty polls in a row after which a poll serves the other engines. It divides vainPolls.
func vainMost() int {
	if runtime.GOMAXPROCS(0) == 1 {
		return vainPollsAlone
	}
	return vainPolls
}

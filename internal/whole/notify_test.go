package whole

import "github.com/adverb-rdma/adverb/verbs"

// Some programs do not poll, but wait until a completion queue rings: they arm the queue by Notify, poll once more, as
// verbs ask for, and look again when the queue's event comes. So a wake-up that is lost leaves work undone. Whoever
// polls without the event, as others than the program do now and then, finds no completion that should have rung. And
// an event never comes without a completion that the queue was armed for (GuaranteeExactEvents).

// ringing says whether a completion rings a queue that is armed for solicited ones.
type ringing uint8

const (
	rings ringing = iota
	mayRing
	silent
)

// bell is the knowledge that the program of a completion queue has of the queue's events.
type bell struct {
	waits     bool // the program waits for the event, and does not poll
	solicited bool // for solicited completions, and now and then the program looks by itself

	armed     bool
	narrow    bool // for solicited completions only
	clean     bool // the queue has been empty since it was armed
	owed      bool // the event has come, and its completion was not polled yet
	owedSolic bool // the owed completion is a solicited one
	looks     bool // the program looks until it finds nothing
}

// drawBell decides whether the program waits.
func (x *cqueue) drawBell() {
	waits, solicited := x.rnd.IntN(2) == 0, x.rnd.IntN(3) == 0
	x.bell.waits, x.bell.solicited = waits && x.n.w.plan.Notify, solicited
}

// rung reports whether an event waits.
func (x *cqueue) rung() bool { return len(x.cq.Events()) > 0 }

// asleep reports whether the program waits for the event.
func (x *cqueue) asleep() bool {
	b := &x.bell
	return b.waits && b.armed && b.clean && !b.looks && !x.rung()
}

// wait is a turn of a program that waits.
func (x *cqueue) wait() bool {
	n, b := x.n, &x.bell
	if x.asleep() {
		b.looks = b.narrow && x.rnd.IntN(4) == 0
		return false
	}
	if !b.armed && x.rnd.IntN(8) == 0 {
		x.arm(false)
	}
	did := x.poll(1 + n.rnd.IntN(maxPoll))
	switch {
	case did || x.robbed():
		return did
	case !b.armed:
		x.arm(true)
		return x.poll(1 + n.rnd.IntN(maxPoll))
	}
	b.looks = false
	return false
}

// arm asks for an event. empty says that the queue is empty.
func (x *cqueue) arm(empty bool) {
	n, b := x.n, &x.bell
	n.w.must(x.cq.Notify(b.solicited))
	b.armed, b.narrow, b.clean, b.looks = true, b.solicited, empty, false
	if x.rnd.IntN(4) == 0 { // the wider request holds
		n.w.must(x.cq.Notify(!b.solicited))
		b.narrow = false
	}
	n.napEnd = n.w.now() // who is about to block ends the nap
}

// hear takes the event, if the event has come.
func (x *cqueue) hear() {
	b := &x.bell
	select {
	case <-x.cq.Events():
	default:
		return
	}
	if !b.armed && !x.robbed() {
		x.n.w.failf("%v: an event of a queue that is not armed", x.n)
	}
	x.n.w.totals.Rings++
	b.armed, b.owed, b.owedSolic = false, b.clean, b.narrow
}

// found takes note of a completion.
func (x *cqueue) found(r ringing, wc *verbs.WC) {
	b := &x.bell
	if b.armed && b.clean && (r == rings || !b.narrow) {
		x.n.w.failf("%v: a completion came after the queue was armed, and no event: %+v; armed for solicited ones only: %v", x.n, *wc, b.narrow)
	}
	if r != silent || !b.owedSolic {
		b.owed = false
	}
}

// foundNone takes note that the queue is empty, or that all else is lost.
func (x *cqueue) foundNone(lost bool) {
	b := &x.bell
	switch {
	case lost && b.armed && b.clean:
		x.n.w.failf("%v: a queue that was armed has overrun, and no event came", x.n)
	case b.owed && !lost:
		x.n.w.failf("%v: an event came, and no completion that it was armed for", x.n)
	}
	b.clean, b.owed = true, false
	if lost {
		*b = bell{}
	}
}

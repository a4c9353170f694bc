package hca

import "time"

// What a program posts one by one need not leave by a system call each. It waits, for company, as a turn
// of its QP, which the program's next poll gives: see turns. It waits only while the program polls busily,
// which is while the engine's goroutine naps. If the nap ends before a poll comes, the goroutine sends
// what waits, and the QP gathers nothing for gatherPause: its program waits for something else than
// completions.
type gather struct {
	polls uint32        // of the send CQ, at the latest post
	waits bool          // something waits for the next poll
	after time.Duration // until when nothing may wait
}

const (
	// gatherPackets is how many packets a QP gathers. With as many it transmits at once.
	gatherPackets = 32

	// gatherPause is for how long a QP gathers nothing after the goroutine had to send for it. The
	// napTime that was lost is half a percent of it.
	gatherPause = 200 * napTime
)

// mayGather reports whether what was just posted may wait for the program's next poll. The first post
// after a poll may not: the program may be waiting for its effect in some other way. Nor may a post
// while nothing is under way: there is no acknowledgement that it could leave with.
func (q *qp) mayGather() bool {
	polls := q.sendCQ.Polls()
	first := polls != q.gather.polls
	q.gather.polls = polls
	e := q.out.eng
	return !first && e != nil && e.napping.Load() && q.t.Underway(gatherPackets) &&
		q.dev.now() >= q.gather.after
}

// endWait sends what waits for the program's next poll. The caller is about to end the connection.
func (q *qp) endWait() {
	if q.gather.waits {
		q.transmit(q.dev.now())
	}
}

// wait leaves what q has to send to the program's next poll.
func (q *qp) wait() {
	q.publish()
	q.gather.waits = true
	q.queue()
}

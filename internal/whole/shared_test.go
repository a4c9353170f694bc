package whole

import (
	"bytes"
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// Ends with the SRQ take its receives. A receive whose completion is lost, because the queue overran, comes back to
// nobody: the program posts others in other memory. The number of lost receives is known from the messages that the
// peers have sent, and those that the peers know to have arrived. All other receives are in the SRQ at the end, and
// nobody has written their memory.

const (
	sharedMost  = 24              // receives that the SRQ has room for
	sharedSpare = 15 * sharedMost // slots in the place of those that are lost
)

// TestWholeSharedOverruns makes runs in which many completion queues of ends with the SRQ are too small.
func TestWholeSharedOverruns(t *testing.T) {
	sum, runs := changed(t, 7000, func(p *plan) {
		p.SRQ, p.Full, p.Rob = true, true, true
		p.Ops = 60
	})
	if sum.Robbed < runs/2 {
		t.Errorf("%d receives of SRQs were lost with their completions, in %d runs; want some", sum.Robbed, runs)
	}
}

// sharedRecvs is the node's shared receive queue.
type sharedRecvs struct {
	recvSlots
	n     *node
	srq   *verbs.SRQ
	count int // posted, and not complete
	lost  struct{ least, most int }
}

func newSharedRecvs(n *node) *sharedRecvs {
	slots := sharedMost
	if n.w.plan.robs() {
		slots += sharedSpare
	}
	s := &sharedRecvs{recvSlots: newRecvSlots(n, "shared receives", slots), n: n}
	var err error
	s.srq, err = n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: sharedMost, MaxSGE: 3})
	n.w.must(err)
	return s
}

// mayLose reports whether another end may lose receives: enough slots are left.
func (s *sharedRecvs) mayLose() bool {
	if !s.n.w.plan.robs() {
		return false
	}
	users := 2
	for _, e := range s.n.ends {
		if e.srq && e.rcq.tight {
			users++
		}
	}
	return len(s.posted)-s.count >= users*sharedMost
}

// act posts receives, now and then too few.
func (s *sharedRecvs) act() (did bool) {
	for i, posted := range s.posted {
		if s.count-s.lost.most >= sharedMost {
			return did
		}
		if posted || s.n.rnd.IntN(2) == 0 {
			continue
		}
		_, err := s.srq.PostRecv([]verbs.RecvWR{s.post(i, uint64(i), 1+s.n.rnd.IntN(3))})
		if errors.Is(err, verbs.ErrQueueFull) && s.count-s.lost.least >= sharedMost {
			s.posted[i] = false
			s.lost.most = s.count - sharedMost // no more, since so many are in the SRQ
			return did
		}
		s.n.w.must(err)
		s.count++
		did = true
	}
	return did
}

// done takes note that the receive with an ID has completed.
func (s *sharedRecvs) done(id uint64) {
	s.posted[id] = false
	s.count--
}

// close checks that no receive was lost but those whose completions were: no QP is left that could hold one.
func (s *sharedRecvs) close() {
	w := s.n.w
	s.n.cq.drain()
	mask := verbs.SRQMaskMaxWR
	least, most := s.count-s.lost.most, s.count-s.lost.least
	if least > 1 {
		if err := s.srq.Modify(verbs.SRQAttr{MaxWR: least - 1}, mask); err == nil {
			w.failf("%v: fewer than %d receives are posted to the SRQ, want all that did not complete and were not lost", s.n, least)
		}
	}
	if most > 0 {
		if err := s.srq.Modify(verbs.SRQAttr{MaxWR: most}, mask); err != nil {
			w.failf("%v: more than %d receives are posted to the SRQ, want those that did not complete: %v", s.n, most, err)
		}
	}
	w.must(s.srq.Close())
	if n := s.written(); n > s.lost.most && !w.plan.Kill { // a QP that left may have given a receive back
		w.failf("%v: %d receives are written and did not complete; at most %d were lost", s.n, n, s.lost.most)
	}
	s.r.check()
	s.r.close()
}

// written counts posted receives with other contents than they were posted with.
func (s *sharedRecvs) written() (n int) {
	clean := bytes.Repeat([]byte{untouched}, recvSize)
	for i, posted := range s.posted {
		if posted && !bytes.Equal(s.bytes(i), clean) {
			n++
		}
	}
	return n
}

// coming is how many receives of the SRQ the end may have taken whose completions were not polled.
func (e *end) coming() int {
	if p := e.peer(); p != nil {
		return len(p.messages) - e.got - e.flushes
	}
	return 0
}

// arrivedFor counts the messages to the end that the end's peer knows to have arrived.
func (e *end) arrivedFor() (n int) {
	p := e.peer()
	if p == nil {
		return 0
	}
	for _, o := range p.messages {
		if int(o.wr.ID) < p.done && (p.status == verbs.WCSuccess || int(o.wr.ID) < p.firstBad) {
			n++
		}
	}
	return n
}

// lastWQEEvent is EventQPLastWQEReached: the QP takes no more receives of the SRQ, and their completions are in the
// queue.
func (e *end) lastWQEEvent() {
	if e.lastWQE++; e.lastWQE > 1 || !e.srq || e.qp.State() != verbs.QPStateErr {
		e.n.w.failf("%v: event EVENT_QP_LAST_WQE_REACHED, %d times, in state %v, want it once, in error, with an SRQ", e, e.lastWQE, e.qp.State())
	}
}

// noteDry takes note that a poll found n completions, and so that no more receives of some ends can complete.
func (x *cqueue) noteDry(n int) {
	for _, e := range x.ends {
		if n == 0 && e.rcq == x && e.lastWQE > 0 {
			e.dry = true
		}
	}
}

// sharedCompleted checks the completion of a receive of the SRQ.
func (e *end) sharedCompleted(wc *verbs.WC) {
	if e.dry {
		e.n.w.failf("%v: receive %d completes, and EVENT_QP_LAST_WQE_REACHED and an empty queue came before", e, wc.ID)
	}
	if wc.Status == verbs.WCFlushErr {
		if e.flushes++; e.flushes > 1 || e.coming() < 0 {
			e.n.w.failf("%v: receive %d of the SRQ is flushed, with %d before; want that of a message under way only", e, wc.ID, e.flushes-1)
		}
	}
}

// endsShared checks what a failed end with the SRQ must know: that it takes no more receives, and what came before.
func (e *end) endsShared() {
	if !e.srq || !e.n.w.plan.robs() {
		return
	}
	e.n.asyncEvents()
	if e.lastWQE == 0 {
		e.n.w.failf("%v: it has failed, and no EVENT_QP_LAST_WQE_REACHED came", e)
	}
	if e.rcq.tight {
		e.rcq.drain()
	}
}

// leavesShared takes note of the receives that are lost with an end that has the SRQ and is about to close.
func (e *end) leavesShared() {
	if !e.srq || !e.rcq.tight || e.parts {
		return
	}
	e.parts = true
	e.rcq.drain()
	if !e.rcq.robbed() {
		return
	}
	s := e.n.shared
	least, most := max(0, e.arrivedFor()-e.got), e.coming()
	s.lost.least += least
	s.lost.most += most
	e.n.w.totals.Robbed += uint64(least)
	e.n.w.logf("%v leaves %d to %d receives of the SRQ lost, of %d", e, least, most, s.count)
	if least > most || s.lost.least > s.count {
		e.n.w.failf("%v: it has lost %d to %d receives of the SRQ's %d, of which %d to %d are lost", e, least, most, s.count, s.lost.least, s.lost.most)
	}
}

package queue

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/internal/litmus"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestLitmusPostVersusError: a receive that is posted while the QP goes to ERR is flushed, once: by who takes the QP
// there, or by who posts.
func TestLitmusPostVersusError(t *testing.T) {
	q := newRecvQueue(4, 1)
	var qp sync.Mutex // that of the QP, as devices have one
	flushed := 0
	flush := func() {
		flushed += len(q.Flush(1, nil))
	}
	wrs := recvWRs(1, 1)
	litmus.Race(t, 2, func() {
		flushed = 0
		q.Enter(verbs.QPStateReset)
		q.Enter(verbs.QPStateInit)
	}, func() {
		if _, state, _ := q.Post(wrs); state == verbs.QPStateErr {
			qp.Lock()
			flush()
			qp.Unlock()
		}
	}, func() {
		qp.Lock()
		q.Enter(verbs.QPStateErr)
		flush()
		qp.Unlock()
	}, func() string {
		if flushed != 1 {
			return fmt.Sprintf("%d receives were flushed, want the one that was posted", flushed)
		}
		return ""
	})
}

// TestLitmusPostVersusReset: a receive that is posted while the QP goes to RESET is refused, or forgotten.
func TestLitmusPostVersusReset(t *testing.T) {
	q := newRecvQueue(4, 1)
	wrs := recvWRs(1, 1)
	litmus.Race(t, 2, func() { q.Enter(verbs.QPStateInit) },
		func() { q.Post(wrs) },
		func() { q.Enter(verbs.QPStateReset) },
		func() string {
			if n := q.Credits(); n != 0 {
				return fmt.Sprintf("%d receives are left after RESET, want none", n)
			}
			return ""
		})
}

// TestLitmusPostVersusTake: a receive is taken whole, or later.
func TestLitmusPostVersusTake(t *testing.T) {
	q := newRecvQueue(2, 2)
	wrs := []verbs.RecvWR{{SGList: make([]verbs.SGE, 2)}}
	var taken *Recv
	var got Recv
	take := func() {
		if taken = q.Take(); taken != nil {
			got = *taken
			got.SGList = append(got.SGList[:0:0], taken.SGList...)
		}
	}
	litmus.Race(t, 2, func() {
		wrs[0].ID++
		wrs[0].SGList[0].Addr, wrs[0].SGList[1].Length = wrs[0].ID, uint32(wrs[0].ID)
	}, func() { q.Post(wrs) }, take, func() string {
		if taken == nil {
			take()
		}
		if taken == nil || got.ID != wrs[0].ID || !slices.Equal(got.SGList, wrs[0].SGList) || got.Length != uint32(wrs[0].ID) {
			return fmt.Sprintf("took %+v, want %+v", got, wrs[0])
		}
		complete(q, taken).polled()
		return ""
	})
}

// TestLitmusTakeVersusCredits: receives that are taken meanwhile are never counted as fewer than none.
func TestLitmusTakeVersusCredits(t *testing.T) {
	q := newRecvQueue(4, 1)
	wrs := recvWRs(1, 2)
	credits := 0
	litmus.Race(t, 2, func() { q.Post(wrs) }, func() {
		for r := q.Take(); r != nil; r = q.Take() {
			complete(q, r).polled()
		}
	}, func() { credits = q.Credits() }, func() string {
		if credits < 0 || credits > 2 {
			return fmt.Sprintf("%d credits, want 0 to 2", credits)
		}
		return ""
	})
}

// TestLitmusPushVersusArm: a completion that comes while somebody arms the queue is found by the poll behind it, or
// makes an event.
func TestLitmusPushVersusArm(t *testing.T) {
	events, found := 0, 0
	c := NewCQ(4, CQHooks{Progress: func() bool { return true }, Arming: func() {}, Notify: func() { events++ }, Overrun: func(bool) {}})
	done := []CQE{{WC: verbs.WC{ID: 1}}}
	var wcs [1]verbs.WC
	litmus.Race(t, 2, func() { events, found = 0, 0 }, func() { c.Push(done) }, func() {
		if c.Arm(false) == nil {
			found, _ = c.Poll(wcs[:])
		}
	}, func() string {
		if found == 0 && events != 1 {
			return fmt.Sprintf("the poll found nothing, and there were %d events, want one", events)
		}
		if found == 0 {
			c.Poll(wcs[:])
		} else if events == 0 { // armed still
			c.Push(done)
			c.Poll(wcs[:])
		}
		return ""
	})
}

// TestLitmusPollVersusPost: who finds a place free, because a completion was polled, may use it at once.
func TestLitmusPollVersusPost(t *testing.T) {
	q := newRecvQueue(1, 1)
	c := NewCQ(4, CQHooks{Progress: func() bool { return true }, Arming: func() {}, Notify: func() {}, Overrun: func(bool) {}})
	var id uint64
	var wcs [1]verbs.WC
	var posted int
	post := func(id uint64) int {
		n, _, _ := q.Post(recvWRs(id, 1))
		return n
	}
	litmus.Race(t, 3, func() {
		id++
		if q.Credits() == 0 {
			post(id)
		}
		r := q.Take()
		e := CQE{WC: verbs.WC{ID: r.ID}}
		e.Slots, e.Freed = q.Complete(r)
		c.Push([]CQE{e})
		wcs[0].ID = 0
	}, func() { c.Poll(wcs[:]) }, func() { posted = post(id + 1) }, func() string {
		if wcs[0].ID != id || q.Credits() != posted {
			return fmt.Sprintf("polled the completion of receive %d, with %d of %d posted in the queue; want that of %d", wcs[0].ID, q.Credits(), posted, id)
		}
		return ""
	})
}

package queue

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// testSRQ is a shared receive queue that counts its events.
type testSRQ struct {
	srqPoster
	t      testing.TB
	events int
}

func newTestSRQ(t testing.TB, attr verbs.SRQAttr) *testSRQ {
	s := &testSRQ{t: t}
	s.SRQ = NewSRQ(newPD(), attr, func() { s.events++ })
	return s
}

func (s *testSRQ) modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask) {
	s.t.Helper()
	if err := s.Modify(attr, mask); err != nil {
		s.t.Fatal(err)
	}
}

func (s *testSRQ) wantEvents(n int) {
	s.t.Helper()
	if s.events != n {
		s.t.Errorf("the limit's event was raised %d times, want %d", s.events, n)
	}
}

func (s *testSRQ) wantAttr(want verbs.SRQAttr) {
	s.t.Helper()
	if got, err := s.Query(); got != want || err != nil {
		s.t.Errorf("attributes %+v, %v; want %+v", got, err, want)
	}
}

// done completes a receive of an SRQ, whose completion frees nothing when it is polled.
func done(t testing.TB, u *SRQUser, r *Recv) {
	t.Helper()
	if slots, freed := u.Complete(r); slots != nil || freed != 0 {
		t.Errorf("the completion frees %d places of %p, want none", freed, slots)
	}
}

// TestSRQ: QPs take receives in the order of posting, and complete them in any order.
func TestSRQ(t *testing.T) {
	s := newTestSRQ(t, verbs.SRQAttr{MaxWR: 3, MaxSGE: 2})
	x, y := &SRQUser{SRQ: s.SRQ}, &SRQUser{SRQ: s.SRQ}
	wantNone(t, x)
	for id := uint64(1); id < 30; id += 3 {
		sg := []verbs.SGE{{Addr: id, Length: 7}, {Addr: id + 1, Length: 8}}
		post(t, s, verbs.RecvWR{ID: id, SGList: sg[:2]}, verbs.RecvWR{ID: id + 1, SGList: sg[:1]}, verbs.RecvWR{ID: id + 2})
		clear(sg) // it is the program's again
		a, b := take(t, x, id), take(t, y, id+1)
		c := take(t, x, id+2)
		wantNone(t, y)
		for i, r := range []*Recv{a, b, c} {
			list := []verbs.SGE{{Addr: id, Length: 7}, {Addr: id + 1, Length: 8}}[:2-i]
			if got, want := fmt.Sprint(r.SGList), fmt.Sprint(list); got != want || r.Length != []uint32{15, 7, 0}[i] || r.PD != s.pd {
				t.Errorf("receive %d has %v, %d bytes and PD %p, want %v and PD %p", r.ID, got, r.Length, r.PD, want, s.pd)
			}
		}
		done(t, x, c)
		done(t, y, b)
		done(t, x, a)
	}
	if n := x.Credits(); n != -1 {
		t.Errorf("%d credits, want -1: no QP can count on shared receives", n)
	}
	s.wantEvents(0)
}

// TestSRQErrors: a receive that does not fit is refused with its place in the list.
func TestSRQErrors(t *testing.T) {
	s := newTestSRQ(t, verbs.SRQAttr{MaxWR: 3, MaxSGE: 2})
	n, err := s.Post([]verbs.RecvWR{{ID: 1}, {ID: 2, SGList: make([]verbs.SGE, 3)}, {ID: 3}})
	if n != 1 || !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), "work request 1 of the list: 3 SGEs: the SRQ was created for 2 (max_sge)") {
		t.Errorf("posted %d, %v; want 1 and ErrLimit for work request 1", n, err)
	}
	wantFull(t, s, recvWRs(2, 4), 2, "work request 2 of the list: the SRQ is full: 3 receives wait for messages (max_wr)")
	u := &SRQUser{SRQ: s.SRQ}
	r := take(t, u, 1)
	wantFull(t, s, recvWRs(4, 1), 0, "work request 0 of the list") // it is out, and has its place
	done(t, u, r)
	wantFull(t, s, recvWRs(4, 2), 1)
	for id := uint64(2); id < 5; id++ {
		done(t, u, take(t, u, id))
	}
	wantNone(t, u)

	s = newTestSRQ(t, verbs.SRQAttr{MaxWR: 1}) // of no SGE: one at least is granted
	post(t, s, verbs.RecvWR{SGList: make([]verbs.SGE, 1)})
	s.wantAttr(verbs.SRQAttr{MaxWR: 1, MaxSGE: 1})
}

// TestSRQResize: the queue grows while receives are posted and out, and shrinks to the posted receives.
func TestSRQResize(t *testing.T) {
	s := newTestSRQ(t, verbs.SRQAttr{MaxWR: 3, MaxSGE: 1})
	u := &SRQUser{SRQ: s.SRQ}
	post(t, s, recvWRs(1, 3)...)
	done(t, u, take(t, u, 1))
	post(t, s, recvWRs(4, 1)...) // around the end of the ring
	out := take(t, u, 2)
	s.modify(verbs.SRQAttr{MaxWR: 7}, verbs.SRQMaskMaxWR)
	s.wantAttr(verbs.SRQAttr{MaxWR: 7, MaxSGE: 1})
	wantFull(t, s, recvWRs(5, 9), 4) // beside two that wait, and one that is out
	if out.ID != 2 {
		t.Errorf("the receive that is out has ID %d, want 2", out.ID)
	}
	done(t, u, out)
	wantFull(t, s, recvWRs(9, 2), 1)

	if err := s.Modify(verbs.SRQAttr{MaxWR: 6}, verbs.SRQMaskMaxWR); !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "max_wr 6: 7 receives are posted") {
		t.Errorf("shrink to 6 with 7 posted: %v, want ErrBusy", err)
	}
	s.wantAttr(verbs.SRQAttr{MaxWR: 7, MaxSGE: 1})
	for id := uint64(3); id < 8; id++ {
		done(t, u, take(t, u, id))
	}
	s.modify(verbs.SRQAttr{MaxWR: 2}, verbs.SRQMaskMaxWR)
	wantFull(t, s, recvWRs(10, 1), 0, "2 receives wait for messages")
	done(t, u, take(t, u, 8))
	wantFull(t, s, recvWRs(10, 2), 1)
	s.modify(verbs.SRQAttr{MaxWR: 5}, verbs.SRQMaskMaxWR) // places that it has had before
	wantFull(t, s, recvWRs(11, 4), 3)
	for id := uint64(9); id < 14; id++ {
		done(t, u, take(t, u, id))
	}
	wantNone(t, u)
}

// TestSRQLimit: the event comes once each time that a limit is armed, and at once where too few wait.
func TestSRQLimit(t *testing.T) {
	s := newTestSRQ(t, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
	u := &SRQUser{SRQ: s.SRQ}
	id := uint64(0)
	next := func() {
		t.Helper()
		done(t, u, take(t, u, id))
		id++
	}
	post(t, s, recvWRs(0, 6)...)
	s.modify(verbs.SRQAttr{Limit: 5}, verbs.SRQMaskLimit)
	s.wantAttr(verbs.SRQAttr{MaxWR: 8, MaxSGE: 1, Limit: 5})
	next() // 5 wait: not fewer than the limit
	s.wantEvents(0)
	next()
	s.wantEvents(1)
	s.wantAttr(verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
	next()
	s.wantEvents(1) // not armed any more

	s.modify(verbs.SRQAttr{Limit: 3}, verbs.SRQMaskLimit)
	s.wantEvents(1)
	s.modify(verbs.SRQAttr{Limit: 4}, verbs.SRQMaskLimit)
	s.wantEvents(2) // 3 wait
	s.modify(verbs.SRQAttr{Limit: 3}, verbs.SRQMaskLimit)
	s.modify(verbs.SRQAttr{}, verbs.SRQMaskLimit)
	next()
	s.wantEvents(2) // taken back
	s.modify(verbs.SRQAttr{Limit: 1, MaxWR: 9}, verbs.SRQMaskMaxWR)
	s.wantAttr(verbs.SRQAttr{MaxWR: 9, MaxSGE: 1}) // attributes that the mask does not name stay
}

// TestSRQReset: a QP that goes to RESET gives back the receives that it has taken. They wait again
// before receives that were posted later.
func TestSRQReset(t *testing.T) {
	s := newTestSRQ(t, verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	x, y := &SRQUser{SRQ: s.SRQ}, &SRQUser{SRQ: s.SRQ}
	post(t, s, verbs.RecvWR{ID: 1, SGList: []verbs.SGE{{Addr: 5, Length: 6}}})
	post(t, s, recvWRs(2, 3)...)
	take(t, x, 1)
	x.Reset()
	r := take(t, y, 1)
	if len(r.SGList) != 1 || r.SGList[0].Addr != 5 || r.Length != 6 {
		t.Errorf("the receive came back as %+v, want the SGE of 6 bytes at 5", r)
	}
	x.Reset() // has nothing
	done(t, x, take(t, x, 2))
	x.Reset() // has nothing any more
	wantFull(t, s, recvWRs(5, 2), 1)
	y.Reset()
	wantFull(t, s, recvWRs(6, 1), 0)
	for _, id := range []uint64{1, 3, 4, 5} {
		done(t, x, take(t, x, id))
	}
	wantNone(t, y)
}

// TestSRQClose: a closed queue takes nothing, and a QP that finds it closed has no receive.
func TestSRQClose(t *testing.T) {
	s := newTestSRQ(t, verbs.SRQAttr{MaxWR: 2, MaxSGE: 1})
	u := &SRQUser{SRQ: s.SRQ}
	post(t, s, recvWRs(1, 1)...)
	done(t, u, take(t, u, 1))
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v, want no error", err)
	}
	if n, err := s.Post(recvWRs(2, 1)); n != 0 || !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("posted %d to a closed queue: %v; want 0 and ErrClosed", n, err)
	}
	wantNone(t, u)
}

// TestSRQConcurrent: QPs take and complete while several goroutines post. Each receive is taken once,
// and a QP sees those of one goroutine in their order.
func TestSRQConcurrent(t *testing.T) {
	const posters, users, each = 2, 3, 1000
	s := newTestSRQ(t, verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
	deadline := time.Now().Add(patience)
	var wg sync.WaitGroup
	var taken atomic.Int64
	for p := range uint64(posters) {
		wg.Go(func() {
			for i := uint64(0); i < each && !t.Failed(); {
				id := p<<32 | i
				n, err := s.Post([]verbs.RecvWR{{ID: id, SGList: []verbs.SGE{{Addr: id, Length: uint32(id)}}}})
				switch {
				case err == nil && n == 1:
					i++
				case n == 0 && errors.Is(err, verbs.ErrQueueFull):
					runtime.Gosched()
				default:
					t.Errorf("posted %d, %v; want 1, or 0 and ErrQueueFull", n, err)
				}
			}
		})
	}
	seen := make([]map[uint64]bool, users)
	for k := range seen {
		seen[k] = map[uint64]bool{}
		wg.Go(func() {
			u := &SRQUser{SRQ: s.SRQ}
			var next [posters]uint64
			for taken.Load() < posters*each && !t.Failed() {
				r := u.Take()
				if r == nil {
					if time.Now().After(deadline) {
						t.Errorf("%d receives after %v, want %d", taken.Load(), patience, posters*each)
					}
					runtime.Gosched()
					continue
				}
				taken.Add(1)
				p, i := r.ID>>32, r.ID&(1<<32-1)
				if i < next[p] || r.SGList[0].Addr != r.ID || r.Length != uint32(r.ID) {
					t.Errorf("QP %d took %+v, want one of poster %d from %d on", k, r, p, next[p])
				}
				next[p] = i + 1
				seen[k][r.ID] = true
				done(t, u, r)
			}
		})
	}
	wg.Wait()
	all := map[uint64]bool{}
	for _, m := range seen {
		for id := range m {
			all[id] = true
		}
	}
	if len(all) != posters*each {
		t.Errorf("%d receives were taken, want all %d once", len(all), posters*each)
	}
}

// TestSRQResetOrder: receives that a QP gives back wait in the order of posting.
func TestSRQResetOrder(t *testing.T) {
	s := newTestSRQ(t, verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	u := &SRQUser{SRQ: s.SRQ}
	post(t, s, recvWRs(1, 4)...)
	take(t, u, 1)
	take(t, u, 2)
	u.Reset()
	for id := uint64(1); id < 5; id++ {
		done(t, u, take(t, u, id))
	}
}

// TestSRQCloseTake: a QP that finds a closed queue with receives in it has none.
func TestSRQCloseTake(t *testing.T) {
	s := newTestSRQ(t, verbs.SRQAttr{MaxWR: 2, MaxSGE: 1})
	u := &SRQUser{SRQ: s.SRQ}
	post(t, s, recvWRs(1, 2)...)
	take(t, u, 1)
	s.Close()
	wantNone(t, u)
	u.Reset()
}

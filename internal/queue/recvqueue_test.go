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

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/verbs"
)

// patience is how long a test that works in real time waits before it fails.
const patience = 30 * time.Second

// newPD makes a protection domain with no memory.
func newPD() *mem.PD { return mem.NewKeys(16, nil).NewPD() }

// newRecvQueue makes the queue of a QP in INIT.
func newRecvQueue(places, sges int) *RecvQueue {
	q := NewRecvQueue(newPD(), verbs.QPCap{MaxRecvWR: places, MaxRecvSGE: sges})
	q.Enter(verbs.QPStateInit)
	return q
}

// recvWRs are work requests whose IDs count up from first.
func recvWRs(first uint64, n int) []verbs.RecvWR {
	wrs := make([]verbs.RecvWR, n)
	for i := range wrs {
		wrs[i].ID = first + uint64(i)
	}
	return wrs
}

// poster has the methods for posting of RecvQueue and SRQ.
type poster interface {
	Post(wrs []verbs.RecvWR) (int, error)
}

// recvPoster makes a poster of a RecvQueue.
type recvPoster struct{ *RecvQueue }

func (q recvPoster) Post(wrs []verbs.RecvWR) (int, error) {
	n, _, err := q.RecvQueue.Post(wrs)
	return n, err
}

// srqPoster makes a poster of an SRQ.
type srqPoster struct{ *SRQ }

func (s srqPoster) Post(wrs []verbs.RecvWR) (int, error) { return s.PostRecv(wrs) }

// post posts receives, all of which must fit.
func post(t testing.TB, q poster, wrs ...verbs.RecvWR) {
	t.Helper()
	if n, err := q.Post(wrs); n != len(wrs) || err != nil {
		t.Fatalf("posted %d: %v; want %d and no error", n, err, len(wrs))
	}
}

// wantFull posts receives of which only the first fit do.
func wantFull(t testing.TB, q poster, wrs []verbs.RecvWR, fit int, texts ...string) {
	t.Helper()
	n, err := q.Post(wrs)
	if n != fit || !errors.Is(err, verbs.ErrQueueFull) {
		t.Fatalf("posted %d of %d: %v; want %d and ErrQueueFull", n, len(wrs), err, fit)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q, want one that says %q", err, text)
		}
	}
}

// taker has the methods for taking of RecvQueue and SRQUser.
type taker interface {
	Take() *Recv
	Complete(r *Recv) (slots *atomic.Uint64, freed uint64)
}

// take takes a receive, which must have the ID.
func take(t testing.TB, q taker, id uint64) *Recv {
	t.Helper()
	r := q.Take()
	if r == nil || r.ID != id {
		t.Fatalf("took %+v, want receive %d", r, id)
	}
	return r
}

func wantNone(t testing.TB, q taker) {
	t.Helper()
	if r := q.Take(); r != nil {
		t.Fatalf("took receive %d, want none", r.ID)
	}
}

func wantCredits(t testing.TB, q *RecvQueue, want int) {
	t.Helper()
	if got := q.Credits(); got != want {
		t.Errorf("%d credits, want %d", got, want)
	}
}

// completion has the places that a poll of a receive's completion frees.
type completion struct {
	slots *atomic.Uint64
	freed uint64
}

func complete(q taker, r *Recv) completion {
	slots, freed := q.Complete(r)
	return completion{slots, freed}
}

func (c completion) polled() { c.slots.Store(c.freed) }

// TestRecvQueue: receives are taken in the order of posting, whole, and more often than there are
// places.
func TestRecvQueue(t *testing.T) {
	q := newRecvQueue(4, 3)
	wantNone(t, q)
	wantCredits(t, q, 0)
	for id := uint64(1); id < 20; id += 3 {
		var wrs []verbs.RecvWR
		for i := range uint64(3) {
			var sg []verbs.SGE
			for k := range i + 1 {
				sg = append(sg, verbs.SGE{Addr: id + k, Length: uint32(10 * (id + i + k)), LKey: verbs.LKey(k)})
			}
			wrs = append(wrs, verbs.RecvWR{ID: id + i, SGList: sg})
		}
		post(t, recvPoster{q}, wrs...)
		wantCredits(t, q, 3)
		want := make([]string, 3)
		for i, wr := range wrs {
			want[i] = fmt.Sprint(wr.SGList)
			clear(wr.SGList) // it is the program's again
		}
		for i := range uint64(3) {
			r := take(t, q, id+i)
			wantCredits(t, q, 2-int(i))
			length := uint32(0)
			for k := range i + 1 {
				length += uint32(10 * (id + i + k))
			}
			if got := fmt.Sprint(r.SGList); got != want[i] || r.Length != length || r.PD != q.pd {
				t.Errorf("receive %d has %v, %d bytes, PD %p; want %v, %d and %p", r.ID, got, r.Length, r.PD, want[i], length, q.pd)
			}
			complete(q, r).polled()
		}
		wantNone(t, q)
	}
}

// TestRecvLength: the length of a receive is the sum of its SGEs, up to that of the longest message.
func TestRecvLength(t *testing.T) {
	q := newRecvQueue(4, 2)
	for _, tt := range []struct {
		lengths []uint32
		want    uint32
	}{
		{nil, 0},
		{[]uint32{0, 0}, 0},
		{[]uint32{1<<31 - 1}, 1<<31 - 1},
		{[]uint32{1<<31 - 1, 1}, 1 << 31},
		{[]uint32{1<<31 - 1, 2}, 1 << 31},
		{[]uint32{1<<32 - 1, 1<<32 - 1}, 1 << 31}, // 32 bits do not hold the sum
	} {
		var wr verbs.RecvWR
		for _, n := range tt.lengths {
			wr.SGList = append(wr.SGList, verbs.SGE{Length: n})
		}
		post(t, recvPoster{q}, wr)
		r := take(t, q, 0)
		if r.Length != tt.want {
			t.Errorf("SGEs of %d bytes: length %d, want %d", tt.lengths, r.Length, tt.want)
		}
		complete(q, r).polled()
	}
}

// TestRecvQueueFull: a place is free when the completion of its receive was polled, and not before.
func TestRecvQueueFull(t *testing.T) {
	q := newRecvQueue(4, 1)
	wantFull(t, recvPoster{q}, recvWRs(0, 6), 4, "the receive queue is full: 4 work requests are in it (max_recv_wr)",
		"of which 4 wait for messages", "poll the receive CQ")
	var done []completion
	for id := range uint64(3) {
		r := take(t, q, id)
		wantFull(t, recvPoster{q}, recvWRs(9, 1), 0, fmt.Sprintf("of which %d wait for messages", 3-id))
		done = append(done, complete(q, r))
		wantFull(t, recvPoster{q}, recvWRs(9, 1), 0)
	}
	done[0].polled()
	wantFull(t, recvPoster{q}, recvWRs(4, 2), 1, "of which 2 wait for messages")
	done[2].polled() // completions are polled in order: this one's polling tells of the second too
	wantFull(t, recvPoster{q}, recvWRs(5, 3), 2)
	for id := uint64(3); id < 7; id++ {
		complete(q, take(t, q, id)).polled()
	}
	wantNone(t, q)
	if n, _, err := q.Post(nil); n != 0 || err != nil {
		t.Errorf("posted %d, %v; want nothing and no error", n, err)
	}
}

// TestRecvQueueReset: RESET forgets all receives, and takes none. Completions from before free no place afterwards,
// whether they were made before it or are polled after it.
func TestRecvQueueReset(t *testing.T) {
	q := newRecvQueue(4, 1)
	post(t, recvPoster{q}, recvWRs(0, 4)...)
	var old []completion
	for id := range uint64(3) {
		old = append(old, complete(q, take(t, q, id)))
	}
	old[0].polled()
	q.Enter(verbs.QPStateReset)
	wantNone(t, q)
	wantCredits(t, q, 0)
	if n, state, err := q.Post(recvWRs(9, 1)); n != 0 || state != verbs.QPStateReset || !errors.Is(err, verbs.ErrState) {
		t.Errorf("in RESET: posted %d, in %v, %v; want none and ErrState", n, state, err)
	}
	q.Enter(verbs.QPStateInit)
	wantNone(t, q)
	post(t, recvPoster{q}, recvWRs(10, 4)...)
	for _, c := range old[1:] {
		c.polled()
		wantFull(t, recvPoster{q}, recvWRs(20, 1), 0, "of which 4 wait for messages")
	}
	wantCredits(t, q, 4)
	c := complete(q, take(t, q, 10))
	if c.freed != 1 {
		t.Errorf("the first completion after Reset frees places up to %d, want 1", c.freed)
	}
	old[2].polled()
	wantFull(t, recvPoster{q}, recvWRs(20, 1), 0)
	c.polled()
	wantFull(t, recvPoster{q}, recvWRs(14, 2), 1)
	for id := uint64(11); id < 15; id++ {
		take(t, q, id)
	}
	wantNone(t, q)
}

// TestRecvQueueConcurrent: several goroutines post while another takes. Nothing is lost, comes twice
// or is seen half written, and the receives of one goroutine stay in their order.
func TestRecvQueueConcurrent(t *testing.T) {
	const posters, each, sges = 3, 1000, 2
	q := newRecvQueue(8, sges)
	sg := func(id uint64) []verbs.SGE {
		return []verbs.SGE{{Addr: id, Length: uint32(id)}, {Addr: ^id, LKey: verbs.LKey(id)}}
	}
	deadline := time.Now().Add(patience)
	var wg sync.WaitGroup
	defer wg.Wait()
	var stop atomic.Bool
	defer stop.Store(true)
	for p := range uint64(posters) {
		wg.Go(func() {
			for i := uint64(0); i < each && !stop.Load(); {
				id := p<<32 | i
				n, _, err := q.Post([]verbs.RecvWR{{ID: id, SGList: sg(id)}})
				switch {
				case err == nil && n == 1:
					i++
				case n == 0 && errors.Is(err, verbs.ErrQueueFull):
					runtime.Gosched()
				default:
					t.Errorf("posted %d, %v; want 1, or 0 and ErrQueueFull", n, err)
					return
				}
			}
		})
	}
	var next [posters]uint64
	for got := 0; got < posters*each; {
		if n := q.Credits(); n < 0 || n > 8 {
			t.Fatalf("%d credits, want 0 to 8", n)
		}
		r := q.Take()
		if r == nil {
			if time.Now().After(deadline) {
				t.Fatalf("%d receives after %v, want %d", got, patience, posters*each)
			}
			runtime.Gosched()
			continue
		}
		p, i := r.ID>>32, r.ID&(1<<32-1)
		if p >= posters || i != next[p] {
			t.Fatalf("took receive %d of poster %d, want %d", i, p, next)
		}
		if want := sg(r.ID); fmt.Sprint(r.SGList) != fmt.Sprint(want) || r.Length != uint32(r.ID) {
			t.Fatalf("receive %#x has %v and %d bytes, want %v and %d", r.ID, r.SGList, r.Length, want, uint32(r.ID))
		}
		next[p]++
		got++
		complete(q, r).polled()
	}
	wantNone(t, q)
}

// TestRecvQueueAllocs: no step of a receive allocates.
func TestRecvQueueAllocs(t *testing.T) {
	q := newRecvQueue(4, 2)
	wrs := []verbs.RecvWR{{SGList: make([]verbs.SGE, 2)}, {}}
	if n := testing.AllocsPerRun(100, func() {
		q.Post(wrs)
		for r := q.Take(); r != nil; r = q.Take() {
			complete(q, r).polled()
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

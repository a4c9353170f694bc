package verbs_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cq := must(device(t).CreateCQ(4))(t)
		var wcs [1]verbs.WC

		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		start := time.Now()
		n, err := cq.Wait(ctx, wcs[:])
		cancel()
		wantErr(t, "timeout", err, context.DeadlineExceeded, "wait for cq 1")
		if took := time.Since(start); n != 0 || took != 3*time.Second {
			t.Errorf("%d completions after %v, want none after 3s", n, took)
		}

		ctx, cancel = context.WithCancel(context.Background())
		errs := make(chan error)
		go func() {
			_, err := cq.Wait(ctx, wcs[:])
			errs <- err
		}()
		synctest.Wait()
		cancel()
		wantErr(t, "cancel", <-errs, context.Canceled, "wait for cq 1")

		_, err = cq.Wait(ctx, nil)
		wantErr(t, "no room", err, verbs.ErrInvalid, "no room: wcs is empty")
	})
}

// Wait returns a completion that is there already, even if its context has ended.
func TestWaitFindsCompletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		x.Send(write(8, x.MR(8).SGE(0, 8), y.MR(8).Remote(0)))
		synctest.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		var wcs [4]verbs.WC
		if n, err := x.CQ.Wait(ctx, wcs[:]); n != 1 || err != nil || wcs[0].ID != 8 {
			t.Errorf("%d completions, %v, the first %+v; want one, with ID 8", n, err, wcs[0])
		}
	})
}

// Several goroutines wait on one CQ. Each completion goes to one of them, and none is lost, whether the
// completions come one by one or all at once.
func TestSeveralWaiters(t *testing.T) {
	for _, burst := range []bool{false, true} {
		t.Run(fmt.Sprintf("burst=%v", burst), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, y := pair(t)
				src, dst := x.MR(8), y.MR(8)
				const waiters, rounds = 6, 4
				var mu sync.Mutex
				seen := map[uint64]int{}
				var wg sync.WaitGroup
				for range waiters {
					wg.Go(func() {
						var wcs [1]verbs.WC
						for range rounds {
							if _, err := x.CQ.Wait(context.Background(), wcs[:]); err != nil {
								t.Error(err)
								return
							}
							mu.Lock()
							seen[wcs[0].ID]++
							mu.Unlock()
						}
					})
				}
				synctest.Wait()
				var wrs []verbs.SendWR
				for id := range uint64(waiters * rounds) {
					wrs = append(wrs, write(id, src.SGE(0, 8), dst.Remote(0)))
				}
				if burst {
					x.Send(wrs...)
				} else {
					for i := range wrs {
						x.Send(wrs[i])
						synctest.Wait()
					}
				}
				wg.Wait()
				for id := range uint64(waiters * rounds) {
					if seen[id] != 1 {
						t.Errorf("completion %d was seen %d times, want once", id, seen[id])
					}
				}
			})
		})
	}
}

// A waiter may give up at the moment when a completion comes. The completion then goes to another one.
func TestWaiterGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		src, dst := x.MR(8), y.MR(8)
		for range 50 {
			ctx, cancel := context.WithCancel(context.Background())
			got := make(chan int, 2)
			for _, c := range []context.Context{ctx, context.Background()} {
				go func() {
					var wcs [1]verbs.WC
					n, _ := x.CQ.Wait(c, wcs[:])
					got <- n
				}()
			}
			synctest.Wait()
			go cancel()
			x.Send(write(1, src.SGE(0, 8), dst.Remote(0)))
			if <-got == 1 { // this was the one that is cancelled, so the other still waits
				cancel()
				select {
				case n := <-got:
					if n != 0 {
						t.Fatal("two completions of one work request")
					}
					continue
				default:
				}
				x.Send(write(2, src.SGE(0, 8), dst.Remote(0)))
			}
			<-got
			cancel()
			synctest.Wait()
			var wcs [2]verbs.WC
			if _, err := x.CQ.Poll(wcs[:]); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// event reports whether an event of Notify has come by now.
func event(cq *verbs.CQ) bool {
	synctest.Wait()
	select {
	case <-cq.Events():
		return true
	default:
		return false
	}
}

func TestNotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		src, dst := x.MR(8), y.MR(8)
		take := func(want int) {
			t.Helper()
			var wcs [8]verbs.WC
			if n, err := y.CQ.Poll(wcs[:]); n != want || err != nil {
				t.Errorf("polled %d completions, want %d: %v", n, want, err)
			}
		}
		sendOne := func(flags verbs.SendFlags) {
			t.Helper()
			y.Recv(recv(1, dst.SGE(0, 8)))
			wr := send(1, src.SGE(0, 8))
			wr.Flags |= flags
			x.Send(wr)
			x.Done()
		}

		sendOne(0)
		if event(y.CQ) {
			t.Error("an event that nobody armed")
		}
		check(t, y.CQ.Notify(false))
		if event(y.CQ) {
			t.Error("a completion from before arming made an event")
		}
		take(1) // a program that polls after arming finds it
		sendOne(0)
		if !event(y.CQ) {
			t.Error("no event")
		}
		sendOne(0)
		if event(y.CQ) {
			t.Error("a second event of one arming")
		}
		take(2)

		check(t, y.CQ.Notify(true))
		sendOne(0)
		if event(y.CQ) {
			t.Error("an event for a completion that is not solicited")
		}
		sendOne(verbs.SendSolicited)
		if !event(y.CQ) {
			t.Error("no event for a solicited completion")
		}
		take(2)

		check(t, y.CQ.Notify(true))
		check(t, y.CQ.Notify(false)) // the wider one holds, in either order
		check(t, y.CQ.Notify(true))
		sendOne(0)
		if !event(y.CQ) {
			t.Error("Notify(true) took back Notify(false)")
		}

		check(t, y.CQ.Notify(true))
		check(t, y.QP.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		_, err := y.QP.PostRecv([]verbs.RecvWR{recv(7)})
		check(t, err)
		if !event(y.CQ) {
			t.Error("no event for a completion in error")
		}
		take(2)
	})
}

// A solicited WRITE_WITH_IMM raises an event, as a solicited SEND does. Some users of a CQ may call Wait
// while others use Notify. Wait alone raises no event.
func TestNotifyBesideWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		dst := y.MR(8)
		y.Recv(recv(4))
		check(t, y.CQ.Notify(true))
		got := make(chan verbs.WC)
		wait := func(e *rdmatest.Endpoint) {
			go func() {
				var wcs [1]verbs.WC
				if _, err := e.CQ.Wait(t.Context(), wcs[:]); err != nil {
					t.Error(err)
				}
				got <- wcs[0]
			}()
		}
		wait(y)
		synctest.Wait()
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSolicited, Imm: 9, Remote: dst.Remote(0)})
		if wc := <-got; wc.ID != 4 || wc.Imm != 9 || wc.Op != verbs.WCRecvRDMAWithImm {
			t.Errorf("completion %+v, want ID 4 with immediate 9 by a WRITE", wc)
		}
		if !event(y.CQ) {
			t.Error("the waiter took the event")
		}
		wait(x)
		synctest.Wait()
		x.Send(send(1))
		y.Recv(recv(1))
		if <-got; event(x.CQ) {
			t.Error("an event for a waiter, which Notify did not ask for")
		}
	})
}

func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t, rdmatest.Options{CQ: 8})
		src, dst := x.MR(8), y.MR(8)
		next, due := uint64(1), uint64(1)
		post := func(n int) {
			for range n {
				x.Send(write(next, src.SGE(0, 8), dst.Remote(0)))
				next++
			}
			synctest.Wait()
		}
		take := func(n int) {
			t.Helper()
			for range n {
				if wc := x.Done(); wc.ID != due {
					t.Fatalf("completion %d, want %d", wc.ID, due)
				}
				due++
			}
		}
		post(6)
		take(4) // the ring now wraps with the next completions
		post(5)
		wantErr(t, "Resize", x.CQ.Resize(6), verbs.ErrBusy, "resize cq 1: 7 completions are waiting, more than 6: poll them first")
		if x.CQ.Cap() < 8 {
			t.Errorf("a refused Resize left room for %d, want the 8 of before", x.CQ.Cap())
		}
		check(t, x.CQ.Resize(7))
		check(t, x.CQ.Resize(40))
		if x.CQ.Cap() < 40 {
			t.Errorf("room for %d, want 40", x.CQ.Cap())
		}
		post(33)
		take(40)
		check(t, x.CQ.Resize(1))
		post(1)
		take(1)
		nothing(t, x)
	})
}

// TestOverrun checks that a CQ which is full when a completion comes loses it and says so, and that its
// QPs fail.
func TestOverrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t, rdmatest.Options{CQ: 2})
		src, dst := x.MR(8), y.MR(8)
		got := make(chan error)
		check(t, x.CQ.Notify(true)) // an overrun counts as a failure
		for id := range uint64(3) {
			x.Send(write(id, src.SGE(0, 8), dst.Remote(0)))
		}
		synctest.Wait()
		if e := nextEvent(t, x.Device); e.Type != verbs.EventCQErr || e.CQ != x.CQ || e.QP != nil {
			t.Errorf("first event %+v, want EVENT_CQ_ERR of the CQ", e)
		}
		if e := nextEvent(t, x.Device); e.Type != verbs.EventQPFatal || e.QP != x.QP || e.CQ != nil {
			t.Errorf("second event %+v, want EVENT_QP_FATAL of the QP", e)
		}
		if s := x.QP.State(); s != verbs.QPStateErr {
			t.Errorf("the QP is in %v, want QPS_ERR", s)
		}
		if !event(x.CQ) {
			t.Error("no event of the CQ")
		}
		var wcs [4]verbs.WC
		if n, err := x.CQ.Poll(wcs[:]); n != 2 || err != nil || wcs[0].ID != 0 || wcs[1].ID != 1 {
			t.Errorf("saved %d: %+v, %v; want IDs 0 and 1", n, wcs[:n], err)
		}
		_, err := x.CQ.Poll(wcs[:])
		wantErr(t, "Poll", err, verbs.ErrCQOverrun, "poll cq 1: completions were lost", "full with 2")
		_, err = x.CQ.Wait(context.Background(), wcs[:])
		wantErr(t, "Wait", err, verbs.ErrCQOverrun, "cq 1")
		check(t, x.CQ.Notify(false))
		if !event(x.CQ) {
			t.Error("no event for who arms an overrun CQ")
		}
		// A goroutine that waits when the overrun happens is woken too.
		check(t, y.CQ.Resize(1))
		for range 3 {
			y.Recv(recv(1))
		}
		ctx := context.Background()
		go func() {
			var wcs [1]verbs.WC
			for {
				if _, err := y.CQ.Wait(ctx, wcs[:]); err != nil {
					got <- err
					return
				}
			}
		}()
		synctest.Wait()
		check(t, y.QP.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
		wantErr(t, "Wait", <-got, verbs.ErrCQOverrun)
		for _, c := range []interface{ Close() error }{x.QP, x.CQ, y.QP, y.CQ} {
			check(t, c.Close())
		}
		// Events that concern a closed object are not delivered.
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		if e, err := y.Device.NextEvent(ctx); err == nil {
			t.Errorf("an event of a closed object, want none: %+v", e)
		}
	})
}

// TestCompletionsQP: a completion names its QP, and by it the program's record of the QP. So does a
// completion whose QP was closed before the poll, and another took its place.
func TestCompletionsQP(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	x, y := rdmatest.Connect(t, a, b)
	z := must(x.PD.CreateQP(verbs.QPInitAttr{SendCQ: x.CQ, RecvCQ: x.CQ, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}, Context: "z"}))(t)
	if z.Context() != "z" || x.QP.Context() != nil {
		t.Errorf("contexts %v and %v, want z and nil", z.Context(), x.QP.Context())
	}
	if _, init, err := z.Query(); err != nil || init.Context != "z" {
		t.Errorf("Query says context %v, %v; want z", init.Context, err)
	}
	mr := x.MR(8)
	y.Recv(recv(1, y.MR(8).SGE(0, 8)))
	x.Send(send(1, mr.SGE(0, 8)))
	if wc := y.Done(); wc.QP != y.QP {
		t.Errorf("a receive's QP is %p, want %p", wc.QP, y.QP)
	}
	if wc := x.Done(); wc.QP != x.QP {
		t.Errorf("a send's QP is %p, want %p", wc.QP, x.QP)
	}
	check(t, z.Init(1, 0))
	must(z.PostRecv([]verbs.RecvWR{{ID: 2}}))(t)
	check(t, z.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState)) // flushes the receive
	check(t, z.Close())
	wc := x.Next()
	if wc.ID != 2 || wc.Status != verbs.WCFlushErr || wc.QP != z || wc.QP.Context() != "z" {
		t.Errorf("completion %+v, want the flushed receive 2 of the closed QP", wc)
	}
	_, err := wc.QP.PostRecv([]verbs.RecvWR{{ID: 3}})
	wantErr(t, "post to the QP of a late completion", err, verbs.ErrClosed)
}

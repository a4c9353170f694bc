package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestEvents: events come in their order, up to maxEvents of them, and each to one waiter.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e Events
		ctx, cancel := context.WithCancel(t.Context())
		for i := range maxEvents + 5 {
			e.Add(verbs.AsyncEvent{Port: i})
		}
		for i := range maxEvents {
			if ev, err := e.Next(ctx); err != nil || ev.Port != i+5 {
				t.Fatalf("event %d, %v; want %d, the oldest that is kept", ev.Port, err, i+5)
			}
		}
		// Each waiter gets one event. One that gives up gets none.
		got := make(chan int, 10)
		for range 2 {
			go func() {
				ev, err := e.Next(ctx)
				if err != nil {
					ev.Port = -1
				}
				got <- ev.Port
			}()
		}
		synctest.Wait()
		e.Add(verbs.AsyncEvent{Port: 1})
		e.Add(verbs.AsyncEvent{Port: 2})
		if a, b := <-got, <-got; a+b != 3 {
			t.Errorf("two waiters got %d and %d, want 1 and 2", a, b)
		}
		go func() {
			_, err := e.Next(ctx)
			if errors.Is(err, context.Canceled) {
				got <- 7
			}
		}()
		synctest.Wait()
		cancel()
		if n := <-got; n != 7 {
			t.Errorf("a waiter whose context ended got %d, want context.Canceled", n)
		}

		a, b := new(verbs.QP), new(verbs.QP)
		for _, q := range []*verbs.QP{a, b, a} {
			e.Add(verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: q})
		}
		e.Drop(func(ev verbs.AsyncEvent) bool { return ev.QP == a })
		if ev, err := e.Next(ctx); err != nil || ev.QP != b {
			t.Errorf("event %+v, %v; want the other QP's", ev, err)
		}
		go func() {
			_, err := e.Next(context.Background())
			if errors.Is(err, verbs.ErrClosed) {
				got <- 8
			}
		}()
		synctest.Wait()
		e.Close()
		if n := <-got; n != 8 {
			t.Errorf("a waiter whose device closed got %d, want ErrClosed", n)
		}
	})
}

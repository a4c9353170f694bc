package rdmaio

import (
	"context"
	"errors"
	"fmt"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
)

// The slot of a call that was given up is free when the cancel was posted and the answer has come, whichever is the last. Each
// slot that is free sooner is one message more than the server has receives for, and over iWARP the end.
func TestSlotOfCallGivenUp(t *testing.T) {
	for name, postedFirst := range map[string]bool{"answered, then posted": false, "posted, then answered": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := methods()
				begun, goOn := make(chan struct{}), make(chan struct{})
				s.Handle("wait", func(context.Context, *Call) ([]byte, error) { close(begun); <-goOn; return nil, nil })
				c := newServer(t, rdmatest.Config{}, s).dial(t, Config{Calls: 1})
				ctx, cancel := context.WithCancel(t.Context())
				failed := make(chan error)
				go func() {
					_, err := c.Call(ctx, "wait", nil, Bulk{})
					failed <- err
				}()
				<-begun
				synctest.Wait() // the requester has taken the completion
				held := make([]*request, cap(c.r.free))
				for i := range held { // nothing can be posted
					held[i] = <-c.r.free
				}
				post := func() {
					for _, q := range held {
						c.r.free <- q
					}
				}
				answer := func() { close(goOn) }
				cancel()
				if err := <-failed; !errors.Is(err, context.Canceled) {
					t.Errorf("a call that is given up: %v, want %v", err, context.Canceled)
				}
				first, last := answer, post
				if postedFirst {
					first, last = post, answer
				}
				for i, step := range []func(){first, last} {
					step()
					synctest.Wait()
					if n := len(c.free); n != i {
						t.Errorf("%s: %d slots are free after step %d, want %d", name, n, i+1, i)
					}
				}
				if _, err := c.Call(t.Context(), "upper", nil, Bulk{}); err != nil {
					t.Errorf("the next call in the slot: %v", err)
				}
			})
		})
	}
}

// However calls are given up, each message finds a receive. Over iWARP, which has no RNR, the connection would end.
func TestGivenUpOverIWARP(t *testing.T) {
	if testing.Short() {
		t.Skip("a race of some thousand calls; left out with -short")
	}
	const at = "127.0.91.3"
	d, err := verbs.Open("iw_lo@" + at)
	ok(t, err)
	defer func() { ok(t, d.Close()) }()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for i, calls := range []int{1, 2, 32} {
		t.Run(fmt.Sprint(calls, " slots"), func(t *testing.T) {
			s := methods()
			s.Config = &Config{Calls: calls}
			l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{d}}).Listen(netip.AddrPortFrom(netip.MustParseAddr(at), 0))
			ok(t, err)
			ctx, stop := context.WithCancel(t.Context())
			served := make(chan error)
			go func() { served <- s.Serve(ctx, l) }()
			defer func() {
				stop()
				ok(t, <-served)
				ok(t, l.Close())
			}()
			c, err := Dial(patience(t), l.Addr(), &Config{Calls: calls, Dialer: &rdmacm.Dialer{Devices: []*verbs.Device{d}}})
			ok(t, err)
			defer func() { ok(t, c.Close()) }()
			const rounds = 5000
			var left atomic.Int64
			left.Store(rounds)
			var work sync.WaitGroup
			for j := range 4 * calls {
				dice := rand.New(rand.NewPCG(seed, uint64(i<<16|j)))
				work.Go(func() {
					for left.Add(-1) >= 0 && c.Conn().Cause() == nil {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(dice.IntN(80))*time.Microsecond)
						_, err := c.Call(ctx, "upper", nil, Bulk{})
						if err != nil && ctx.Err() == nil {
							t.Errorf("with %d calls to go: %v", left.Load(), err)
							left.Store(0)
						}
						cancel()
					}
				})
			}
			work.Wait()
			if err := c.Conn().Cause(); err != nil {
				t.Errorf("the connection has ended: %v", err)
			}
		})
	}
}

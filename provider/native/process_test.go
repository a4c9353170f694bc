//go:build linux && (amd64 || arm64)

package native

import (
	"runtime"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// deep calls f at the bottom of n frames, so that the stack grows on the way.
//
//go:noinline
func deep(n int, f func()) byte {
	var room [512]byte
	room[n%len(room)] = byte(n)
	if n == 0 {
		f()
	} else {
		room[0] += deep(n-1, f)
	}
	return room[0] + room[n%len(room)]
}

// TestGrowingStacks: memory that calls hand to C lies outside stacks, which grow, shrink and move while the calls go on.
func TestGrowingStacks(t *testing.T) {
	const goroutines, rounds = 8, 10
	p := newPair(t, fake(t), fakeName)
	want, _, err := p.a.Query()
	check(t, err)
	port := must(p.dev.QueryPort(ibPort))(t)
	stop := make(chan struct{})
	var collector, wg sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC() // stacks shrink
			}
		}
	})
	for g := range goroutines {
		wg.Go(func() {
			for i := range rounds {
				deep((g*rounds+i*37)%400, func() {
					if got, _, err := p.a.Query(); err != nil || got != want {
						t.Errorf("the QP: %+v, %v, want %+v", got, err, want)
					}
					if got, err := p.dev.QueryPort(ibPort); err != nil || got != port {
						t.Errorf("the port: %+v, %v, want %+v", got, err, port)
					}
					var wrs [1]verbs.SendWR
					wrs[0] = p.write(uint64(i))
					wrs[0].Flags = 0
					if _, err := p.b.PostSend(wrs[:0]); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	wg.Wait()
	close(stop)
	collector.Wait()
}

// TestLibraryDisturbs: a library that starts threads and a child and handles a signal does no harm to calls that go on.
func TestLibraryDisturbs(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50 {
			if r := f.disturb(); r != 0 {
				t.Errorf("the library: step %d failed", r)
				return
			}
		}
	}()
	wcs := make([]verbs.WC, 1)
	for i := uint64(0); ; i++ {
		select {
		case <-done:
			return
		default:
			p.postPoll(t, []verbs.SendWR{p.write(i)}, wcs)
			if wcs[0].ID != i || wcs[0].Status != verbs.WCSuccess {
				t.Fatalf("completion %+v, want %d", wcs[0], i)
			}
			if i%64 == 0 {
				runtime.GC()
			}
		}
	}
}

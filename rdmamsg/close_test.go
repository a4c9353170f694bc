package rdmamsg_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmamsg"
	"github.com/adverb-rdma/adverb/rdmatest"
)

// TestNothingIsLeft closes channels at a random point of their traffic. Every call must return, and
// no memory may stay registered: otherwise the PD could not be closed.
func TestNothingIsLeft(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	net := rdmatest.New(t, rdmatest.Config{Loss: 0.005, Reorder: 0.01})
	r := rand.New(rand.NewPCG(net.Seed(), 1))
	config := &rdmamsg.Config{Depth: 4, SendLimit: 1 << 18, RecvLimit: 1 << 18, KeepAlive: 20 * time.Millisecond}
	for range rounds {
		p, q := rdmatest.Connect(t, net.Device(), net.Device(), rdmatest.Options{Cap: config.QPCap()})
		x, y := ready(t, start(t, config, p.QP), start(t, config, q.QP))
		ctx := patience(t)
		var wg sync.WaitGroup
		for i, ch := range []*rdmamsg.Channel{x, y} {
			seed := r.Uint64()
			wg.Go(func() {
				for j := uint64(0); ch.Send(ctx, message(seed, j, 1<<18)) == nil; j++ {
				}
			})
			until := -1
			if i == 0 {
				until = r.IntN(40) // x closes after so many messages, and holds the last
			}
			wg.Go(func() {
				for n := 0; ; n++ {
					m, err := ch.Recv(ctx)
					if err != nil {
						return
					}
					if n == until {
						go ch.Close()
						<-ch.Done()
					}
					m.Release()
				}
			})
		}
		wg.Wait()
		if err := ctx.Err(); err != nil {
			t.Fatalf("the channels do not end: %v; %v", x.Err(), y.Err())
		}
		// The errors name messages in flight, of which there are more or less.
		x.Close()
		y.Close()
		for _, e := range []*rdmatest.Endpoint{p, q} {
			ok(t, e.QP.Close())
			ok(t, e.CQ.Close())
			ok(t, e.PD.Close())
		}
	}
}

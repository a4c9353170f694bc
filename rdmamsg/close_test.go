package rdmamsg_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmamsg"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
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

// TestShutdown checks that Shutdown waits until the peer has heard of the end, and how Recv tells the end: EOF by the
// peer's Shutdown, and ErrClosed after one's own Close.
func TestShutdown(t *testing.T) { synctest.Test(t, testShutdown) }

func testShutdown(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	x, y := newPair(t, nil, a, b)
	net.Partition(a, b)
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := x.Shutdown(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("shutdown while nothing reaches the peer: %v, want %v", err, context.DeadlineExceeded)
	}
	net.Heal(a, b)
	ok(t, x.Shutdown(patience(t)))
	if _, err := y.Recv(patience(t)); err != io.EOF {
		t.Errorf("receive after the peer's shutdown: %v, want %v", err, io.EOF)
	}
	ok(t, y.Close())
	if _, err := y.Recv(patience(t)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("receive after both: %v, want %v", err, verbs.ErrClosed)
	}
}

// TestEndKeepsMessages checks that a large message outlives the channel's end, and that nobody else gets its memory before
// the memory is released.
func TestEndKeepsMessages(t *testing.T) { synctest.Test(t, testEndKeepsMessages) }

func testEndKeepsMessages(t *testing.T) {
	net := rdmatest.New(t)
	x, y := newPair(t, nil, net.Device(), net.Device())
	want := bytes.Repeat([]byte("large"), 20_000)
	ok(t, x.Send(patience(t), want))
	ok(t, x.Close())
	<-y.Done() // by the keep-alive
	synctest.Wait()
	other := y.RecvPool().TryGet(len(want))
	clear(other.Bytes())
	m, err := y.Recv(patience(t))
	ok(t, err)
	if !bytes.Equal(m.Bytes(), want) {
		t.Error("a message that came before the end has other bytes than were sent, want the same: its memory went to others")
	}
	m.Release()
	other.Release()
	if s := y.RecvPool().Stats(); s.Lent != 0 {
		t.Errorf("%d bytes are lent out after all was released, want none", s.Lent)
	}
}

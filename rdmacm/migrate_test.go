package rdmacm

import (
	"context"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// With a listener go the requests that nobody has fetched, with their IDs: their events are reported by the
// new channel. The ID of a request that was fetched stays where it is. So does librdmacm, which gives the ID
// of a request the channel that the listener has when the request is fetched.
func TestMigrateListener(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	n := sim.New(sim.Config{})
	a, b := simDevice(t, n, 1), simDevice(t, n, 2)
	gid, err := b.GID(1, 0)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(err)
	from, to := NewEventChannel(b), NewEventChannel(b)
	l, err := NewID(from, PortSpaceTCP)
	ok(err)
	ok(l.BindAddr(netip.AddrPortFrom(gid.GID.Addr(), 0)))
	ok(l.Listen(0))

	dial := func() <-chan error {
		done := make(chan error, 1)
		go func() {
			conn, err := (&Dialer{Devices: []*verbs.Device{a}}).Dial(ctx, l.LocalAddr(), nil)
			if err == nil {
				err = conn.Close()
			}
			done <- err
		}()
		return done
	}
	queued := func(ch *EventChannel, want int) {
		t.Helper()
		for ctx.Err() == nil {
			ch.mu.Lock()
			got := len(ch.queue)
			ch.mu.Unlock()
			if got == want {
				return
			}
			runtime.Gosched()
		}
		t.Fatalf("a channel has not got %d events", want)
	}
	next := func(ch *EventChannel, want EventType) *ID {
		t.Helper()
		ev, err := ch.Next(ctx)
		ok(err)
		if ev.Type != want {
			t.Fatalf("got event %v, want %v", ev.Type, want)
		}
		return ev.ID
	}
	serve := func(id *ID, ch *EventChannel, dialed <-chan error) {
		t.Helper()
		ok(id.CreateQP(nil, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
		ok(id.Accept(nil))
		for _, want := range []EventType{EventEstablished, EventDisconnected} {
			if got := next(ch, want); got != id {
				t.Fatalf("got %v of another ID", want)
			}
		}
		ok(<-dialed)
		ok(id.Close())
	}

	first := dial()
	queued(from, 1)
	fetched := next(from, EventConnectRequest)
	second := dial()
	queued(from, 1)
	ok(l.Migrate(to))
	queued(from, 0)
	queued(to, 1)
	third := dial()
	queued(to, 2)

	y, z := next(to, EventConnectRequest), next(to, EventConnectRequest)
	serve(y, to, second)
	serve(z, to, third)
	serve(fetched, from, first)
	ok(from.Close())

	last := dial()
	queued(to, 1)
	ok(l.Close()) // a request that nobody has fetched is rejected
	if err := <-last; err == nil {
		t.Error("a request that nobody has fetched: got a connection after the listener was closed")
	}
	ok(to.Close())
}

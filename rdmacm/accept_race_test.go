package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// dialAndGiveUp begins a Dial, and returns the listener that it is to reach. giveUp ends it, and returns when it has ended.
func dialAndGiveUp(ctx context.Context, t *testing.T) (l *Listener, giveUp func()) {
	t.Helper()
	n := rdmatest.New(t)
	a, b := n.Device(), n.Device()
	l, err := (&ListenConfig{Devices: []*verbs.Device{b}}).Listen(netip.MustParseAddrPort("0.0.0.0:0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	es, err := b.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	dialing, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	dialed := make(chan error, 1)
	go func() {
		_, err := (&Dialer{Devices: []*verbs.Device{a}}).Dial(dialing, netip.AddrPortFrom(es[0].GID.Addr(), l.Addr().Port()), nil)
		dialed <- err
	}()
	return l, func() {
		t.Helper()
		cancel()
		if err := <-dialed; err == nil {
			t.Fatal("a Dial that was given up has succeeded")
		}
	}
}

// A request may end just when one goroutine has fetched it, and another one in Accept fetches the news. The first one's
// program hears of it all the same.
func TestRequestOverWhileAccepted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	defer cancel()
	l, giveUp := dialAndGiveUp(ctx, t)
	request, err := l.ch.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	giveUp()
	if ev, err := l.ch.Next(ctx); err != nil || ev.ID != request.ID { // as the other goroutine does
		t.Fatalf("got %+v, %v, want the end of the request", ev, err)
	}
	r := newRequest(request)
	defer r.conn.Close()
	select {
	case <-r.Disconnected():
	case <-ctx.Done():
		t.Error("the request has ended, and Disconnected does not say so")
	}
}

// Accept of a request whose peer has given up says that, and not that the program has called it in the wrong state.
func TestAcceptAfterRequestOver(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	defer cancel()
	l, giveUp := dialAndGiveUp(ctx, t)
	r, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	giveUp()
	select {
	case <-r.Disconnected():
	case <-ctx.Done():
		t.Fatal("the request has ended, and Disconnected does not say so")
	}
	if _, err := r.Accept(ctx, nil); !errors.Is(err, ErrReset) || errors.Is(err, verbs.ErrState) {
		t.Errorf("Accept of a request that is over: got %v, want %v", err, ErrReset)
	}
}

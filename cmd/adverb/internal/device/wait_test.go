package device

import (
	"context"
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// Wait returns a completion that is there or that comes, and ends with its context.
func TestWait(t *testing.T) {
	net := rdmatest.New(t)
	x, y := rdmatest.Connect(t, net.Device(), net.Device())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type result struct {
		id  uint64
		err error
	}
	wait := func() result {
		wcs := make([]verbs.WC, 4)
		n, err := Wait(ctx, y.CQ, wcs)
		if n == 0 {
			return result{0, err}
		}
		return result{wcs[0].ID, err}
	}
	src, dst := x.MR(8), y.MR(8)
	send := verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}}
	y.Recv(verbs.RecvWR{ID: 1, SGList: []verbs.SGE{dst.SGE(0, 8)}}, verbs.RecvWR{ID: 2, SGList: []verbs.SGE{dst.SGE(0, 8)}})

	x.Send(send)
	x.Done() // so the message has arrived
	if got, want := wait(), (result{1, nil}); got != want {
		t.Errorf("a completion that is there: got %+v, want %+v", got, want)
	}

	waited := make(chan result, 1)
	go func() { waited <- wait() }()
	x.Send(send)
	if got, want := <-waited, (result{2, nil}); got != want {
		t.Errorf("a completion that comes: got %+v, want %+v", got, want)
	}

	go func() { waited <- wait() }()
	cancel()
	if got := <-waited; got.id != 0 || !errors.Is(got.err, context.Canceled) {
		t.Errorf("an interruption: got %+v, want %v", got, context.Canceled)
	}
	if got := wait(); got.id != 0 || !errors.Is(got.err, context.Canceled) {
		t.Errorf("after an interruption: got %+v, want %v", got, context.Canceled)
	}
}

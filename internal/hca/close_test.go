package hca

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestCloseReleasesBuffers closes a QP in the middle of traffic of all kinds and uses its buffers for
// something else at once. The device must not touch them any more: the race detector sees a copy by the
// device, and the bytes show one too.
func TestCloseReleasesBuffers(t *testing.T) {
	for _, kind := range []string{"sim", "udp"} {
		for range 5 {
			t.Run(kind, func(t *testing.T) { closeInTraffic(t, kind) })
		}
	}
}

// TestCloseLeaves: who has closed a device is not asked to poll for it any more.
func TestCloseLeaves(t *testing.T) {
	engines := func() int {
		if l := processEngines.list.Load(); l != nil {
			return len(*l)
		}
		return 0
	}
	before := engines()
	x, y := pair(t, "sim", options{})
	if n := engines(); n != before+2 {
		t.Errorf("%d engines of the process with two devices more, want %d", n, before+2)
	}
	x.must(x.hca().Close())
	y.must(y.hca().Close())
	if n := engines(); n != before {
		t.Errorf("%d engines of the process after their Close, want %d", n, before)
	}
}

func closeInTraffic(t *testing.T, kind string) {
	const size, parts = 64 << 10, 4
	x, y := pair(t, kind, options{cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: 4096, timeout: 10})
	mine, theirs := make([]byte, parts*size), make([]byte, parts*size)
	for i := range theirs {
		theirs[i] = 0xee
	}
	mr, err := y.pd.RegMR(mine, everything)
	y.must(err)
	peer, err := x.pd.RegMR(theirs, everything)
	x.must(err)
	part := func(m *verbs.MR, i int) []verbs.SGE { return []verbs.SGE{m.SGE(i*size, size)} }

	// What may touch y's memory: WRITEs and READs of x, SENDs of x into y's receives, and y's own READs.
	traffic := []func() error{
		func() error {
			_, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: part(peer, 0), Remote: mr.Remote(0)}})
			return err
		},
		func() error {
			_, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: part(peer, 1)}})
			return err
		},
		func() error {
			_, err := y.qp.PostRecv([]verbs.RecvWR{{SGList: part(mr, 1)}})
			return err
		},
		func() error {
			_, err := y.qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: part(mr, 2), Remote: peer.Remote(2 * size)}})
			return err
		},
		func() error {
			_, err := x.qp.PostSend([]verbs.SendWR{{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: part(peer, 3), Remote: mr.Remote(3 * size)}})
			return err
		},
	}
	var users sync.WaitGroup
	under := make(chan struct{}, 1) // there is traffic
	stop := make(chan struct{})
	users.Go(func() {
		var wcs [64]verbs.WC
		done := 0
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			err := traffic[i%len(traffic)]()
			if errors.Is(err, verbs.ErrClosed) { // y's; x goes on
				continue
			}
			if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
				t.Errorf("post: %v", err)
				return
			}
			for _, e := range []*end{x, y} {
				n, err := e.cq.Poll(wcs[:])
				if err != nil {
					t.Errorf("poll: %v", err)
					return
				}
				done += n
			}
			if done > 2*len(traffic) {
				select {
				case under <- struct{}{}:
				default:
				}
			}
		}
	})
	select {
	case <-under:
	case <-time.After(patience):
		t.Fatalf("no traffic after %v, want some", patience)
	}
	y.must(y.qp.Close())
	for i := range mine {
		mine[i] = 0x11
	}
	close(stop)
	users.Wait()
	// Whatever is on its way arrives, or is repeated in vain, while x has time. Something is: x may have
	// been done with all when y closed. If its queue is full, it is not.
	if err := traffic[0](); err != nil && !errors.Is(err, verbs.ErrQueueFull) && x.qp.State() == verbs.QPStateRTS {
		t.Errorf("post: %v", err)
	}
	for deadline := time.Now().Add(patience); x.qp.State() == verbs.QPStateRTS; {
		if time.Now().After(deadline) {
			t.Fatalf("the QP is in RTS %v after its peer's has closed, want it to give up", patience)
		}
		if _, err := x.cq.Poll(make([]verbs.WC, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if i := bytes.IndexFunc(mine, func(r rune) bool { return r != 0x11 }); i >= 0 {
		t.Errorf("byte %d of the buffers: got %#x, want what the program has put there after Close", i, mine[i])
	}
	for _, c := range []interface{ Close() error }{mr, peer} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

//go:build linux && (amd64 || arm64)

package native

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// patience bounds the waits of a test that fails.
func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// isGone wants the error of a device that is gone.
func isGone(t *testing.T, what string, err error) {
	t.Helper()
	wantErr(t, what, err, syscall.EIO, "the device has failed or is gone", "open it again")
}

// openFiles is how many descriptors the process has.
func openFiles(t *testing.T) int {
	t.Helper()
	return len(must(os.ReadDir("/proc/self/fd"))(t))
}

// TestGone: a card goes away. Who waits for completions gets an error, what came before stays, the program hears of it once,
// and all may be closed.
func TestGone(t *testing.T) {
	f := fake(t)
	if n := f.open(); n > 0 {
		t.Fatalf("%d devices are open that tests before have left: they would go too, and their events take memory", n)
	}
	for _, c := range []struct {
		name         string
		fatal, atEnd bool
		mute         bool
	}{
		{name: "the driver says so", fatal: true},
		{name: "the kernel has no more events", atEnd: true},
		{name: "both", fatal: true, atEnd: true},
		{name: "the channel is in error", atEnd: true, mute: true},
		{name: "the event, and the channel in error", fatal: true, atEnd: true, mute: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := patience(t)
			files, blocks := openFiles(t), ibv.Used()
			f.mute(c.mute)
			p := newPair(t, f, fakeName)
			f.mute(false)
			srq := must(p.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}))(t)
			armed, empty := must(p.dev.CreateCQ(1))(t), must(p.dev.CreateCQ(1))(t)
			check(t, armed.Notify(true))
			check(t, p.a.PostOneSend(p.write(7)))
			waits := make(chan error, 2)
			for range cap(waits) { // one wakes the other
				go func() {
					_, err := empty.Wait(ctx, make([]verbs.WC, 1))
					waits <- err
				}()
			}

			f.gone(c.fatal, c.atEnd)
			defer f.gone(false, false)
			for range cap(waits) {
				isGone(t, "wait", <-waits)
			}
			select {
			case <-armed.Events():
			case <-ctx.Done():
				t.Error("no value comes on the channel of a CQ that is armed")
			}
			if ev := must(p.dev.NextEvent(ctx))(t); ev.Type != verbs.EventDeviceFatal {
				t.Errorf("event %+v, want %v", ev, verbs.EventDeviceFatal)
			}
			var wcs [2]verbs.WC
			if n, err := p.cq.Wait(ctx, wcs[:]); n != 1 || err != nil || wcs[0].ID != 7 {
				t.Errorf("the completion that came before: %d, %v, ID %d", n, err, wcs[0].ID)
			}
			_, err := p.cq.Poll(wcs[:])
			isGone(t, "poll", err)
			isGone(t, "arm", armed.Notify(false))
			isGone(t, "post a send", p.a.PostOneSend(p.write(8)))
			isGone(t, "post a receive", p.b.PostOneRecv(1))
			_, err = srq.PostRecv(make([]verbs.RecvWR, 1))
			isGone(t, "post to an SRQ", err)
			if c.atEnd {
				_, err = p.dev.CreateCQ(1)
				isGone(t, "create a CQ", err)
			}
			for _, c := range []interface{ Close() error }{empty, armed, srq, p.a, p.b, p.mr, p.cq, p.pd} {
				check(t, c.Close())
			}
			d := p.dev.Provider().(*device)
			check(t, p.dev.Close()) // which ends the goroutines that might tell of it again
			if ev, err := d.NextEvent(ctx); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("another event: %+v, %v", ev, err)
			}
			if n := openFiles(t); n > files {
				t.Errorf("%d files are open, and %d before", n, files)
			}
			if n := ibv.Used(); n != blocks {
				t.Errorf("%d blocks of memory are in use, and %d before", n, blocks)
			}
			f.gone(false, false)
			newPair(t, f, fakeName) // a new one works
		})
	}
}

// TestGoneCloses: each object of a device that is gone can be closed, even before its events have told of that, and the memory of
// regions stays until the device is.
func TestGoneCloses(t *testing.T) {
	f := fake(t)
	s := tellAll(f) // the memory that stays for the calls of all
	s.end(t)
	before := heldNow(f)
	s = tellAll(f)
	check(t, s.err)
	dev := s.made[0]
	pinnedNow := heldNow(f).pinned
	f.mute(true)
	f.gone(false, true)
	f.mute(false)
	defer f.gone(false, false)
	s.made = s.made[1:]
	s.end(t)
	if n := heldNow(f).pinned; n != pinnedNow {
		t.Errorf("%d memories are pinned, and %d before: the device may write there until it is closed", n, pinnedNow)
	}
	check(t, dev.Close())
	after := heldNow(f)
	if after.objects = before.objects; after != before { // the library keeps its own
		t.Errorf("%+v are held, and %+v before", after, before)
	}
}

// TestGoneGroup: a QP that is attached to a group when its device goes can be closed as any other.
func TestGoneGroup(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	ud := must(p.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: p.cq, RecvCQ: p.cq}))(t)
	check(t, ud.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: rocePort}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	group := verbs.GID{0: 0xff, 1: 0x12, 15: 9}
	check(t, ud.AttachMcast(group))
	f.gone(true, true)
	t.Cleanup(func() { f.gone(false, false) })
	if ev := must(p.dev.NextEvent(patience(t)))(t); ev.Type != verbs.EventDeviceFatal {
		t.Errorf("event %+v, want %v", ev, verbs.EventDeviceFatal)
	}
	check(t, ud.DetachMcast(group))
	check(t, ud.Close())
}

// TestFailedChannel: events that cannot be read any more are the end of the device, and the error says which call failed.
func TestFailedChannel(t *testing.T) {
	f := fake(t)
	ctx := patience(t)
	p := newPair(t, f, fakeName)
	f.fail("ibv_get_cq_event", int32(syscall.EBADF))
	var wg sync.WaitGroup
	cq := must(p.dev.CreateCQ(1))(t)
	wg.Go(func() {
		_, err := cq.Wait(ctx, make([]verbs.WC, 1))
		isGone(t, "wait", err)
		wantErr(t, "wait", err, syscall.EBADF, "ibv_get_cq_event")
	})
	// The call fails at the event, or before, as the goroutine that reads events begins: then these fail.
	_ = p.cq.Notify(false)
	_ = p.a.PostOneSend(p.write(1))
	wg.Wait()
	if ev := must(p.dev.NextEvent(ctx))(t); ev.Type != verbs.EventDeviceFatal || !errors.Is(ev.Cause, syscall.EBADF) {
		t.Errorf("event %+v, want %v for EBADF", ev, verbs.EventDeviceFatal)
	}
	check(t, cq.Close())
}

package main

import (
	"context"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// feedEvents is how many events of one ID may wait. An ID has a handful in its life.
	feedEvents = 16

	// probeAfter is how long a connection may be silent before this end asks whether the peer
	// still exists. A peer that lost its power says no goodbye, and RC has no keepalive.
	probeAfter = 10 * time.Second

	// probeID is the work request ID of that question.
	probeID = ^uint64(0)

	// disconnectWait is how long a disconnected end waits for the peer to agree.
	disconnectWait = 2 * time.Second
)

// feed is what comes to one end of a connection: completions of its CQ and events of its ID, in
// one place. rping and the read/write demonstration have a thread for each of the two in C, and
// share state between them; here one goroutine takes both.
type feed struct {
	ctx    context.Context
	events chan rdmacm.Event
	event  rdmacm.Event // fetched, and behind the completions
	held   bool         // event is there
	cq     *verbs.CQ    // nil while there is none

	wcs      [8]verbs.WC
	next, wc int // of wcs, taken and there

	timer   *time.Timer
	after   time.Duration // of silence, upon which…
	idle    func() error  // …this is called; nil for never
	probing bool          // a probe is under way
}

func newFeed(ctx context.Context) *feed {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &feed{ctx: ctx, events: make(chan rdmacm.Event, feedEvents), timer: t}
}

// routeEvents gives each event of ch to the feed which is the Context of its ID, until ctx or ch
// ends. A request goes to the listener, and its ID has a feed of its own by then.
func routeEvents(ctx context.Context, ch *rdmacm.EventChannel) {
	for {
		ev, err := ch.Next(ctx)
		if err != nil {
			return
		}
		if ev.Type != rdmacm.EventConnectRequest {
			if f, ok := ev.ID.Context.(*feed); ok {
				select {
				case f.events <- ev:
				default: // whoever does not look for so long has given up the ID
				}
			}
			continue
		}
		ev.ID.Context = newFeed(ctx)
		select {
		case ev.ListenID.Context.(*feed).events <- ev:
		case <-ctx.Done():
			ev.ID.Close()
			return
		}
	}
}

// wait blocks for a completion or an event, and returns one of them or an error. What it points
// to holds until the next call. A completion comes before an event that is there as well, so
// that a peer's last message is not lost to its disconnect.
func (f *feed) wait() (*verbs.WC, *rdmacm.Event, error) {
	for {
		wc, err := f.completion()
		if wc != nil || err != nil {
			return wc, nil, err
		}
		if f.held {
			f.held = false
			return nil, &f.event, nil
		}
		var completions <-chan struct{}
		if f.cq != nil {
			// What completed before the arming makes no event.
			if err := f.cq.Notify(false); err != nil {
				return nil, nil, err
			}
			if wc, err := f.completion(); wc != nil || err != nil {
				return wc, nil, err
			}
			completions = f.cq.Events()
		}
		if f.idle != nil {
			f.timer.Reset(f.after)
		}
		select {
		case <-completions:
		case f.event = <-f.events:
			f.held = true
		case <-f.timer.C:
			if err := f.idle(); err != nil {
				return nil, nil, err
			}
		case <-f.ctx.Done():
			return nil, nil, f.ctx.Err()
		}
		f.timer.Stop()
	}
}

// completion returns a completion, or nil if there is none.
func (f *feed) completion() (*verbs.WC, error) {
	if f.cq == nil {
		return nil, nil
	}
	for {
		if f.next == f.wc {
			n, err := f.cq.Poll(f.wcs[:])
			if n == 0 {
				return nil, err
			}
			f.next, f.wc = 0, n
		}
		wc := &f.wcs[f.next]
		f.next++
		if wc.ID == probeID {
			f.probing = false
			if wc.Status == verbs.WCSuccess {
				continue // the peer is there
			}
		}
		return wc, nil
	}
}

// probe makes the feed find out, in a silence, whether the peer is still there: by a WRITE of no
// bytes, which needs no key and of which the peer's program notices nothing. If nobody
// acknowledges it, it fails as any other work request.
func (f *feed) probe(qp *verbs.QP) {
	f.onIdle(probeAfter, func() error {
		if f.probing {
			return nil
		}
		// In an error state the posting fails. Then there is a flushed completion, or an event.
		_, err := qp.PostSend([]verbs.SendWR{{ID: probeID, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}})
		f.probing = err == nil
		return nil
	})
}

// onIdle has idle called whenever nothing comes for so long. An error ends the wait.
func (f *feed) onIdle(after time.Duration, idle func() error) { f.after, f.idle = after, idle }

// drain closes the requests that nobody has taken. The router must have ended.
func (f *feed) drain() {
	for {
		select {
		case ev := <-f.events:
			if ev.Type == rdmacm.EventConnectRequest {
				ev.ID.Close() // which rejects it
			}
		default:
			return
		}
	}
}

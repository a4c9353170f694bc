package cm

import (
	"context"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// feedEvents is how many events of one ID may wait. An ID has a handful in its life.
	feedEvents = 16

	// probeAfter is how long a connection may be silent before this end asks whether the peer
	// still exists. A peer that lost its power says no goodbye, and RC has no keepalive.
	probeAfter = 10 * time.Second

	// ProbeID is the work request ID of that question.
	ProbeID = ^uint64(0)

	// DisconnectWait is how long an end that has disconnected waits for the peer to agree.
	DisconnectWait = 2 * time.Second
)

// Feed brings the news of one end of a connection into one place: completions of its CQ and events of its ID. The C
// programs rping and rdma-server have a thread for each of the two, and share state between the threads. Here one
// goroutine takes both.
type Feed struct {
	CQ *verbs.CQ // nil until the connection has one

	ctx     context.Context
	events  chan rdmacm.Event
	event   rdmacm.Event // the last one received
	pending bool         // event has not been returned yet

	polled      [8]verbs.WC
	next, count int // the completions polled[next:count] have not been returned yet

	timer     *time.Timer
	idleAfter time.Duration // when nothing came for so long, onIdle is called
	onIdle    func() error  // nil for never
	probing   bool          // a probe has been posted and has not completed
}

// NewFeed makes a feed whose Wait ends with ctx.
func NewFeed(ctx context.Context) *Feed {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Feed{ctx: ctx, events: make(chan rdmacm.Event, feedEvents), timer: t}
}

// WithContext returns a feed of the same events whose Wait ends with ctx.
func (f *Feed) WithContext(ctx context.Context) *Feed {
	other := NewFeed(ctx)
	other.events = f.events
	return other
}

// RunWithFeed runs body with an event channel whose events go to feeds: each event goes to the feed
// that is the Context of its ID. body gets a first feed, and sets it as Context of its first ID.
func RunWithFeed(inv *cli.Invocation, ch *rdmacm.EventChannel, body func(*Feed) error) error {
	ctx, cancel := context.WithCancel(inv.Ctx)
	var router sync.WaitGroup
	router.Go(func() { route(ctx, ch) })
	f := NewFeed(ctx)
	err := body(f)
	cancel()
	router.Wait()
	f.drain()
	inv.Explain(ch.Close())
	return err
}

// route gives each event of ch to the feed of its ID, until ctx or ch ends. A connection request
// goes to the feed of the listener. Its ID has got a feed of its own by then. That a listener serves other addresses than
// before is nothing to be done about.
func route(ctx context.Context, ch *rdmacm.EventChannel) {
	for {
		ev, err := ch.Next(ctx)
		if err != nil {
			return
		}
		if ev.Type == rdmacm.EventAddrChange {
			continue
		}
		if ev.Type != rdmacm.EventConnectRequest {
			if f, ok := ev.ID.Context.(*Feed); ok {
				select {
				case f.events <- ev:
				default: // a program that has not looked for so many events has given up the ID
				}
			}
			continue
		}
		ev.ID.Context = NewFeed(ctx)
		select {
		case ev.ListenID.Context.(*Feed).events <- ev:
		case <-ctx.Done():
			ev.ID.Close()
			return
		}
	}
}

// Wait blocks for a completion or an event, and returns one of them or an error. The value that it
// returns a pointer to is good until the next call. If both are there, then the completion comes
// first, so that a peer's last message is not lost to its disconnect.
func (f *Feed) Wait() (*verbs.WC, *rdmacm.Event, error) {
	for {
		wc, err := f.completion()
		if wc != nil || err != nil {
			return wc, nil, err
		}
		if f.pending {
			f.pending = false
			return nil, &f.event, nil
		}
		var completions <-chan struct{}
		if f.CQ != nil {
			// A completion from before the arming makes no event, so poll again after it.
			if err := f.CQ.Notify(false); err != nil {
				return nil, nil, err
			}
			if wc, err := f.completion(); wc != nil || err != nil {
				return wc, nil, err
			}
			completions = f.CQ.Events()
		}
		if f.onIdle != nil {
			f.timer.Reset(f.idleAfter)
		}
		select {
		case <-completions:
		case f.event = <-f.events:
			f.pending = true
		case <-f.timer.C:
			if err := f.onIdle(); err != nil {
				return nil, nil, err
			}
		case <-f.ctx.Done():
			return nil, nil, f.ctx.Err()
		}
		f.timer.Stop()
	}
}

// completion returns a completion, or nil if there is none.
func (f *Feed) completion() (*verbs.WC, error) {
	if f.CQ == nil {
		return nil, nil
	}
	for {
		if f.next == f.count {
			n, err := f.CQ.Poll(f.polled[:])
			if n == 0 {
				return nil, err
			}
			f.next, f.count = 0, n
		}
		wc := &f.polled[f.next]
		f.next++
		if wc.ID == ProbeID {
			f.probing = false
			if wc.Status == verbs.WCSuccess {
				continue // the peer is there
			}
		}
		return wc, nil
	}
}

// Probe makes the feed ask, whenever the connection is silent, whether the peer is still there. It
// asks by a WRITE of no bytes, which needs no key and which the peer's program does not notice. If
// nobody acknowledges the WRITE, then it fails as any other work request does.
func (f *Feed) Probe(qp *verbs.QP) {
	f.OnIdle(probeAfter, func() error {
		if f.probing {
			return nil
		}
		// In an error state the post fails. Then a flushed completion or an event tells of it.
		_, err := qp.PostSend([]verbs.SendWR{{ID: ProbeID, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}})
		f.probing = err == nil
		return nil
	})
}

// OnIdle makes Wait call idle whenever nothing has come for the time after. An error of idle ends
// the Wait.
func (f *Feed) OnIdle(after time.Duration, idle func() error) { f.idleAfter, f.onIdle = after, idle }

// drain closes the connection requests that nobody has taken. The router must have ended.
func (f *Feed) drain() {
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

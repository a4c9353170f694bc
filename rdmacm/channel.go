package rdmacm

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

// EventChannel reports the events of its IDs (struct rdma_event_channel).
type EventChannel struct {
	devices []*verbs.Device // that IDs use; empty stands for those of the registered providers

	// handle takes each event in place of the queue, unless it is nil. It must not block.
	handle func(Event)

	mu      sync.Mutex
	queue   []Event
	ids     int
	closed  bool
	why     error         // the error of Next once the channel is closed, in place of verbs.ErrClosed; or nil
	changed chan struct{} // closed at the next event; nil while nobody waits
}

// NewEventChannel makes a channel (rdma_create_event_channel). Its IDs use the given devices. If
// none are given they use those of the registered providers, which are opened when they are needed
// and stay open until CloseDevices.
func NewEventChannel(devices ...*verbs.Device) *EventChannel {
	return &EventChannel{devices: slices.Clone(devices)}
}

// Next waits for an event (rdma_get_cm_event). Events of one ID come in order.
func (ch *EventChannel) Next(ctx context.Context) (Event, error) {
	for {
		ch.mu.Lock()
		if len(ch.queue) > 0 {
			ev := ch.queue[0]
			ch.queue[0] = Event{}
			ch.queue = ch.queue[1:]
			ch.mu.Unlock()
			return ev, nil
		}
		if ch.closed {
			err := cmp.Or(ch.why, verbs.ErrClosed)
			ch.mu.Unlock()
			return Event{}, opError("wait for a connection manager event", netip.AddrPort{}, netip.AddrPort{}, err)
		}
		if ch.changed == nil {
			ch.changed = make(chan struct{})
		}
		changed := ch.changed
		ch.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, &OpError{Op: "wait for a connection manager event", Err: ctx.Err()}
		}
	}
}

// Close closes the channel (rdma_destroy_event_channel). It fails with verbs.ErrBusy while it has
// IDs. Goroutines in Next get verbs.ErrClosed.
func (ch *EventChannel) Close() error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.ids > 0 {
		return &OpError{Op: "close event channel", Err: verbs.Errorf(verbs.ErrBusy, "%s: close or migrate them first", count(ch.ids, "ID uses it", "IDs use it"))}
	}
	ch.closed = true
	ch.signal()
	return nil
}

// shut closes the channel though it may have IDs, which are about to leave it. The last call without a
// cause, or else the first call, decides the error of Next: why, or verbs.ErrClosed.
func (ch *EventChannel) shut(why error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if !ch.closed || why == nil {
		ch.why = why
	}
	ch.closed = true
	ch.signal()
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// attach counts a new ID.
func (ch *EventChannel) attach() error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return verbs.Errorf(verbs.ErrClosed, "the event channel is closed")
	}
	ch.ids++
	return nil
}

func (ch *EventChannel) detach() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.ids--
}

// add reports an event.
func (ch *EventChannel) add(ev Event) {
	if ch.handle != nil {
		ch.handle(ev)
		return
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.queue = append(ch.queue, ev)
	ch.signal()
}

// addOnce is add for an event that says no more than the one before it of its type and ID, if nobody has fetched that.
func (ch *EventChannel) addOnce(ev Event) {
	ch.mu.Lock()
	waits := slices.ContainsFunc(ch.queue, func(q Event) bool { return q.Type == ev.Type && q.ID == ev.ID })
	ch.mu.Unlock()
	if !waits {
		ch.add(ev)
	}
}

func (ch *EventChannel) signal() {
	if ch.changed != nil {
		close(ch.changed)
		ch.changed = nil
	}
}

// drop removes the event by which an ID was to become known, unless the program has fetched it.
func (ch *EventChannel) drop(id *ID) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	i := slices.IndexFunc(ch.queue, func(ev Event) bool { return ev.ID == id && ev.Type == EventConnectRequest })
	if i < 0 {
		return false
	}
	copy(ch.queue[1:], ch.queue[:i]) // events that are dropped are mostly near the front
	ch.queue[0] = Event{}
	ch.queue = ch.queue[1:]
	return true
}

// unseen returns the IDs of a listener's requests that nobody has fetched.
func (ch *EventChannel) unseen(listener *ID) (ids []*ID) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for i := range ch.queue {
		if ch.queue[i].ListenID == listener {
			ids = append(ids, ch.queue[i].ID)
		}
	}
	return ids
}

// takeRequest removes the events of a request's ID, and returns them, unless the request was fetched.
func (ch *EventChannel) takeRequest(id *ID) []Event {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if !slices.ContainsFunc(ch.queue, func(ev Event) bool { return ev.ID == id && ev.Type == EventConnectRequest }) {
		return nil
	}
	return ch.takeLocked(func(ev *Event) bool { return ev.ID == id })
}

// take removes those events that nobody has fetched and that are of a kind, and returns them.
func (ch *EventChannel) take(of func(*Event) bool) []Event {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.takeLocked(of)
}

// takeLocked is take for callers that hold ch.mu.
func (ch *EventChannel) takeLocked(of func(*Event) bool) (taken []Event) {
	ch.queue = slices.DeleteFunc(ch.queue, func(ev Event) bool {
		if !of(&ev) {
			return false
		}
		taken = append(taken, ev)
		return true
	})
	return taken
}

package verbs

import (
	"context"
	"sync/atomic"
)

// CQ is a completion queue (struct ibv_cq).
type CQ struct {
	object
	dev *Device
	p   ProviderCQ

	events    chan struct{} // for users of Notify
	userArmed atomic.Bool
	waiters   atomic.Int32
	wake      chan struct{} // for Wait
}

// CreateCQ makes a queue of at least entries CQEs (ibv_create_cq); the capacity got is
// CQ.Cap. It must hold every completion that may wait at a time: one that finds no room is
// lost, and the queue and its QPs fail.
func (d *Device) CreateCQ(entries int) (*CQ, error) {
	const verb = "create cq on"
	cq := &CQ{dev: d, events: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	cq.name = d.serial.next("cq")
	if err := d.checkEntries(entries); err != nil {
		return nil, wrap(verb, d.name, err)
	}
	if err := cq.attach(verb, &d.object); err != nil {
		return nil, err
	}
	p, err := d.p.CreateCQ(entries, cq)
	if err != nil {
		cq.detach()
		return nil, wrap(verb, d.name, err)
	}
	cq.p = p
	return cq, nil
}

func (d *Device) checkEntries(entries int) error {
	if entries < 1 {
		return invalidf("%d entries: ask for at least one", entries)
	}
	if entries > d.attr.MaxCQE {
		return Errorf(ErrLimit, "%d entries: the device's limit (max_cqe) is %d", entries, d.attr.MaxCQE)
	}
	return nil
}

// Device returns the device that cq belongs to.
func (cq *CQ) Device() *Device { return cq.dev }

// Provider returns the provider's side of the CQ.
func (cq *CQ) Provider() ProviderCQ { return cq.p }

// Cap returns the number of completions that the queue holds.
func (cq *CQ) Cap() int { return cq.p.Cap() }

// Poll takes completions without blocking (ibv_poll_cq); n is 0 when there are none. When a
// completion was lost for lack of room, Poll gives what was saved and then ErrCQOverrun.
// With several goroutines polling, each completion goes to one of them.
func (cq *CQ) Poll(wcs []WC) (n int, err error) {
	n, err = cq.p.Poll(wcs)
	if err != nil {
		err = wrap("poll", cq.name, err)
	}
	return n, err
}

// Wait polls, and blocks until there is at least one completion or ctx ends. It arms the queue for
// any completion, so that an event which Notify asked for meanwhile may come for an unsolicited one.
func (cq *CQ) Wait(ctx context.Context, wcs []WC) (n int, err error) {
	if len(wcs) == 0 {
		return 0, wrap("wait for", cq.name, invalidf("no room: wcs is empty"))
	}
	if n, err = cq.Poll(wcs); n > 0 || err != nil {
		return n, err
	}
	cq.waiters.Add(1)
	defer func() {
		// The token that woke this goroutine may have stood for several completions, and
		// a goroutine that gives up may have taken the token of one that goes on.
		if cq.waiters.Add(-1) > 0 {
			cq.wakeWaiter()
		}
	}()
	for {
		if err := cq.p.Arm(false); err != nil {
			return 0, wrap("wait for", cq.name, err)
		}
		if n, err = cq.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		select {
		case <-cq.wake:
		case <-ctx.Done():
			return 0, wrap("wait for", cq.name, ctx.Err())
		}
	}
}

// Notify arms one event on Events, at the next completion or, with solicitedOnly, at the next
// solicited or failed one (ibv_req_notify_cq). Completions that came before make no event, so
// poll once more after arming.
func (cq *CQ) Notify(solicitedOnly bool) error {
	cq.userArmed.Store(true)
	return wrap("arm", cq.name, cq.p.Arm(solicitedOnly))
}

// Events receives a value for each event that Notify armed (the completion channel of the C
// library). Events that nobody takes merge into one.
func (cq *CQ) Events() <-chan struct{} { return cq.events }

// Notified is the provider's call for an event that it was armed for. It does not block.
func (cq *CQ) Notified() {
	if cq.userArmed.CompareAndSwap(true, false) {
		select {
		case cq.events <- struct{}{}:
		default:
		}
	}
	if cq.waiters.Load() > 0 {
		cq.wakeWaiter()
	}
}

func (cq *CQ) wakeWaiter() {
	select {
	case cq.wake <- struct{}{}:
	default:
	}
}

// Resize gives the queue room for at least entries CQEs (ibv_resize_cq). It fails with ErrBusy
// if more are waiting.
func (cq *CQ) Resize(entries int) error {
	if err := cq.check("resize"); err != nil {
		return err
	}
	if err := cq.dev.checkEntries(entries); err != nil {
		return wrap("resize", cq.name, err)
	}
	return wrap("resize", cq.name, cq.p.Resize(entries))
}

// Close destroys the queue (ibv_destroy_cq). It fails with ErrBusy while a QP uses it.
// Goroutines in Wait get ErrClosed.
func (cq *CQ) Close() error {
	err := cq.close(cq.p.Close)
	for range cq.waiters.Load() {
		cq.wakeWaiter()
	}
	return err
}

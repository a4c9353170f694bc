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

	events    chan struct{} // the channel of Events
	userArmed atomic.Bool   // by Notify, and the event has not come yet
	waiters   atomic.Int32  // goroutines in Wait
	wake      chan struct{} // wakes one of them
}

// CreateCQ makes a queue for at least entries completions (ibv_create_cq); [CQ.Cap] tells how many
// it holds. The error is ErrInvalid for fewer than one, and ErrLimit beyond DeviceAttr.MaxCQE.
//
// The queue must have room for every completion that may wait in it at a time. A completion that
// finds no room is lost, and the queue and its QPs fail: see [GuaranteeOverrunStatus].
func (d *Device) CreateCQ(entries int) (*CQ, error) { return d.CreateCQEx(CQAttr{Entries: entries}) }

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

// Provider returns the provider's side of the CQ, for implementers of providers.
func (cq *CQ) Provider() ProviderCQ { return cq.p }

// Cap returns how many completions the queue has room for.
func (cq *CQ) Cap() int { return cq.p.Cap() }

// Poll takes up to len(wcs) completions without blocking (ibv_poll_cq). n is 0 if there are none.
// If several goroutines poll, each completion goes to one of them. Poll allocates nothing.
//
// If a completion was lost for lack of room, Poll gives the completions that were saved and after
// them the error ErrCQOverrun, on devices with [GuaranteeOverrunStatus]. If a device of the kernel has
// failed or was taken away, Poll and Wait give the completions that came before, and after them EIO.
func (cq *CQ) Poll(wcs []WC) (n int, err error) {
	n, err = cq.p.Poll(wcs)
	if err != nil {
		err = wrap("poll", cq.name, err)
	}
	return n, err
}

// Wait polls, and blocks until there is at least one completion or ctx ends. It fails with ctx's
// error, with ErrClosed when the queue is closed, and with ErrInvalid if wcs is empty.
//
// A completion that is there is taken even if ctx has ended, so a loop that is to end with ctx looks at it too.
//
// ctx bounds the waiting, and not the work request. Its completion still comes, and the next Wait or
// Poll takes it: a program that goes on tells it by its ID from the one that it waits for then. The
// memory of the work request stays the device's until that completion.
//
// Wait arms the queue for any completion. So if Notify has asked for solicited completions only,
// and Wait is called before one comes, the event may be raised by an unsolicited completion.
func (cq *CQ) Wait(ctx context.Context, wcs []WC) (n int, err error) {
	if len(wcs) == 0 {
		return 0, wrap("wait for", cq.name, invalidf("no room: wcs is empty"))
	}
	if n, err = cq.Poll(wcs); n > 0 || err != nil {
		return n, err
	}
	if cq.Soon() {
		if n, err = cq.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
	}
	cq.waiters.Add(1)
	defer func() {
		// One token may stand for several completions, so others may have work too. And a
		// goroutine that gives up may have taken the token of one that goes on.
		if cq.waiters.Add(-1) > 0 {
			cq.wakeWaiter()
		}
	}()
	for {
		if err := cq.p.Arm(false); err != nil {
			if n, _ = cq.Poll(wcs); n > 0 {
				return n, nil // it came before the failure
			}
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

// Soon looks for a completion for as long as that costs less than to block and be woken, which is 200 µs at most,
// and reports whether one is waiting. It takes none. A program that waits for [CQ.Events] may call it before Notify,
// as Wait does. Where blocking is as cheap, as on devices that interrupt, it returns at once.
func (cq *CQ) Soon() bool {
	s, ok := cq.p.(ProviderCQSpin)
	return ok && s.Soon()
}

// Notify arms one event on [CQ.Events] (ibv_req_notify_cq). The event is raised at the next
// completion or, with solicitedOnly, at the next one that is solicited or failed. If Notify is
// called again before the event, the wider of the two requests holds.
//
// A completion that came before Notify need not raise the event. So a program polls once more
// after Notify, and only then waits for the event. Whether such a completion may raise it depends
// on the device: see [GuaranteeExactEvents].
func (cq *CQ) Notify(solicitedOnly bool) error {
	cq.userArmed.Store(true)
	return wrap("arm", cq.name, cq.p.Arm(solicitedOnly))
}

// Events returns a channel with a value for each event that Notify armed; it stands for the
// completion channel of the C library (ibv_get_cq_event). Events that nobody takes merge into one.
func (cq *CQ) Events() <-chan struct{} { return cq.events }

// Notified is for implementers of providers, who call it when an event comes that Arm asked for. It
// does not block. Programs do not call it.
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

// Resize gives the queue room for at least entries completions (ibv_resize_cq). It fails with
// ErrBusy if more are waiting, with ErrInvalid and ErrLimit as CreateCQ does, and with
// ErrUnsupported on devices that cannot.
func (cq *CQ) Resize(entries int) error {
	if err := cq.check("resize"); err != nil {
		return err
	}
	if err := cq.dev.checkEntries(entries); err != nil {
		return wrap("resize", cq.name, err)
	}
	return wrap("resize", cq.name, cq.p.Resize(entries))
}

// Close destroys the queue (ibv_destroy_cq). It fails with ErrBusy while a QP uses the queue (IBTA C11-17).
// Goroutines in Wait return with ErrClosed.
func (cq *CQ) Close() error {
	err := cq.close(cq.p.Close)
	for range cq.waiters.Load() {
		cq.wakeWaiter()
	}
	return err
}

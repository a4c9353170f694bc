package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/devlog"
	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// Base is the part of a device that knows neither packets nor streams.
type Base struct {
	Name   string
	Netdev link.Netdev
	Keys   *mem.Keys
	Log    devlog.Book

	PDs, CQs, SRQs atomic.Int64 // that are open

	events  queue.Events
	index   int           // of the network interface
	gone    chan struct{} // closed with the device, or when its network interface vanishes
	setGone func()
	changed chan struct{} // receives a value after each look at the network interface
}

// Init makes the base of a device on a network interface. random is of mem.NewKeys.
func (b *Base) Init(name string, netdev link.Netdev, random func() uint32) {
	b.Name, b.Netdev, b.Keys = name, netdev, mem.NewKeys(limits.MaxMR, random)
	b.gone, b.changed = make(chan struct{}), make(chan struct{}, 1)
	b.setGone = sync.OnceFunc(func() { close(b.gone) })
}

// Gone is closed when the device is closed or has failed.
func (b *Base) Gone() <-chan struct{} { return b.gone }

// Changed receives a value when the device has looked at its addresses anew. It holds one value, for one reader.
func (b *Base) Changed() <-chan struct{} { return b.changed }

// TellChanged has those who follow the device's addresses look at them.
func (b *Base) TellChanged() {
	select {
	case b.changed <- struct{}{}:
	default: // the reader of an earlier value will see the present state
	}
}

// IsGone reports whether the device is closed or has failed. A network interface that was gone does not come back.
func (b *Base) IsGone() bool {
	select {
	case <-b.gone:
		return true
	default:
		return false
	}
}

// Look reads the state of the network interface. If the interface has vanished, or another one has its name, Look raises
// DEVICE_FATAL, unless it is the first look: the device cannot go on.
func (b *Base) Look(first bool) (link.NetdevState, error) {
	s, err := b.Netdev.State()
	if first {
		b.index = s.Index
		return s, err
	}
	if err == nil && s.Index != b.index {
		err = link.ErrNoNetdev
	}
	if errors.Is(err, link.ErrNoNetdev) && !b.IsGone() {
		b.Raise(verbs.AsyncEvent{Type: verbs.EventDeviceFatal,
			Cause: fmt.Errorf("network interface %s does not exist any more", b.Netdev.Name())})
		b.setGone()
	}
	return s, err
}

// RaisePort raises the event of a port that has come up or gone down. err is of the look that has found the new state.
func (b *Base) RaisePort(wasUp, isUp bool, err error) {
	switch {
	case isUp && !wasUp:
		b.Raise(verbs.AsyncEvent{Type: verbs.EventPortActive, Port: 1})
	case !isUp && wasUp:
		down := fmt.Errorf("network interface %s is down", b.Netdev.Name())
		if err != nil {
			down = fmt.Errorf("the state of network interface %s cannot be read: %w", b.Netdev.Name(), err)
		}
		b.Raise(verbs.AsyncEvent{Type: verbs.EventPortErr, Port: 1, Cause: down})
	}
}

// Raise raises an asynchronous event, and logs it.
func (b *Base) Raise(e verbs.AsyncEvent) {
	b.events.Add(e)
	b.Log.Event(e)
}

// NextEvent implements verbs.ProviderDevice.
func (b *Base) NextEvent(ctx context.Context) (verbs.AsyncEvent, error) { return b.events.Next(ctx) }

// DropQP forgets the events of a QP that is closed.
func (b *Base) DropQP(user *verbs.QP) {
	b.events.Drop(func(e verbs.AsyncEvent) bool { return e.QP == user })
}

// SetLogger implements verbs.ProviderLogger.
func (b *Base) SetLogger(l *slog.Logger) { b.Log.SetLogger(l, b.Name) }

// Unserved logs that a program which listens on all addresses is not heard at one of them.
func (b *Base) Unserved(at netip.AddrPort, cause error) {
	b.Log.Add(slog.LevelWarn, "unserved", "address not served", slog.String("local", at.String()), devlog.Cause(cause))
}

// End is the first step of a device's Close: who waits for the device hears of its end.
func (b *Base) End() {
	b.setGone()
	b.events.Close()
}

// Release is the last step of a device's Close. It closes the closers, such as packet captures, and joins their errors
// with that of the steps before.
//
// The facade closes no device with open regions, but rdmatest does at the end of a test. Allocated memory stays: a
// goroutine that outlives the test would die of its absence.
func (b *Base) Release(closers []io.Closer, err error) error {
	b.Keys.Unpin()
	errs := []error{err}
	for _, c := range closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

package hca

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// engine drives the QPs of one local address: it receives from the link and serves timers.
type engine struct {
	dev  *Device
	addr netip.Addr
	link link.Link

	rx       sync.Mutex // held while receiving
	arrivals [receiveBatch]link.Datagram
	packet   wire.Packet
	grh      [verbs.GRHSize]byte
	unserved int // receives since timers were served
	senders  senders

	timers timers
	turns  turns
	drops  drops

	polls      atomic.Uint64 // that found nothing
	waits      atomic.Uint64 // announced by expectWait
	napping    atomic.Bool
	endNap     chan struct{}
	sleepUntil atomic.Int64 // ns; until when the goroutine sleeps in the link, 0 while it is awake

	done chan struct{}
}

// engine returns the engine of a local address. It makes the engine at first use.
func (d *Device) engine(addr netip.Addr) (*engine, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := *d.engines.Load()
	for _, e := range all {
		if e.addr == addr {
			return e, nil
		}
	}
	if d.closed {
		return nil, verbs.ErrClosed
	}
	l, err := d.netdev.Open(addr)
	if err != nil {
		return nil, err
	}
	e := &engine{dev: d, addr: addr, link: link.Chain(l, d.config.Middleware...), endNap: make(chan struct{}, 1), done: make(chan struct{})}
	e.timers.next.Store(never)
	more := append(append([]*engine(nil), all...), e)
	d.engines.Store(&more)
	go e.run()
	if s, ok := l.(link.Settler); ok {
		s.Settle()
	}
	return e, nil
}

func (e *engine) close() {
	e.link.Close()
	e.wakeNap()
	<-e.done
}

// run is the goroutine that serves the engine while nobody polls.
func (e *engine) run() {
	defer close(e.done)
	var polls, waits uint64
	nap := time.NewTimer(0)
	defer nap.Stop()
	for {
		n, err := e.work()
		if err != nil {
			return
		}
		if n > 0 || e.turns.due() {
			continue
		}
		newPolls, newWaits := e.polls.Load(), e.waits.Load()
		busy := newPolls-polls >= busyPolls && newWaits == waits
		polls, waits = newPolls, newWaits
		if busy {
			e.nap(nap, waits)
			continue
		}
		// First announce the sleep, then look for turns and timers. Whoever sets one later sees the
		// announcement, and wakes this goroutine.
		e.sleepUntil.Store(never)
		if e.turns.due() {
			e.sleepUntil.Store(0)
			continue
		}
		until := e.timers.next.Load()
		e.sleepUntil.Store(until)
		d := time.Duration(-1)
		if until != never {
			d = max(0, time.Duration(until)-e.dev.now())
		}
		err = e.link.Wait(d)
		e.sleepUntil.Store(0)
		if err != nil {
			return
		}
	}
}

// work gives turns, receives once, and serves timers.
func (e *engine) work() (int, error) {
	e.rx.Lock()
	defer e.rx.Unlock()
	now := e.dev.now()
	e.serveTurns(now, true)
	return e.serve(now)
}

// serve receives once, and serves timers. What waits in the link may be the acknowledgement that a timer
// waits for. So timers are served when the link is empty or, while datagrams keep coming, after every
// timerPatience receives. The caller holds e.rx.
func (e *engine) serve(now time.Duration) (int, error) {
	n, err := e.receive(now)
	if err != nil {
		return 0, err
	}
	if e.unserved++; n == 0 || e.unserved >= timerPatience {
		e.unserved = 0
		e.serveTimers(now)
	}
	return n, nil
}

// poll is work for a program that polls. Where somebody is at it already it does nothing.
func (e *engine) poll() {
	e.polls.Add(1)
	if !e.rx.TryLock() {
		return
	}
	now := e.dev.now()
	e.serveTurns(now, false)
	e.serve(now) // a closed link is the device's end, which its goroutine sees too
	e.rx.Unlock()
}

// nap sleeps for a moment. The program's polls do the work meanwhile. waits is how many waiters had
// announced themselves when the decision to nap was taken.
func (e *engine) nap(t *time.Timer, waits uint64) {
	e.napping.Store(true)
	defer e.napping.Store(false)
	if e.waits.Load() != waits { // a waiter came before the nap showed
		return
	}
	d := napTime
	if until := e.timers.next.Load(); until != never {
		d = min(d, max(0, time.Duration(until)-e.dev.now()))
	}
	t.Reset(d)
	select {
	case <-t.C:
	case <-e.endNap:
	}
}

// expectWait ends a nap: somebody is about to block, and will not poll.
func (e *engine) expectWait() {
	e.waits.Add(1)
	if e.napping.Load() {
		e.wakeNap()
	}
}

func (e *engine) wakeNap() {
	select {
	case e.endNap <- struct{}{}:
	default:
	}
}

// serveTimers calls the QPs whose time has come.
func (e *engine) serveTimers(now time.Duration) {
	if int64(now) < e.timers.next.Load() {
		return
	}
	for q := e.timers.due(now); q != nil; q = e.timers.due(now) {
		q.mu.Lock()
		q.timerAt = never
		if !q.closed {
			if q.t.NextTimeout() <= now {
				q.t.HandleTimeout(now)
			}
			q.transmit(now)
		}
		q.mu.Unlock()
	}
}

// setTimer is called after every change of a QP's timeout. The caller holds q.mu.
func (e *engine) setTimer(q *qp) {
	at := int64(q.t.NextTimeout())
	if at >= q.timerAt {
		return // the timers look at it early enough
	}
	q.timerAt = at
	e.timers.set(q, time.Duration(at))
	if at < e.sleepUntil.Load() {
		e.link.Wake()
	}
}

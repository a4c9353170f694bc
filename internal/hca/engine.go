package hca

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// engine drives the QPs of one shard at one local address: it receives from the link and serves timers.
type engine struct {
	dev   *Device
	shard *shard
	addr  netip.Addr
	link  link.Link

	outside bool            // link is a link.OutsideLink, behind its middleware
	shared  link.SharedLink // the link behind its middleware, if that is shared, or nil

	receiving
	near   near
	timers timers
	turns  turns
	drops  drops
	sleeping

	done chan struct{} // closed when the goroutine has ended
}

// receiving is the part of an engine that one receiver at a time uses, a poll or the goroutine.
type receiving struct {
	rx       sync.Mutex // held while receiving; it guards the rest
	arrivals [receiveBatch]link.Datagram
	packet   wire.Packet
	memory   mem.Keeper // of the packets of a train
	batch    batch      // answers, turns and repeats leave by it
	grh      [verbs.GRHSize]byte
	plain    [secure.Space]byte // the packet inside a secured packet
	row      int                // packets in a row for the QP that is locked
	delayed  delayedACKs
	own      bool // its goroutine is at work, while the program runs on
	unserved int  // receives since timers were served
	vain     int  // polls in a row that have looked at the link and found nothing
	vainMost int  // after so many the others are served
}

// sleeping is the state between the goroutine of an engine and those that may wake the goroutine: whether it sleeps or
// naps, and how many polls and posts come meanwhile.
type sleeping struct {
	polls      pollCount
	posts      atomic.Uint32 // that sent, unless the polls suffice
	waits      atomic.Uint32 // announced by expectWait
	napping    atomic.Bool
	napEnd     time.Duration // of a driven device
	endNap     chan struct{}
	sleepUntil atomic.Int64 // ns; until when the goroutine sleeps in the link, 0 while it is awake
}

// engine returns the engine of a shard at a local address. It makes the engine at first use. Before that it makes the
// first shard's engine there, which takes the packets that are for no shard.
func (d *Device) engine(s *shard, addr netip.Addr) (*engine, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.index > 0 {
		if _, err := d.openEngine(d.shards[0], addr); err != nil {
			return nil, err
		}
	}
	return d.openEngine(s, addr)
}

// openEngine is engine for one shard. The caller holds d.mu.
func (d *Device) openEngine(s *shard, addr netip.Addr) (*engine, error) {
	all := *d.engines.Load()
	for _, e := range all {
		if e.shard == s && e.addr == addr {
			return e, nil
		}
	}
	if d.closed {
		return nil, verbs.ErrClosed
	}
	l, err := s.Netdev.Open(addr)
	if err != nil {
		return nil, err
	}
	e := &engine{
		dev: d, shard: s, addr: addr, link: link.Chain(l, d.config.Middleware...), done: make(chan struct{}),
		receiving: receiving{vainMost: vainMost()},
	}
	_, e.outside = l.(link.OutsideLink)
	e.shared, _ = l.(link.SharedLink)
	e.endNap = make(chan struct{}, 1)
	e.timers.next.Store(never)
	e.polls.expect(0)
	if s.Inbox != nil && !link.IsV1(addr) {
		if e.near.inbox = s.Inbox(addr); e.near.inbox != nil {
			e.near.inbox.OnAsk(e.answerAsk)
			e.near.inbox.OnRecords(e.attend, e.link.Wake)
		}
	}
	more := append(append([]*engine(nil), all...), e)
	d.engines.Store(&more)
	if s.index == 0 {
		first := append(append([]*engine(nil), *d.firstEngines.Load()...), e)
		d.firstEngines.Store(&first)
	}
	e.join()
	if d.config.Driven {
		close(e.done)
		return e, nil
	}
	go e.run()
	if s, ok := l.(link.Settler); ok {
		s.Settle()
	}
	return e, nil
}

func (e *engine) close() {
	e.leave()
	if e.shared != nil {
		e.rx.Lock()
		e.shared.Depart()
		e.rx.Unlock()
	}
	e.link.Close()
	e.wakeNap()
	<-e.done
	e.rx.Lock()
	defer e.rx.Unlock()
	if e.near.inbox != nil {
		e.near.inbox.Close()
	}
}

// DepartAll is for a program that ends and leaves its devices open. It passes on the packets for other processes that
// have come to the devices' links, and would be lost. The devices are not used after DepartAll.
func DepartAll() {
	list := processEngines.list.Load()
	if list == nil {
		return
	}
	for _, e := range *list {
		if e.shared != nil && e.lockFor(departTime) {
			e.shared.Depart()
			e.rx.Unlock()
		}
	}
}

// departTime is how long DepartAll waits for an engine that is at work.
const departTime = 100 * time.Millisecond

// lockFor locks e.rx, and gives up after d. It reports whether e.rx is locked.
func (e *engine) lockFor(d time.Duration) bool {
	for end := time.Now().Add(d); !e.rx.TryLock(); runtime.Gosched() {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// run is the goroutine that serves the engine while nobody polls.
func (e *engine) run() {
	defer close(e.done)
	var slept bool
	var use use
	spin := newSpin()
	nap := time.NewTimer(0)
	defer nap.Stop()
	for {
		if !slept {
			if d := use.napFor(e); d > 0 {
				if e.nap(nap, use.waits, d) && e.rx.TryLock() { // else a poll is at work
					e.serveTimers(e.dev.now())
					e.rx.Unlock()
				}
				continue
			}
		}
		if !e.rx.TryLock() { // a poll is at work
			// If more polls follow, a goroutine that queues up for the lock would slow them.
			if use.polled(e) {
				e.nap(nap, use.waits, napTime)
				continue
			}
			e.rx.Lock()
		}
		woken := e.dev.woken.Load()
		n, delayed, err := e.work(slept)
		e.rx.Unlock()
		if err != nil {
			return
		}
		woke := slept
		slept = false
		if n > 0 {
			spin.found(e.dev.now(), n, e.dev.config.Spin)
		}
		if delayed || n > 0 && e.dev.woken.Load() != woken {
			// A program that waited for a completion goes first, on this very thread. The acknowledgement can
			// then leave with the program's answer.
			runtime.Gosched()
			continue
		}
		if n > 0 || woke || e.turns.due() {
			continue
		}
		if use.polled(e) { // another look would take the lock from the polls, and a core from the program or its peer
			e.nap(nap, use.waits, napTime)
			continue
		}
		if y := e.dev.config.Yielder; !y.Crowded() && spin.mayLook(e.dev.now()) {
			spin.yield(y)
			continue
		}
		// First announce the sleep, then look for turns and timers. Somebody who sets one later sees the
		// announcement, and wakes this goroutine.
		e.sleepUntil.Store(never)
		if e.turns.due() || e.near.full.hasRoom(true) {
			e.sleepUntil.Store(0)
			continue
		}
		until := min(e.timers.next.Load(), e.near.full.until())
		e.sleepUntil.Store(until)
		start := e.dev.now()
		d := time.Duration(-1)
		if until != never {
			d = max(0, time.Duration(until)-start)
		}
		err = e.link.Wait(d)
		e.sleepUntil.Store(0)
		slept = true
		if err != nil {
			return
		}
		spin.slept(e.dev.now() - start)
	}
}

// work gives turns, receives once, and serves timers. It sends the delayed acknowledgements. If the goroutine slept
// before, the acknowledgements of the packets that have just come stay delayed: delayed says whether there are any. The
// caller holds e.rx.
func (e *engine) work(slept bool) (n int, delayed bool, err error) {
	if !slept && e.glance() {
		return 0, false, nil
	}
	before := len(e.delayed.list)
	e.own = true
	n, now := e.serveNear(true)
	e.delayed.fresh = slept
	n, now, err = e.serveFar(now, n, e.looksFar(now, n) || slept)
	e.delayed.fresh, e.own = false, false
	if !slept {
		before = len(e.delayed.list)
	}
	e.sendDelayed(now, before, true)
	return n, len(e.delayed.list) > 0, err
}

// attend is work for a thread that has sent by a lane, or has given a turn to a QP, of this process: see shm.Attend.
func (e *engine) attend() {
	e.rx.Lock()
	defer e.rx.Unlock()
	e.own = true
	if n, _ := e.serveNear(true); n > 0 { // and there may be more
		e.near.inbox.Leave()
	}
	e.own = false
	if e.near.full.n.Load() > 0 { // the goroutine asks for the bell
		e.link.Wake()
	}
}

// serveNear does the work that needs no look at the link: it gives turns, and works off the packets in the lanes. It reads
// the clock only if there may be such work. It returns how many packets came, and when. late is
// serveTurns'. The caller holds e.rx.
func (e *engine) serveNear(late bool) (n int, now time.Duration) {
	if !e.turns.due() && !e.near.busy && e.near.full.n.Load() == 0 && (e.near.inbox == nil || len(e.near.inbox.Lanes()) == 0) {
		return 0, 0
	}
	now = e.dev.now()
	e.serveTurns(now, late)
	e.serveFull(now)
	return e.receiveNear(now), now
}

// serveFar receives once from the link, if look says so, and serves timers. The link may hold the
// acknowledgement that a timer waits for. So timers are served when nothing came or, while packets keep coming,
// after every timerPatience receives. n packets came by lanes; serveFar returns how many came in all, and when.
// The caller holds e.rx.
func (e *engine) serveFar(now time.Duration, n int, look bool) (int, time.Duration, error) {
	if look {
		far, then, err := e.receive(now)
		if e.near.looked = then; far > 0 {
			e.near.far = then
		}
		if err != nil {
			return 0, then, err
		}
		n, now = n+far, then
	}
	if e.unserved++; n == 0 || e.unserved >= timerPatience {
		e.unserved = 0
		e.serveTimers(now)
	}
	return n, now, nil
}

// pollCount counts the polls that found nothing in the CQ and, in its upper half, those of them that received
// something. Both are in one word, since every poll has to count, and an atomic operation costs as much as twenty
// plain ones. For the same reason the polls of a program that polls busily are counted no further than shows this.
type pollCount struct {
	n      atomic.Uint64
	enough atomic.Uint32 // a count of polls that tells the goroutine enough
}

func (c *pollCount) add(polls, finds uint32) {
	if !c.suffices() {
		c.n.Add(uint64(finds)<<32 | uint64(polls))
	}
}

// suffices reports whether more polls and posts make no difference until the goroutine looks.
func (c *pollCount) suffices() bool { return int32(uint32(c.n.Load())-c.enough.Load()) >= 0 }

// expect counts on, from a count of polls.
func (c *pollCount) expect(from uint32) { c.enough.Store(from + busyPolls*uint32(napMost/napTime)) }

// load returns the two counts modulo 2^32. Once in 2^32 polls there is a find too many.
func (c *pollCount) load() (polls, finds uint32) {
	n := c.n.Load()
	return uint32(n), uint32(n >> 32)
}

// poll is work for a program that polls. If somebody else is at work already, poll does nothing. It returns how many
// packets came.
func (e *engine) poll() int {
	if !e.rx.TryLock() {
		e.polls.add(1, 0)
		return 0
	}
	if e.idle() {
		e.polls.add(1, 0)
		e.rx.Unlock()
		return 0
	}
	before := len(e.delayed.list)
	n, now := e.serveNear(false)
	n, now, _ = e.serveFar(now, n, e.looksFar(now, n)) // a closed link is the device's end, which its goroutine sees too
	if n == 0 {
		before = len(e.delayed.list)
	}
	e.polls.add(1, uint32(min(n, 1)))
	if before > 0 {
		e.sendDelayed(now, before, false)
	}
	if e.vain++; n > 0 {
		e.vain = 0
	}
	others := n == 0 && e.vain%e.vainMost == 0
	acks := others && e.vain%vainPolls == 0
	if acks {
		e.vainMost = vainMost()
	}
	e.rx.Unlock()
	if others {
		e.serveOthers(acks)
	}
	return n
}

// use counts what the program has done since a moment, as far as the engine's goroutine knows.
type use struct {
	since                      time.Duration
	polls, posts, finds, waits uint32        // at since
	nap                        time.Duration // the latest, which began at since; 0 if there was none
}

// napFor returns for how long the goroutine may nap: the program was busy in the latest nap, or since a moment if
// there was none, and nobody waits. A program that has much to do with each completion polls seldom, and yet finds
// its completions.
func (u *use) napFor(e *engine) time.Duration {
	now := use{since: e.dev.now(), posts: e.posts.Load(), waits: e.waits.Load()}
	now.polls, now.finds = e.polls.load()
	took, quiet := now.since-u.since, now.waits == u.waits
	if quiet && took < u.nap { // a timer has cut the nap short
		return u.nap - took
	}
	naps := uint32(max(1, u.nap/napTime))
	polls, posts, finds := now.polls-u.polls, now.posts-u.posts, now.finds-u.finds
	switch {
	case quiet && (polls >= busyPolls*naps || polls+posts >= busyAtWork*naps && finds >= busyFinds*naps):
		now.nap = max(napTime, min(2*u.nap, napMost))
	case quiet && u.nap == 0 && took < napTime:
		return 0
	}
	*u = now
	e.polls.expect(u.polls)
	return u.nap
}

// polled reports whether the program has begun to poll since the moment, and nobody waits.
func (u *use) polled(e *engine) bool {
	polls, _ := e.polls.load()
	return polls-u.polls >= fewPolls && e.waits.Load() == u.waits
}

// nap sleeps for d, or until the next timer is due; it reports whether a timer is. The program's polls do the work
// meanwhile.
// waits is how many waiters had announced themselves when the decision to nap was taken.
func (e *engine) nap(t *time.Timer, waits uint32, d time.Duration) (timer bool) {
	e.napping.Store(true)
	defer e.napping.Store(false)
	if e.waits.Load() != waits { // a waiter came before the nap showed
		return false
	}
	if until := e.timers.next.Load(); until != never {
		if left := max(shortNap, time.Duration(until)-e.dev.now()); left < d {
			d, timer = left, true
		}
	}
	t.Reset(d)
	select {
	case <-t.C:
		return timer
	case <-e.endNap:
		return false
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
		q.timeout(&e.batch, now)
	}
}

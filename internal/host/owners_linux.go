//go:build !adverb_portable

package host

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// owners knows the processes that own other mailboxes, as far as there was a reason to look for
// them.
type owners struct {
	self uint32 // the block whose mailbox gets the answers
	pool *outletPool

	mu      sync.Mutex
	closed  bool
	byName  map[boxName]*owner
	byNonce map[uint64]*owner // those with an outlet, by the nonce that they were asked with
	held    int               // messages held for all owners
	emptied chan struct{}     // closed when held is 0; nil while nobody waits for this
	outlets int               // how many are open
	turn    uint64            // counts the uses of owners, so that the oldest is known
	swept   uint64            // turn at the latest sweep
	sweeper *time.Timer       // for the next sweep; nil if none is due

	aliases aliases

	lookupsSince time.Time // when lookups began to count
	lookups      [boxKinds]int
}

func newOwners(self uint32, pool *outletPool) *owners {
	return &owners{self: self, pool: pool, byName: map[boxName]*owner{}, byNonce: map[uint64]*owner{}, aliases: aliases{list: eachSocket}}
}

// owner is the process that owns a mailbox, or none.
type owner struct {
	name         boxName
	out          *outlet   // nil when the mailbox has no owner
	lastProgress time.Time // when the owner was found, was found absent, or took a message that had waited
	used         uint64    // owners.turn at the latest use
	nonce        uint64
	proved       bool // the owner has answered with the credentials of this user

	held  [][]byte      // messages, held until the owner has proved its user and has room
	delay time.Duration // until the next attempt to send the messages; 0 when none is due
}

// pass sends a message to the owner of a mailbox: at once, or as soon as the owner has room and has
// proved that it is of this user. pass does not block. sent is false if the message is certainly
// lost, and found is false if the reason is that the mailbox has no owner.
func (o *owners) pass(name boxName, msg []byte) (sent, found bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.find(name)
	if w == nil {
		return false, true // the mailbox may have an owner
	}
	if w.proved && len(w.held) == 0 {
		sent, alive := w.out.send(msg)
		if sent {
			return true, true
		}
		// If the process has ended, another one may own the mailbox by now.
		if !alive && !o.reach(w) {
			return false, true
		}
	}
	if w.out == nil {
		return false, false
	}
	if len(w.held) == heldPerOwner || o.held == maxHeld {
		return false, true
	}
	if len(w.held) == 0 {
		w.lastProgress = time.Now()
	}
	o.held++
	w.held = append(w.held, slices.Clone(msg))
	o.retry(w, retryMin)
	return true, true
}

// answer sends a message to the owner of a block, which need not have proved its user: the message
// must contain nothing that other users may not know. The message is lost if the mailbox has no room. A process
// that gets no answer asks again.
func (o *owners) answer(block uint32, m *message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.find(blockName(block))
	if w == nil || w.out == nil {
		return
	}
	if _, alive := w.out.send(m.appendTo(nil)); alive {
		return
	}
	if o.reach(w); w.out != nil {
		w.out.send(m.appendTo(nil))
	}
}

// retry tries to send the held messages after delay, unless an attempt is due already.
func (o *owners) retry(w *owner, delay time.Duration) {
	if w.delay != 0 {
		return
	}
	w.delay = delay
	time.AfterFunc(delay, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if w.delay = 0; o.byName[w.name] == w && len(w.held) > 0 {
			o.flush(w, min(2*delay, retryMax))
		}
	})
}

// flush sends as many held messages as the mailbox has room for. It tries again after delay for the rest, unless
// the process gives no sign of life.
func (o *owners) flush(w *owner, delay time.Duration) {
	n := 0
	for ; n < len(w.held) && w.proved; n++ {
		sent, alive := w.out.send(w.held[n])
		if !alive {
			o.gone(w)
			return
		}
		if !sent {
			break
		}
	}
	if n > 0 {
		w.held = slices.Delete(w.held, 0, n)
		o.letGo(n)
		w.lastProgress, delay = time.Now(), retryMin
	}
	switch {
	case len(w.held) == 0:
		w.held = nil
	case time.Since(w.lastProgress) > holdTime:
		o.gone(w)
	default:
		if !w.proved && delay == retryMax { // perhaps the question was lost
			o.ask(w)
		}
		o.retry(w, delay)
	}
}

// find returns the owner of a mailbox. If the owner is not known, find looks for it. It returns
// nil if it may not look at present.
func (o *owners) find(name boxName) *owner {
	o.turn++
	w := o.byName[name]
	if w == nil || w.out == nil && time.Since(w.lastProgress) >= absentTime {
		w = &owner{name: name}
		if !o.reach(w) {
			return nil
		}
	}
	w.used = o.turn
	return w
}

// reach connects to the process that owns the mailbox now, and asks it to prove that it is of this
// user. Held messages stay. reach reports false if it may not look at present.
func (o *owners) reach(w *owner) bool {
	held := w.held
	w.held = nil
	o.gone(w)
	out, ok := o.connect(w.name)
	if out == nil {
		o.letGo(len(held))
		if ok {
			o.absent(w)
		}
		return ok
	}
	o.byName[w.name] = w
	w.out, w.nonce, w.held, w.used = out, rand.Uint64(), held, o.turn
	o.byNonce[w.nonce] = w
	if !o.ask(w) {
		o.gone(w)
	} else if len(held) > 0 {
		o.retry(w, retryMin)
	}
	return true
}

// absent takes note that a mailbox has no owner, but for the mailboxes of services: a process that has just
// claimed a service must be found at once, or the client would be told that nobody serves it. Besides,
// the network can name any number of services.
func (o *owners) absent(w *owner) {
	if w.name.kind == serviceBox {
		if o.byName[w.name] == w {
			delete(o.byName, w.name)
		}
		return
	}
	o.byName[w.name] = w
	o.sweepSoon()
}

// connect returns an outlet to the mailbox' owner, nil if there is none. It reports false if it may
// not look at present.
func (o *owners) connect(name boxName) (*outlet, bool) {
	if o.closed {
		return nil, false
	}
	if time.Since(o.lookupsSince) >= absentTime {
		o.lookupsSince, o.lookups = time.Now(), [boxKinds]int{}
	}
	if o.lookups[name.kind]++; o.lookups[name.kind] > maxLookups {
		return nil, false
	}
	out, err := connect(o.aliases.of(name))
	if err != nil {
		return nil, errors.Is(err, unix.ECONNREFUSED)
	}
	if !o.pool.take(o) {
		out.close()
		return nil, false
	}
	o.outlets++
	o.sweepSoon()
	return out, true
}

func (o *owners) sweepSoon() {
	if o.sweeper == nil && !o.closed {
		o.sweeper = time.AfterFunc(outletIdle, o.sweepAgain)
	}
}

// sweepAgain sweeps, and has itself called again while owners are known.
func (o *owners) sweepAgain() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sweep()
	o.sweeper = nil
	if len(o.byName) > 0 {
		o.sweepSoon()
	}
}

// sweep closes the outlets that have not been used since the sweep before. The kernel does not tell
// when the process at the other end of an outlet ends, and an outlet to a process that lives is
// opened again when it is needed. sweep forgets names without an owner, too: a flood may make up many names.
func (o *owners) sweep() {
	for _, w := range o.byName {
		switch {
		case w.used > o.swept || len(w.held) > 0:
		case w.out != nil:
			o.retire(w)
		default: // the mailbox had no owner
			delete(o.byName, w.name)
		}
	}
	o.swept = o.turn
}

// retire forgets an owner that may well live, and is looked up again when it is needed.
func (o *owners) retire(w *owner) {
	o.gone(w)
	if o.byName[w.name] == w {
		delete(o.byName, w.name)
	}
}

// outletPool bounds the outlets of all devices of this process together.
type outletPool struct {
	open atomic.Int32

	mu      sync.Mutex
	holders map[*owners]struct{} // the owners that may have outlets
}

func newOutletPool() *outletPool { return &outletPool{holders: map[*owners]struct{}{}} }

// processOutlets is the pool of this process.
var processOutlets = newOutletPool()

// take makes room for another outlet of o, whose lock the caller holds. It closes the oldest outlet
// of o or, if o has none, that of another device. It reports false if there is no room.
func (p *outletPool) take(o *owners) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holders[o] = struct{}{}
	if p.open.Load() >= outletLimit() && !p.evict(o) {
		return false
	}
	p.open.Add(1)
	return true
}

// outletLimit is maxOutlets, or less where the process may have few descriptors.
func outletLimit() int32 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return maxOutlets
	}
	return int32(max(1, min(maxOutlets, limit.Cur/outletPart)))
}

func (p *outletPool) evict(o *owners) bool {
	if w := o.oldest(); w != nil {
		o.retire(w)
		return true
	}
	for other := range p.holders {
		if other == o || !other.mu.TryLock() { // its holder may wait for us
			continue
		}
		w := other.oldest()
		if w != nil {
			other.retire(w)
		}
		other.mu.Unlock()
		if w != nil {
			return true
		}
	}
	return false
}

// leave forgets a holder that has no outlet and gets none.
func (p *outletPool) leave(o *owners) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.holders, o)
}

// oldest returns the owner whose outlet has not been used for the longest time. Owners that
// have not proved their user come first. So a stranger who binds many names displaces no process
// of this user.
func (o *owners) oldest() *owner {
	var old *owner
	for _, w := range o.byName {
		if w.out == nil {
			continue
		}
		if old == nil || old.proved && !w.proved || old.proved == w.proved && w.used < old.used {
			old = w
		}
	}
	return old
}

// ask asks an owner to prove that it is of this user. It reports false if the process has ended.
func (o *owners) ask(w *owner) bool {
	who := message{kind: whoMessage, from: o.self, nonce: w.nonce}
	_, alive := w.out.send(who.appendTo(nil))
	return alive
}

// gone forgets an owner that has ended or does not answer.
func (o *owners) gone(w *owner) {
	if w.out != nil {
		w.out.close()
		o.outlets--
		o.pool.open.Add(-1)
		delete(o.byNonce, w.nonce)
	}
	o.letGo(len(w.held))
	*w = owner{name: w.name, lastProgress: time.Now()}
	if o.byName[w.name] == w {
		o.absent(w)
	}
}

// prove takes note that the owner which was asked with a nonce is of this user. It sends the messages that were
// held for the owner.
func (o *owners) prove(nonce uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.byNonce[nonce]
	if w == nil {
		return
	}
	w.proved = true
	if len(w.held) > 0 {
		o.flush(w, retryMin)
	}
}

// letGo counts n messages that are held no more.
func (o *owners) letGo(n int) {
	if o.held -= n; o.held == 0 && o.emptied != nil {
		close(o.emptied)
		o.emptied = nil
	}
}

// drain waits until other processes have taken the messages that are held for them, but not longer than d.
func (o *owners) drain(d time.Duration) {
	o.mu.Lock()
	if o.held == 0 {
		o.mu.Unlock()
		return
	}
	emptied := make(chan struct{})
	o.emptied = emptied
	o.mu.Unlock()
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case <-emptied:
	case <-limit.C:
	}
}

// close forgets all owners for good.
func (o *owners) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, w := range o.byName {
		o.gone(w)
	}
	clear(o.byName)
	if o.sweeper != nil {
		o.sweeper.Stop()
	}
	o.pool.leave(o)
}

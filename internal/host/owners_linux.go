//go:build !adverb_portable

package host

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// owners knows the processes that own what other mailboxes stand for, as far as there was reason to ask.
type owners struct {
	self uint32 // the block that answers are to come to

	mu      sync.Mutex
	closed  bool
	by      map[boxName]*owner
	asked   map[uint64]*owner // who has an outlet, by nonce
	held    int               // messages, for all owners
	outlets int               // open
	turn    uint64            // counts uses, to know the oldest

	looked  time.Time // when the count of lookups began
	lookups [boxKinds]int
}

func newOwners(self uint32) *owners {
	return &owners{self: self, by: map[boxName]*owner{}, asked: map[uint64]*owner{}}
}

// owner is the process behind a mailbox.
type owner struct {
	name   boxName
	out    *outlet   // nil when nobody has it
	since  time.Time // when it was reached, or got the latest message that had to wait
	used   uint64    // the latest turn
	nonce  uint64
	proved bool // has answered with the credentials of this user

	held  [][]byte      // messages, until it has proved that and has room
	delay time.Duration // before the next try to send them; 0 when none is due
}

// pass hands a message to the owner of a mailbox: at once, or when the owner has room and has proved who
// it is. It does not block. The message is not sent if it is lost for certain, and nobody is found if
// that is because there is no owner.
func (o *owners) pass(name boxName, msg []byte) (sent, found bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.find(name)
	if w == nil {
		return false, true // for all that is known
	}
	if w.proved && len(w.held) == 0 {
		sent, alive := w.out.send(msg)
		if sent {
			return true, true
		}
		// If the process has ended, another one may have the name by now.
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
		w.since = time.Now()
	}
	o.held++
	w.held = append(w.held, slices.Clone(msg))
	o.retry(w, retryMin)
	return true, true
}

// answer sends a message to a block's owner whoever it is: it must hold nothing that others may
// not know. It is not kept if there is no room: who asks, asks again.
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

// retry has what is held sent, unless that is due already.
func (o *owners) retry(w *owner, delay time.Duration) {
	if w.delay != 0 {
		return
	}
	w.delay = delay
	time.AfterFunc(delay, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if w.delay = 0; o.by[w.name] == w && len(w.held) > 0 {
			o.flush(w, min(2*delay, retryMax))
		}
	})
}

// flush sends what is held and may be sent. It tries again after delay, but not for a process that
// gives no sign of life.
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
		o.held -= n
		w.since, delay = time.Now(), retryMin
	}
	switch {
	case len(w.held) == 0:
		w.held = nil
	case time.Since(w.since) > holdTime:
		o.gone(w)
	default:
		if !w.proved && delay == retryMax { // the question was lost, perhaps
			o.ask(w)
		}
		o.retry(w, delay)
	}
}

// find returns what is known of a mailbox' owner, and asks who it is if nothing is. It returns nil
// if it cannot look at present.
func (o *owners) find(name boxName) *owner {
	o.turn++
	w := o.by[name]
	if w == nil || w.out == nil && time.Since(w.since) >= absentTime {
		w = &owner{name: name}
		if !o.reach(w) {
			return nil
		}
	}
	w.used = o.turn
	return w
}

// reach connects to who owns the mailbox now, and asks for proof of who it is. What is held stays. It
// reports false if it cannot look.
func (o *owners) reach(w *owner) bool {
	held := w.held
	w.held = nil
	o.gone(w)
	out, ok := o.connect(w.name)
	if out == nil {
		o.held -= len(held)
		if ok {
			o.absent(w)
		}
		return ok
	}
	o.by[w.name] = w
	w.out, w.nonce, w.held, w.used = out, rand.Uint64(), held, o.turn
	o.asked[w.nonce] = w
	if !o.ask(w) {
		o.gone(w)
	} else if len(held) > 0 {
		o.retry(w, retryMin)
	}
	return true
}

// absent takes note that nobody has a mailbox. Of services it does not: who has just begun to
// serve one must be found at once, or the client is told that there is nobody. The network names too many of
// them besides.
func (o *owners) absent(w *owner) {
	if w.name.kind == serviceBox {
		if o.by[w.name] == w {
			delete(o.by, w.name)
		}
		return
	}
	o.by[w.name] = w
}

// connect returns nil if nobody owns the mailbox, and false if it cannot look.
func (o *owners) connect(name boxName) (*outlet, bool) {
	if o.closed {
		return nil, false
	}
	if time.Since(o.looked) >= absentTime {
		o.looked, o.lookups = time.Now(), [boxKinds]int{}
	}
	if o.lookups[name.kind]++; o.lookups[name.kind] > maxLookups {
		return nil, false
	}
	out, err := connect(name)
	if err != nil {
		return nil, errors.Is(err, unix.ECONNREFUSED)
	}
	if o.outlets >= maxOutlets {
		o.gone(o.oldest())
	}
	o.outlets++
	return out, true
}

// oldest returns the owner with an outlet that was of no use for the longest time. Those who have not
// proved who they are come first, so that a stranger who takes many names does not displace others.
func (o *owners) oldest() *owner {
	var old *owner
	for _, w := range o.by {
		if w.out == nil {
			continue
		}
		if old == nil || old.proved && !w.proved || old.proved == w.proved && w.used < old.used {
			old = w
		}
	}
	return old
}

// ask asks an owner to prove who it is. It reports false if there is nobody any more.
func (o *owners) ask(w *owner) bool {
	who := message{kind: whoMessage, from: o.self, nonce: w.nonce}
	_, alive := w.out.send(who.appendTo(nil))
	return alive
}

// gone forgets a process that has ended, or has not answered.
func (o *owners) gone(w *owner) {
	if w.out != nil {
		w.out.close()
		o.outlets--
		delete(o.asked, w.nonce)
	}
	o.held -= len(w.held)
	*w = owner{name: w.name, since: time.Now()}
	if o.by[w.name] == w {
		o.absent(w)
	}
}

// prove takes note that who was asked by a nonce is of this user, and sends what was held for it.
func (o *owners) prove(nonce uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.asked[nonce]
	if w == nil {
		return
	}
	w.proved = true
	if len(w.held) > 0 {
		o.flush(w, retryMin)
	}
}

// close forgets everybody for good.
func (o *owners) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, w := range o.by {
		o.gone(w)
	}
}

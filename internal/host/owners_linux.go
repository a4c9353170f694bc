//go:build !adverb_portable

package host

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// owners knows the processes that own other blocks, as far as there was reason to ask.
type owners struct {
	self uint32 // the block that answers are to come to

	mu      sync.Mutex
	closed  bool
	by      map[uint32]*owner
	held    int    // messages, for all owners
	outlets int    // open
	turn    uint64 // counts uses, to know the oldest

	looked  time.Time // when the count of lookups began
	lookups int
}

// owner is another block's process.
type owner struct {
	out    *outlet   // nil when nobody has the block
	since  time.Time // when it was reached, or got the latest message that had to wait
	used   uint64    // the latest turn
	nonce  uint64
	proved bool // has answered with the credentials of this user

	held  [][]byte      // messages, until it has proved that and has room
	delay time.Duration // before the next try to send them; 0 when none is due
}

// pass hands a message to the owner of a block: at once, or when the owner has room and has proved who
// it is. It does not block. It reports false if the message is lost for certain.
func (o *owners) pass(block uint32, msg []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.find(block)
	if w.proved && len(w.held) == 0 {
		sent, alive := w.out.send(msg)
		if sent {
			return true
		}
		if !alive {
			o.reach(w, block) // the process has ended; another one may have the block by now
		}
	}
	if w.out == nil || len(w.held) == heldPerOwner || o.held == maxHeld {
		return false
	}
	if len(w.held) == 0 {
		w.since = time.Now()
	}
	o.held++
	w.held = append(w.held, slices.Clone(msg))
	o.retry(w, block, retryMin)
	return true
}

// answer sends a message to a block's owner whoever it is: it must hold nothing that others may
// not know. It is not kept if there is no room: who asks, asks again.
func (o *owners) answer(block uint32, m *message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.find(block)
	if w.out == nil {
		return
	}
	if _, alive := w.out.send(m.appendTo(nil)); alive {
		return
	}
	if o.reach(w, block); w.out != nil {
		w.out.send(m.appendTo(nil))
	}
}

// retry has what is held sent, unless that is due already.
func (o *owners) retry(w *owner, block uint32, delay time.Duration) {
	if w.delay != 0 {
		return
	}
	w.delay = delay
	time.AfterFunc(delay, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if w.delay = 0; o.by[block] == w && len(w.held) > 0 {
			o.flush(w, block, min(2*delay, retryMax))
		}
	})
}

// flush sends what is held and may be sent. It tries again after delay, but not for a process that
// gives no sign of life.
func (o *owners) flush(w *owner, block uint32, delay time.Duration) {
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
		o.retry(w, block, delay)
	}
}

// find returns what is known of a block's owner, and asks who it is if nothing is.
func (o *owners) find(block uint32) *owner {
	o.turn++
	w := o.by[block]
	if w == nil || w.out == nil && time.Since(w.since) >= absentTime {
		w = &owner{}
		o.by[block] = w
		o.reach(w, block)
	}
	w.used = o.turn
	return w
}

// reach connects to who owns the block now, and asks for proof of who it is. What is held stays.
func (o *owners) reach(w *owner, block uint32) {
	held := w.held
	w.held = nil
	o.gone(w)
	out := o.connect(block)
	if out == nil {
		o.held -= len(held)
		return
	}
	w.out, w.nonce, w.held, w.used = out, rand.Uint64(), held, o.turn
	if !o.ask(w) {
		o.gone(w)
	} else if len(held) > 0 {
		o.retry(w, block, retryMin)
	}
}

// connect returns nil if nobody owns the block, or if it may not look.
func (o *owners) connect(block uint32) *outlet {
	if o.closed {
		return nil
	}
	if time.Since(o.looked) >= absentTime {
		o.looked, o.lookups = time.Now(), 0
	}
	if o.lookups++; o.lookups > maxLookups {
		return nil
	}
	out, err := connect(block)
	if err != nil {
		return nil
	}
	if o.outlets >= maxOutlets {
		o.gone(o.oldest())
	}
	o.outlets++
	return out
}

// oldest returns the owner with an outlet that was of no use for the longest time. Those who have not
// proved who they are come first, so that a stranger who takes many blocks does not displace others.
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
	}
	o.held -= len(w.held)
	*w = owner{since: time.Now()}
}

// prove takes note that a block's owner is of this user, and sends what was held for it.
func (o *owners) prove(block uint32, nonce uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.by[block]
	if w == nil || w.out == nil || w.nonce != nonce {
		return
	}
	w.proved = true
	if len(w.held) > 0 {
		o.flush(w, block, retryMin)
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

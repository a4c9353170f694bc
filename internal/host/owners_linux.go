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
	out    *outlet // nil when nobody has the block
	since  time.Time
	used   uint64 // the latest turn
	nonce  uint64
	proved bool     // has answered with the credentials of this user
	held   [][]byte // messages until it does
}

// pass hands a message to the owner of a block, at once or when it has proved who it is. It
// reports false if the message is lost for certain.
func (o *owners) pass(block uint32, msg []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.find(block)
	if w.proved {
		sent, alive := w.out.send(msg)
		if alive {
			return sent
		}
		o.reach(w, block) // the process has ended; another one may have the block by now
	}
	if w.out == nil || len(w.held) == heldDatagrams || o.held == maxHeld {
		return false
	}
	o.held++
	if w.held = append(w.held, slices.Clone(msg)); len(w.held) == 1 {
		time.AfterFunc(askAgain, func() { o.insist(block, w) })
	}
	return true
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

// insist asks again while something is held, since questions get lost too.
func (o *owners) insist(block uint32, w *owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.by[block] != w || w.proved || len(w.held) == 0 {
		return
	}
	if time.Since(w.since) > holdTime {
		o.gone(w)
		return
	}
	if !o.ask(w) {
		o.reach(w, block)
	}
	time.AfterFunc(askAgain, func() { o.insist(block, w) })
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
	for _, msg := range w.held {
		if _, alive := w.out.send(msg); !alive {
			o.gone(w)
			return
		}
	}
	o.held -= len(w.held)
	w.held = nil
}

// answer sends a message to a block's owner whoever it is: it must hold nothing that others may
// not know.
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

// close forgets everybody for good.
func (o *owners) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, w := range o.by {
		o.gone(w)
	}
}

package whole

import (
	"bytes"
	"math/rand/v2"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	windowSlots = 3
	windowSize  = 512
	windowRoom  = 1024 // a window and the memory that nobody may write
)

// windows are the memory windows that an end gives to its peer. Those of type 2 are bound by posted work requests
// and end when somebody invalidates them; those of type 1 are bound by BindMW, and end when they are bound anew.
type windows struct {
	e     *end
	r     *region
	slots [windowSlots]*window
}

// window is one of them, in the middle of its room.
type window struct {
	e     *end // the end that binds the window
	mw    *verbs.MW
	off   int
	state windowState
	key   verbs.RKey
	stale verbs.RKey // the key that the window had before
	uses  int        // the peer's, that are under way
	area  *area      // the memory that the peer writes through the window
	still []byte     // the contents that the memory must keep while the window is free
}

type windowState uint8

const (
	windowFree windowState = iota
	windowBinding
	windowOpen
	windowUnused // the peer has told that the peer's work on the window is done
	windowEnding
)

func newWindows(e *end) *windows {
	x := &windows{e: e, r: newRegion(e.n, "windows", windowSlots*windowRoom, verbs.AccessLocalWrite|verbs.AccessMWBind)}
	r := rand.New(rand.NewPCG(e.n.w.plan.Seed, uint64(0x111d+100*e.c.index+10*e.c.life+e.side)))
	for i := range x.slots {
		typ := verbs.MWType2
		if r.IntN(2) == 0 {
			typ = verbs.MWType1
		}
		mw, err := e.n.pd.AllocMW(typ)
		e.n.w.must(err)
		x.slots[i] = &window{e: e, mw: mw, off: i*windowRoom + windowRoom/4, still: make([]byte, windowSize)}
	}
	return x
}

func (v *window) bytes() []byte { return v.e.windows.r.bytes()[v.off:][:windowSize] }

// check checks the memory that nobody may write.
func (x *windows) check() {
	for _, v := range x.slots {
		if v.state == windowFree && !bytes.Equal(v.still, v.bytes()) {
			x.e.n.w.failf("%v: the memory of a window was written after the window was invalidated", x.e)
		}
		room := x.r.bytes()[v.off-windowRoom/4:][:windowRoom]
		for i, b := range room {
			if b != 0 && (i < windowRoom/4 || i >= windowRoom/4+windowSize) {
				x.e.n.w.failf("%v: memory beside a window was written", x.e)
			}
		}
	}
	x.r.check()
}

func (x *windows) close() {
	x.check()
	for _, v := range x.slots {
		x.e.n.w.must(v.mw.Close())
		v.state = windowEnding
	}
	x.r.close()
	x.r.freeze()
}

// find returns the windows in a state, the first of them at random.
func (e *end) find(x *windows, state windowState) *window {
	if x == nil {
		return nil
	}
	first := e.rnd.IntN(windowSlots)
	for i := range x.slots {
		if v := x.slots[(first+i)%windowSlots]; v.state == state {
			return v
		}
	}
	return nil
}

// windowOp makes o an op that has to do with a window, if there is anything to do.
func (e *end) windowOp(o *op) bool {
	r := e.rnd
	p := e.peer()
	unbound := e.findUnbound()
	if e.n.w.plan.Illegal && e.bad == nil && (r.IntN(8) == 0 || unbound != nil && r.IntN(2) == 0) {
		fresh := *o
		if e.abuse(o, unbound) {
			e.bad, e.c.broken = o, true
			e.n.w.totals.Illegal++
			return true
		}
		*o = fresh // there was no memory for the op
	}
	if v := e.find(e.windows, windowFree); v != nil && (r.IntN(2) == 0 && !v.unbound() || r.IntN(8) == 0) {
		e.windows.check()
		v.bind(o)
		return true
	}
	v := e.find(e.windows, windowUnused)
	if v == nil && e.n.w.plan.Illegal && r.IntN(2) == 0 { // so soon that the peer still has work
		if v = e.find(e.windows, windowOpen); v != nil && (!v.type1() || v.uses > 0) {
			v = nil
		}
	}
	if v != nil {
		if v.type1() && r.IntN(3) == 0 {
			v.bind(o) // anew: the old key ends
			return true
		}
		v.state = windowEnding
		o.win, o.where = v, "window"
		if v.type1() {
			o.wr.Op, o.wr.Bind = verbs.OpBindMW, &verbs.MWBind{MW: v.mw}
		} else {
			o.wr.Op, o.wr.InvalidateRKey = verbs.OpLocalInv, v.key
		}
		return true
	}
	if v = e.find(p.windows, windowOpen); v == nil {
		return false
	}
	switch k := r.IntN(6); {
	case k < 2:
		if v.uses == 0 {
			v.state = windowUnused
		}
		return false
	case k == 2 && !v.type1():
		o.wr.Op, o.wr.InvalidateRKey = verbs.OpSendWithInv, v.key
		o.length = e.length()
		if !e.memory(o) {
			return false
		}
		v.state = windowEnding
		o.win, o.where = v, "window"
		return true
	}
	o.wr.Op = verbs.OpRDMAWrite
	o.length = 1 + r.IntN(windowSize)
	o.off = r.IntN(windowSize - o.length + 1)
	o.wr.Remote = verbs.RemoteAddr{VA: p.windows.r.mr.Addr() + uint64(v.off+o.off), RKey: v.key}
	if !e.memory(o) {
		return false
	}
	o.win, o.area, o.where = v, v.area, "window"
	v.uses++
	return true
}

// bind makes o an op that binds the window.
func (v *window) bind(o *op) {
	mr := v.e.windows.r.mr
	v.state, v.stale, v.key = windowBinding, v.key, verbs.IncRKey(v.mw.RKey())
	o.win, o.where = v, "window"
	o.wr.Op = verbs.OpBindMW
	o.wr.Bind = &verbs.MWBind{MW: v.mw, RKey: v.key, MR: mr, Addr: mr.Addr() + uint64(v.off), Length: windowSize, Access: verbs.AccessRemoteWrite}
	if v.type1() {
		v.key, o.wr.Bind.RKey = 0, 0 // BindMW tells
	}
}

func (v *window) type1() bool { return v.mw.Type() == verbs.MWType1 }

// postWindow binds a window of type 1. The window has its new key when BindMW has returned.
func (e *end) postWindow(o *op) error {
	v, before := o.win, o.win.mw.RKey()
	err := e.qp.BindMW(verbs.SendWR{ID: o.wr.ID, Flags: o.wr.Flags}, *o.wr.Bind)
	if v.mw.RKey() == before {
		e.n.w.failf("%v: BindMW %d has returned, and the window still has key %v", e, o.wr.ID, before)
	}
	if o.wr.Bind.Length > 0 {
		v.key = v.mw.RKey()
	}
	return err
}

// unbound reports whether the window is one of type 1 that was bound, and is bound to nothing now.
func (v *window) unbound() bool { return v.type1() && v.state == windowFree && v.key != 0 }

// findUnbound returns a window of type 1 that the peer has unbound, or nil.
func (e *end) findUnbound() *window {
	if x := e.peer().windows; x != nil {
		for _, v := range x.slots {
			if v.unbound() {
				return v
			}
		}
	}
	return nil
}

// abuse makes o one that uses or ends a window that is not its own, or one that has ended, such as unbound,
// or invalidates one of type 1.
func (e *end) abuse(o *op, unbound *window) bool {
	r, p := e.rnd, e.peer()
	var v *window
	key := verbs.RKey(0)
	inv := r.IntN(2) == 0
	if v = unbound; v != nil {
		key, o.where, inv = v.key, "a window that is unbound", false
	} else if v = e.find(p.windows, windowOpen); v != nil && inv && v.type1() {
		key, o.where = v.key, "a window of type 1"
	} else if v = nil; r.IntN(2) == 0 {
		for _, z := range p.n.ends {
			if z != p && z.windows != nil {
				if v = e.find(z.windows, windowOpen); v != nil && (inv || !v.type1()) { // of type 1, any QP of the PD may use the window
					key, o.where = v.key, "a stranger's window"
					break
				}
			}
		}
	} else if v = e.find(p.windows, windowFree); v != nil {
		key, o.where = v.key, "a window that has ended"
		inv = inv && !v.type1()
	}
	if v == nil || key == 0 {
		return false
	}
	if inv {
		o.wr.Op, o.wr.InvalidateRKey = verbs.OpSendWithInv, key
		o.length = r.IntN(100)
		o.expect, o.expectAt = verbs.WCRetryExceeded, verbs.WCRemInvReqErr // the peer says nothing
	} else {
		o.wr.Op = verbs.OpRDMAWrite
		o.length = 1 + r.IntN(windowSize)
		o.wr.Remote = verbs.RemoteAddr{VA: v.e.windows.r.mr.Addr() + uint64(v.off), RKey: key}
		o.expect = verbs.WCRemAccessErr
	}
	return e.memory(o)
}

// complete takes note that a work request on the window is done.
func (v *window) complete(e *end, o *op) {
	switch o.wr.Op {
	case verbs.OpBindMW:
		if o.wr.Bind.Length == 0 {
			v.ended()
			return
		}
		if v.mw.RKey() != v.key {
			e.n.w.failf("%v: window %v is bound, and has key %v", e, v.key, v.mw.RKey())
		}
		v.state, v.uses = windowOpen, 0
		v.area = newArea(e.windows.r, v.off, windowSize)
	case verbs.OpLocalInv:
		v.ended()
	case verbs.OpRDMAWrite:
		v.uses--
	}
}

// ended takes note that the window is invalid from now on.
func (v *window) ended() {
	v.state = windowFree
	v.still = bytes.Clone(v.bytes())
}

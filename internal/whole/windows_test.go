package whole

import (
	"bytes"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	windowSlots = 3
	windowSize  = 512
	windowRoom  = 1024 // a window and what nobody may write
)

// windows are the memory windows of type 2 that an end gives to its peer.
type windows struct {
	e     *end
	r     *region
	slots [windowSlots]*window
}

// window is one of them, in the middle of its room.
type window struct {
	e     *end // that binds it
	mw    *verbs.MW
	off   int
	state windowState
	key   verbs.RKey
	stale verbs.RKey // that it had before
	uses  int        // the peer's, that are under way
	area  *area      // that the peer writes through it
	still []byte     // what the memory must stay while the window is free
}

type windowState uint8

const (
	windowFree windowState = iota
	windowBinding
	windowOpen
	windowUnused // the peer has told that it is done with it
	windowEnding
)

func newWindows(e *end) *windows {
	x := &windows{e: e, r: newRegion(e.n, "windows", windowSlots*windowRoom, verbs.AccessLocalWrite|verbs.AccessMWBind)}
	for i := range x.slots {
		mw, err := e.n.pd.AllocMW(verbs.MWType2)
		e.n.w.must(err)
		x.slots[i] = &window{e: e, mw: mw, off: i*windowRoom + windowRoom/4, still: make([]byte, windowSize)}
	}
	return x
}

func (v *window) bytes() []byte { return v.e.windows.r.bytes()[v.off:][:windowSize] }

// check checks what nobody may write.
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

// windowOp makes o one that has to do with a window, if there is anything to do.
func (e *end) windowOp(o *op) bool {
	r := e.rnd
	p := e.peer()
	if e.n.w.plan.Illegal && e.bad == nil && r.IntN(12) == 0 {
		fresh := *o
		if e.abuse(o) {
			e.bad, e.c.broken = o, true
			e.n.w.totals.Illegal++
			return true
		}
		*o = fresh // there was no memory for it
	}
	if v := e.find(e.windows, windowFree); v != nil && r.IntN(2) == 0 {
		e.windows.check()
		v.state, v.stale, v.key = windowBinding, v.key, verbs.IncRKey(v.mw.RKey())
		o.win, o.where = v, "window"
		o.wr.Op = verbs.OpBindMW
		o.wr.Bind = &verbs.MWBind{MW: v.mw, RKey: v.key, MR: e.windows.r.mr, Addr: e.windows.r.mr.Addr() + uint64(v.off), Length: windowSize,
			Access: verbs.AccessRemoteWrite}
		return true
	}
	if v := e.find(e.windows, windowUnused); v != nil {
		v.state = windowEnding
		o.win, o.where = v, "window"
		o.wr.Op, o.wr.InvalidateRKey = verbs.OpLocalInv, v.key
		return true
	}
	v := e.find(p.windows, windowOpen)
	if v == nil {
		return false
	}
	switch r.IntN(5) {
	case 0:
		if v.uses == 0 {
			v.state = windowUnused
		}
		return false
	case 1:
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

// abuse makes o one that uses or ends a window that is not its own, or one that has ended.
func (e *end) abuse(o *op) bool {
	r, p := e.rnd, e.peer()
	var v *window
	key := verbs.RKey(0)
	if r.IntN(2) == 0 {
		for _, z := range p.n.ends {
			if z != p && z.windows != nil {
				if v = e.find(z.windows, windowOpen); v != nil {
					key, o.where = v.key, "a stranger's window"
					break
				}
			}
		}
	} else if v = e.find(p.windows, windowFree); v != nil {
		key, o.where = v.key, "a window that has ended"
	}
	if v == nil || key == 0 {
		return false
	}
	if r.IntN(2) == 0 {
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

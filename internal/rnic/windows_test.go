package rnic

import (
	"bytes"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// bound makes a region and a window, and the work request 1 that binds it to 16 bytes, from byte 8 on.
func (e *end) bound() (mr *verbs.MR, mw *verbs.MW, bind verbs.SendWR) {
	e.t.Helper()
	mr, err := e.pd.AllocMR(64, everything|verbs.AccessMWBind)
	e.must(err)
	mw, err = e.pd.AllocMW(verbs.MWType2)
	e.must(err)
	e.t.Cleanup(func() { mw.Close() })
	return mr, mw, verbs.SendWR{ID: 1, Op: verbs.OpBindMW, Flags: signaled,
		Bind: &verbs.MWBind{MW: mw, RKey: verbs.IncRKey(mw.RKey()), MR: mr, Addr: mr.Addr() + 8, Length: 16, Access: verbs.AccessRemoteWrite}}
}

// TestWindows binds a window, has the peer use it, and takes it back: by this end, and by the peer's SEND.
func TestWindows(t *testing.T) {
	x, y := pair(t)
	src := x.mr(8)
	mr, mw, bind := y.bound()
	for _, byPeer := range []bool{false, true} {
		bind.Bind.RKey = verbs.IncRKey(mw.RKey())
		y.send(bind)
		if wc := y.done(); wc.ID != 1 || wc.Op != verbs.WCBindMW || mw.RKey() != bind.Bind.RKey {
			t.Fatalf("completion %+v, the window has key %v; want that of the bind, and %v", wc, mw.RKey(), bind.Bind.RKey)
		}
		fill(src.Bytes(), int(mw.RKey()))
		clear(mr.Bytes())
		x.send(
			verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: verbs.RemoteAddr{VA: mr.Addr() + 16, RKey: mw.RKey()}},
			verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 0)}, Remote: mr.Remote(0)})
		x.done()
		if !bytes.Equal(mr.Bytes()[16:24], src.Bytes()) {
			t.Errorf("%x stands where the peer has written by the window, want %x", mr.Bytes()[16:24], src.Bytes())
		}
		if byPeer {
			y.recv(verbs.RecvWR{ID: 2})
			x.send(verbs.SendWR{Op: verbs.OpSendWithInv, Flags: signaled, InvalidateRKey: mw.RKey()})
			x.done()
			if wc := y.done(); wc.ID != 2 || wc.Flags&verbs.WCFlagWithInv == 0 || verbs.RKey(wc.Imm) != mw.RKey() {
				t.Errorf("receive %+v, want one that says that key %v was invalidated", wc, mw.RKey())
			}
			continue
		}
		y.send(verbs.SendWR{ID: 3, Op: verbs.OpLocalInv, Flags: signaled, InvalidateRKey: mw.RKey()})
		if wc := y.done(); wc.ID != 3 || wc.Op != verbs.WCLocalInv {
			t.Errorf("completion %+v, want that of the invalidation", wc)
		}
	}
	clear(mr.Bytes())
	x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: verbs.RemoteAddr{VA: mr.Addr() + 16, RKey: mw.RKey()}})
	if ev := y.event(); ev.Type != verbs.EventQPAccessErr || !bytes.Equal(mr.Bytes(), make([]byte, 64)) {
		t.Errorf("a WRITE by a window that was taken back: event %v, and the memory is %x; want %v, and zeros", ev.Type, mr.Bytes(), verbs.EventQPAccessErr)
	}
}

// TestBindTwice: a bind that fails is the work request's mistake, and ends the connection.
func TestBindTwice(t *testing.T) {
	x, y := pair(t)
	_, mw, bind := y.bound()
	again := bind
	again.ID = 2
	y.send(bind, again, verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: signaled})
	y.done()
	if wc := y.next(); wc.ID != 2 || wc.Status != verbs.WCMWBindErr {
		t.Errorf("completion %+v, want %v of work request 2", wc, verbs.WCMWBindErr)
	}
	if wc := y.next(); wc.ID != 3 || wc.Status != verbs.WCFlushErr {
		t.Errorf("completion %+v, want %v of work request 3", wc, verbs.WCFlushErr)
	}
	if mw.RKey() != bind.Bind.RKey {
		t.Errorf("the window has key %v, want %v of the bind before", mw.RKey(), bind.Bind.RKey)
	}
	x.ended() // the peer is told, or its stream ends
}

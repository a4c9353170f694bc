//go:build linux && (amd64 || arm64)

package native

import (
	"errors"
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/verbs"
)

// held is what the library and this package hold: objects, blocks of memory for calls, and pinned memory.
type held struct {
	objects int32
	blocks  int
	pinned  int
}

func heldNow(f *fakeLibrary) held {
	h := held{objects: f.live(), blocks: ibv.Used()}
	pinned.Range(func(any, any) bool { h.pinned++; return true })
	return h
}

// story is a program that stops at its first error, and closes what it has made.
type story struct {
	err  error
	made []interface{ Close() error }
}

// then goes on, unless there was an error.
func (s *story) then(f func() error) {
	if s.err == nil {
		s.err = f()
	}
}

// makes goes on with an object, unless there was an error.
func makes[T interface{ Close() error }](s *story, f func() (T, error)) (v T) {
	s.then(func() (err error) {
		if v, err = f(); err == nil {
			s.made = append(s.made, v)
		}
		return err
	})
	return v
}

// end closes all objects, those that are busy once more.
func (s *story) end(t *testing.T) {
	t.Helper()
	for i := len(s.made) - 1; i >= 0; i-- {
		err := s.made[i].Close()
		if errors.Is(err, verbs.ErrBusy) {
			err = s.made[i].Close()
		}
		if err != nil {
			t.Errorf("close a %T: %v", s.made[i], err)
		}
	}
}

// tellAll makes an object of each kind, and calls what objects can do.
func tellAll(f *fakeLibrary) *story {
	s := &story{}
	s.then(func() error { _, err := f.Devices(); return err })
	dev := makes(s, func() (*verbs.Device, error) {
		d, err := f.Open(fakeName)
		if err != nil {
			return nil, err
		}
		return verbs.NewDevice(d), nil
	})
	s.then(func() error { _, err := dev.QueryPort(ibPort); return err })
	pd := makes(s, func() (*verbs.PD, error) { return dev.AllocPD() })
	cq := makes(s, func() (*verbs.CQ, error) { return dev.CreateCQ(16) })
	srq := makes(s, func() (*verbs.SRQ, error) { return pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}) })
	mr := makes(s, func() (*verbs.MR, error) { return pd.RegMR(make([]byte, 4096), flushable|verbs.AccessMWBind) })
	own := makes(s, func() (*verbs.MR, error) { return pd.AllocMR(4096, everything) })
	mw := makes(s, func() (*verbs.MW, error) { return pd.AllocMW(verbs.MWType1) })
	path := verbs.AHAttr{SGIDIndex: rocev2}
	s.then(func() error { g, err := dev.GID(rocePort, rocev2); path.DGID = g.GID; return err })
	ah := makes(s, func() (*verbs.AH, error) { return pd.CreateAH(path) })
	ud := makes(s, func() (*verbs.QP, error) {
		return pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: cq, RecvCQ: cq, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	})
	rc := makes(s, func() (*verbs.QP, error) {
		return pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	})
	s.then(func() error { return rc.Init(rocePort, flushable) })
	s.then(func() error {
		return rc.RTR(verbs.Peer{QPN: rc.QPN(), GID: path.DGID}, verbs.Path{SGIDIndex: rocev2})
	})
	s.then(func() error { return rc.RTS(0, verbs.DefaultRetry) })
	s.then(func() error { return rc.PostOneRecv(1, mr.SGE(0, 64)) })
	s.then(func() error {
		return rc.PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled}, own.SGE(0, 64))
	})
	s.then(func() error {
		return rc.BindMW(verbs.SendWR{}, verbs.MWBind{MW: mw, MR: mr, Addr: mr.Addr(), Length: 64, Access: verbs.AccessRemoteRead})
	})
	s.then(func() error {
		if dev.Provider().(*device).ops.caps&verbs.DeviceFlushGlobal == 0 {
			return nil // a call has failed as the device was opened
		}
		return rc.PostOneSend(verbs.SendWR{Op: verbs.OpFlush, Remote: mr.Remote(0), Flush: verbs.Flush{Length: 8, Placement: verbs.FlushGlobal}})
	})
	s.then(func() error { _, err := srq.PostRecv(make([]verbs.RecvWR, 1)); return err })
	s.then(func() error { _, err := srq.Query(); return err })
	s.then(func() error { return srq.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQMaskLimit) })
	s.then(func() error {
		return ud.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: rocePort}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey)
	})
	group := verbs.GID{0: 0xff, 1: 0x12, 15: 1}
	s.then(func() error { return ud.AttachMcast(group) })
	s.then(func() error {
		err := ud.DetachMcast(group)
		if err != nil {
			return errors.Join(err, ud.DetachMcast(group)) // a QP that is attached cannot be closed
		}
		return nil
	})
	s.then(func() error { _, _, err := rc.Query(); return err })
	s.then(func() error { return cq.Resize(32) })
	s.then(func() error { return cq.Notify(false) })
	s.then(func() error { _, err := cq.Poll(make([]verbs.WC, 8)); return err })
	s.then(func() error { return own.Rereg(verbs.ReregAccess, nil, nil, everything) })
	s.then(func() error { return ah.Close() })
	xrcd := makes(s, func() (*verbs.XRCD, error) { return dev.OpenXRCD(verbs.XRCDAttr{}) })
	makes(s, func() (*verbs.SRQ, error) { return xrcd.CreateSRQ(pd, cq, verbs.SRQAttr{MaxWR: 1}) })
	target := makes(s, func() (*verbs.QP, error) { return xrcd.CreateQP(verbs.QPInitAttr{}) })
	makes(s, func() (*verbs.QP, error) { return xrcd.OpenQP(target.QPN(), nil) })
	makes(s, func() (*verbs.QP, error) {
		return pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeXRCSend, SendCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1}})
	})
	return s
}

// TestEachCallFails fails each call of the library in turn. The program gets the error, or its end gets by without: then
// all is closed, and nothing is left. The errno says that something is busy, so that an object which cannot be closed is
// closed again.
func TestEachCallFails(t *testing.T) {
	f := fake(t)
	s := tellAll(f) // the memory that stays for the calls of all
	s.end(t)
	if s.err != nil {
		t.Fatal(s.err)
	}
	before := heldNow(f)
	for n := int32(1); ; n++ {
		f.nth(n, int32(syscall.EBUSY))
		s := tellAll(f)
		s.end(t)
		if got := heldNow(f); got != before {
			t.Fatalf("call %d fails (%v): %+v are held, and %+v before", n, s.err, got, before)
		}
		if f.nth(0, 0) > 0 {
			if n < 40 {
				t.Errorf("%d calls can fail: the story is to make more", n-1)
			}
			return
		}
		if s.err != nil && !errors.Is(s.err, syscall.EBUSY) {
			t.Errorf("call %d: the error is %v", n, s.err)
		}
	}
}

// TestUnbelievable: a driver that speaks of more than there can be is an error, and what was made before it is freed.
func TestUnbelievable(t *testing.T) {
	f := fake(t)
	before := heldNow(f)
	// What is held is compared once the device is closed: while it is open, its events take memory when they will.
	t.Run("open", func(t *testing.T) {
		p := newPair(t, f, fakeName)
		pd := must(p.dev.Provider().AllocPD())(t)
		defer pd.Close()
		for part, cap := range map[string]verbs.QPCap{
			"up to 4294967295 SGEs": {MaxSendWR: 4, MaxSendSGE: 4, MaxRecvWR: 4, MaxRecvSGE: math.MaxUint32},
			"up to 65537 SGEs":      {MaxSendWR: 4, MaxSendSGE: 1<<16 + 1},
		} {
			_, err := pd.CreateQP(&verbs.ProviderQPInitAttr{Type: verbs.QPTypeRC, SendCQ: p.cq.Provider(), RecvCQ: p.cq.Provider(), Cap: cap}, nil)
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("the error is %v, want one with %q", err, part)
			}
		}
	})
	if got := heldNow(f); got != before {
		t.Errorf("%+v are held, and %+v before", got, before)
	}
}

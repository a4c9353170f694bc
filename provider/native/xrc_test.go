//go:build linux && (amd64 || arm64)

package native

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// xrcPair is an initiator and a target of a device, connected by RoCE.
type xrcPair struct {
	*pair
	xrcd   *verbs.XRCD
	srq    *verbs.SRQ
	from   *verbs.QP
	to     *verbs.QP
	toCQ   *verbs.CQ
	closes []interface{ Close() error }
}

func (x *xrcPair) later(c interface{ Close() error }) { x.closes = append(x.closes, c) }

func newXRCPair(t testing.TB, f *fakeLibrary) *xrcPair {
	t.Helper()
	x := &xrcPair{pair: newPair(t, f, fakeName)}
	x.xrcd = must(x.dev.OpenXRCD(verbs.XRCDAttr{}))(t)
	x.later(x.xrcd)
	x.toCQ = must(x.dev.CreateCQ(16))(t)
	x.later(x.toCQ)
	x.srq = must(x.xrcd.CreateSRQ(x.pd, x.toCQ, verbs.SRQAttr{MaxWR: 8, MaxSGE: 2}))(t)
	x.from = must(x.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeXRCSend, SendCQ: x.cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 1}}))(t)
	x.later(x.from)
	x.to = must(x.xrcd.CreateQP(verbs.QPInitAttr{}))(t)
	gid := must(x.dev.GID(rocePort, rocev2))(t).GID
	for q, peer := range map[*verbs.QP]*verbs.QP{x.from: x.to, x.to: x.from} {
		check(t, q.Init(rocePort, everything))
		check(t, q.RTR(verbs.Peer{QPN: peer.QPN(), GID: gid}, verbs.Path{SGIDIndex: rocev2}))
	}
	check(t, x.from.RTS(0, verbs.DefaultRetry))
	t.Cleanup(func() {
		for i := len(x.closes) - 1; i >= 0; i-- {
			check(t, x.closes[i].Close())
		}
	})
	return x
}

// message sends a message to the SRQ, which takes a receive.
func (x *xrcPair) message(t testing.TB, id uint64) {
	t.Helper()
	if n, err := x.srq.PostRecv([]verbs.RecvWR{{ID: id, SGList: []verbs.SGE{x.mr.SGE(64, 8)}}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	check(t, x.from.PostOneSend(verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: verbs.SendSignaled, RemoteSRQN: x.srq.Num()}, x.mr.SGE(0, 8)))
	var wcs [2]verbs.WC
	if n := must(x.cq.Poll(wcs[:]))(t); n != 1 || wcs[0].Err() != nil || wcs[0].QP != x.from {
		t.Fatalf("%d completions of the initiator: %+v", n, wcs[0])
	}
}

// TestXRCHandles: a target lives until its last handle is closed. Completions name the oldest one that is open, as they come; those
// of a handle, or an SRQ, that is closed stay. The driver drops them.
func TestXRCHandles(t *testing.T) {
	x := newXRCPair(t, fake(t))
	again := must(x.xrcd.OpenQP(x.to.QPN(), nil))(t)
	third := must(x.xrcd.OpenQP(x.to.QPN(), nil))(t)
	if again.State() != verbs.QPStateRTR || again.QPN() != x.to.QPN() {
		t.Errorf("another handle: state %v, number %v", again.State(), again.QPN())
	}
	check(t, again.RTS(0, verbs.DefaultRetry))
	if s := x.to.State(); s != verbs.QPStateRTS {
		t.Errorf("the first handle has the state %v, want that to which the other has taken the QP", s)
	}
	x.message(t, 1)
	x.message(t, 2)
	check(t, third.Close())
	check(t, x.to.Close())
	x.message(t, 3)
	check(t, again.Close())
	check(t, x.srq.Close())
	wcs := make([]verbs.WC, 4)
	if n := must(x.toCQ.Poll(wcs))(t); n != 3 {
		t.Fatalf("%d completions, want 3", n)
	}
	for i, want := range []*verbs.QP{x.to, x.to, again} {
		if wc := &wcs[i]; wc.ID != uint64(i+1) || wc.Err() != nil || wc.QP != want || wc.ByteLen != 8 {
			t.Errorf("completion %d: %+v, of %p, want of %p", i, wc, wc.QP, want)
		}
	}
	if d := x.dev.Provider().(*device); len(d.targets.handles) != 0 {
		t.Errorf("%d targets are known, want none", len(d.targets.handles))
	}
}

// TestXRCEvents: each handle of a target hears of its events, as the kernel tells them.
func TestXRCEvents(t *testing.T) {
	x := newXRCPair(t, fake(t))
	again := must(x.xrcd.OpenQP(x.to.QPN(), nil))(t)
	x.message(t, 1)
	seen := map[*verbs.QP]bool{}
	for range 2 {
		ev := must(x.dev.NextEvent(t.Context()))(t)
		if ev.Type != verbs.EventCommEst {
			t.Errorf("event %+v, want %v", ev, verbs.EventCommEst)
		}
		seen[ev.QP] = true
	}
	if !seen[x.to] || !seen[again] {
		t.Errorf("events of %v, want of both handles", seen)
	}
	for _, c := range []interface{ Close() error }{again, x.to, x.srq} {
		check(t, c.Close())
	}
}

// TestXRCErrors: what the kernel says of domains and targets has its kind and, where there is one, a remedy.
func TestXRCErrors(t *testing.T) {
	f := fake(t)
	x := newXRCPair(t, f)
	x.later(x.srq)
	x.later(x.to)
	file := must(os.Create(filepath.Join(t.TempDir(), "domain")))(t)
	defer file.Close()
	_, err := x.dev.OpenXRCD(verbs.XRCDAttr{File: file})
	wantErr(t, "no domain", err, verbs.ErrNotFound, "ibv_open_xrcd", "set Create to make one")
	named := must(x.dev.OpenXRCD(verbs.XRCDAttr{File: file, Create: true}))(t)
	_, err = x.dev.OpenXRCD(verbs.XRCDAttr{File: file, Create: true, Exclusive: true})
	wantErr(t, "a domain that exists", err, verbs.ErrBusy, "has an XRC domain already")
	_, err = named.OpenQP(x.to.QPN(), nil)
	wantErr(t, "a target of another domain", err, verbs.ErrNotFound, "ibv_open_qp", "has no target QP")
	check(t, named.Close())
	check(t, file.Close())
	_, err = x.dev.OpenXRCD(verbs.XRCDAttr{File: file, Create: true})
	wantErr(t, "a file that is closed", err, verbs.ErrInvalid, "File: ")
	_, err = x.from.PostSend([]verbs.SendWR{{Op: verbs.OpFlush, Remote: x.mr.Remote(0), RemoteSRQN: x.srq.Num(), Flush: verbs.Flush{Length: 8, Placement: verbs.FlushGlobal}}})
	wantErr(t, "a FLUSH", err, verbs.ErrUnsupported, "FLUSH by a QPT_XRC_SEND QP", "use an RC QP")
	before := heldNow(f)
	ignore := func(_ any, err error) error { return err }
	for _, c := range []struct {
		call  string
		errno syscall.Errno
		kind  error
		part  string
		do    func() error
	}{
		{"ibv_open_xrcd", syscall.ENOSYS, verbs.ErrUnsupported, "open xrcd on", func() error { return ignore(x.dev.OpenXRCD(verbs.XRCDAttr{})) }},
		{"ibv_close_xrcd", syscall.EBUSY, verbs.ErrBusy, "close", func() error {
			other := must(x.dev.OpenXRCD(verbs.XRCDAttr{}))(t)
			err := other.Close()
			check(t, other.Close())
			return err
		}},
		{"ibv_create_srq_ex", syscall.ENOMEM, verbs.ErrLimit, "create srq in", func() error { return ignore(x.xrcd.CreateSRQ(x.pd, x.toCQ, verbs.SRQAttr{MaxWR: 1})) }},
		{"ibv_get_srq_num", syscall.EIO, syscall.EIO, "the device has failed or is gone", func() error { return ignore(x.xrcd.CreateSRQ(x.pd, x.toCQ, verbs.SRQAttr{MaxWR: 1})) }},
		{"ibv_create_qp_ex", syscall.ENOSPC, verbs.ErrLimit, "create qp in", func() error { return ignore(x.xrcd.CreateQP(verbs.QPInitAttr{})) }},
		{"ibv_open_qp", syscall.ENOMEM, verbs.ErrLimit, "open qp in", func() error { return ignore(x.xrcd.OpenQP(x.to.QPN(), nil)) }},
	} {
		f.fail(c.call, int32(c.errno))
		err := c.do()
		wantErr(t, c.call, err, c.kind, c.part, c.call)
		wantErr(t, c.call, err, c.errno)
		if got := heldNow(f); got != before {
			t.Errorf("%s: %+v are held, and %+v before", c.call, got, before)
		}
	}
	d := f.device(t, quickName) // whose driver knows the oldest calls alone
	defer d.Close()
	_, err = d.Provider().(*device).OpenXRCD(verbs.XRCDAttr{})
	wantErr(t, "an old driver", err, verbs.ErrUnsupported, "ibv_open_xrcd is missing")
}

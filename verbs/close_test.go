package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// permute calls f with every order of 0 to n-1.
func permute(n int, f func(order []int)) {
	order := make([]int, 0, n)
	var extend func()
	extend = func() {
		if len(order) == n {
			f(order)
			return
		}
		for i := range n {
			if !slices.Contains(order, i) {
				order = append(order, i)
				extend()
				order = order[:len(order)-1]
			}
		}
	}
	extend()
}

// TestCloseInAnyOrder closes the objects of a connected QP in each order that there is. An object that
// others depend on does not close, and its error names them.
func TestCloseInAnyOrder(t *testing.T) {
	const device, pd, mr, sendCQ, recvCQ, qp = 0, 1, 2, 3, 4, 5
	names := []string{"device", "pd", "mr", "send cq", "receive cq", "qp"}
	dependents := map[int][]int{device: {pd, sendCQ, recvCQ}, pd: {mr, qp}, sendCQ: {qp}, recvCQ: {qp}}
	net := rdmatest.New(t)
	permute(6, func(order []int) {
		d := net.Device()
		p := must(d.AllocPD())(t)
		m := must(p.AllocMR(64, rdmatest.Access))(t)
		s, r := must(d.CreateCQ(4))(t), must(d.CreateCQ(4))(t)
		q := must(p.CreateQP(verbs.QPInitAttr{SendCQ: s, RecvCQ: r}))(t)
		check(t, q.Init(1, rdmatest.Access))
		check(t, q.RTR(verbs.Peer{QPN: 1, GID: gid(t, d)}, verbs.Path{}))
		in := map[int]string{pd: "pd 1", mr: fmt.Sprintf("mr lkey %v", m.LKey()), sendCQ: "cq 1", recvCQ: "cq 2", qp: fmt.Sprintf("qp %v", q.QPN())}
		closers := []func() error{d.Close, p.Close, m.Close, s.Close, r.Close, q.Close}

		open := []int{device, pd, mr, sendCQ, recvCQ, qp}
		for len(open) > 0 {
			for _, i := range order {
				if !slices.Contains(open, i) {
					if err := closers[i](); err != nil {
						t.Fatalf("order %v: second close of %s: %v, want no error", order, names[i], err)
					}
					continue
				}
				var left []string
				for _, dep := range dependents[i] {
					if slices.Contains(open, dep) {
						left = append(left, in[dep])
					}
				}
				err := closers[i]()
				if len(left) > 0 {
					wantErr(t, "close "+names[i], err, verbs.ErrBusy, append(left, "close ", "still in use by", "close them first")...)
				} else if err != nil {
					t.Fatalf("order %v: close %s: %v, want no error", order, names[i], err)
				} else {
					open = slices.DeleteFunc(open, func(o int) bool { return o == i })
				}
			}
		}
	})
}

// An ErrBusy names some dependents and counts the others.
func TestBusyCounts(t *testing.T) {
	d := device(t)
	pd := must(d.AllocPD())(t)
	for range 10 {
		must(pd.RegMR(make([]byte, 1), 0))(t)
	}
	wantErr(t, "close pd", pd.Close(), verbs.ErrBusy, "close pd 1: still in use by mr lkey 0x", ", 6 more: close them first")
	must(pd.RegMR(make([]byte, 1), 0))(t) // the PD still works
	// The program may not know the PD, if a package has made it.
	wantErr(t, "close device", pd.Device().Close(), verbs.ErrBusy, "still in use by pd 1 (with mr lkey 0x", ", 7 more): close them first")
}

// TestUseAfterClose checks that the verbs of a closed object fail with ErrClosed, and so do the verbs
// that would make something that depends on it.
func TestUseAfterClose(t *testing.T) {
	net := rdmatest.New(t)
	d := net.Device()
	other := net.Device()
	pd, cq := must(d.AllocPD())(t), must(d.CreateCQ(4))(t)
	live := must(other.AllocPD())(t)
	qp := must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1}}))(t)
	mr := must(pd.AllocMR(8, 0))(t)
	ctx := context.Background()
	wrs, rwrs, wcs := []verbs.SendWR{{Op: verbs.OpSend}}, []verbs.RecvWR{{}}, make([]verbs.WC, 1)

	check(t, qp.Close())
	tooMany := []verbs.SGE{{}, {}}
	peer := verbs.Peer{QPN: 1, GID: gid(t, other)}
	for what, f := range map[string]func() error{
		"post send":                func() error { _, err := qp.PostSend(wrs); return err },
		"post nothing":             func() error { _, err := qp.PostSend(nil); return err },
		"post of a bad list":       func() error { _, err := qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend}, {Op: 99}}); return err },
		"post receive":             func() error { _, err := qp.PostRecv(rwrs); return err },
		"post of a bad receive":    func() error { _, err := qp.PostRecv([]verbs.RecvWR{{}, {SGList: tooMany}}); return err },
		"query qp":                 func() error { _, _, err := qp.Query(); return err },
		"modify qp":                func() error { return qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState) },
		"modify qp with bad value": func() error { return qp.Modify(&verbs.QPAttr{Timeout: 99}, verbs.MaskTimeout) },
		"init":                     func() error { return qp.Init(1, 0) },
		"rtr":                      func() error { return qp.RTR(peer, verbs.Path{}) },
		"rts":                      func() error { return qp.RTS(0, verbs.DefaultRetry) },
	} {
		wantErr(t, what, f(), verbs.ErrClosed, fmt.Sprintf("qp %v: closed", qp.QPN()))
	}
	if qp.State() != verbs.QPStateClosed {
		t.Errorf("a closed QP is in %v, want QPS_CLOSED", qp.State())
	}

	srq := must(pd.CreateSRQ(verbs.SRQAttr{MaxWR: 1}))(t)
	shares := must(pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq}))(t)
	check(t, shares.Close())
	_, err := shares.PostRecv(rwrs)
	wantErr(t, "post receive with an SRQ", err, verbs.ErrClosed, "closed")
	check(t, srq.Close())

	check(t, mr.Close())
	check(t, cq.Close())
	for what, f := range map[string]func() error{
		"poll":   func() error { _, err := cq.Poll(wcs); return err },
		"wait":   func() error { _, err := cq.Wait(ctx, wcs); return err },
		"notify": func() error { return cq.Notify(false) },
		"resize": func() error { return cq.Resize(9) },
	} {
		wantErr(t, what, f(), verbs.ErrClosed, "cq 1: closed")
	}
	_, err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	wantErr(t, "create qp on a closed cq", err, verbs.ErrClosed, "create qp in cq 1: closed")

	check(t, pd.Close())
	cq = must(d.CreateCQ(4))(t)
	for what, f := range map[string]func() error{
		"register": func() error { _, err := pd.RegMR(make([]byte, 1), 0); return err },
		"alloc":    func() error { _, err := pd.AllocMR(1, 0); return err },
		"create qp": func() error {
			_, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
			return err
		},
	} {
		wantErr(t, what, f(), verbs.ErrClosed, "pd 1: closed")
	}

	check(t, cq.Close()) // the failed CreateQP has left nothing behind
	check(t, d.Close())
	for what, f := range map[string]func() error{
		"query":      func() error { _, err := d.Query(); return err },
		"query port": func() error { _, err := d.QueryPort(1); return err },
		"gid":        func() error { _, err := d.GID(1, 0); return err },
		"gids":       func() error { _, err := d.GIDs(1); return err },
		"pkey":       func() error { _, err := d.PKey(1, 0); return err },
		"alloc pd":   func() error { _, err := d.AllocPD(); return err },
		"create cq":  func() error { _, err := d.CreateCQ(1); return err },
		"next event": func() error { _, err := d.NextEvent(ctx); return err },
	} {
		wantErr(t, what, f(), verbs.ErrClosed, "device sim0: closed")
	}
	check(t, live.Close())
}

// Close of an object ends the calls that block on it.
func TestCloseEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := device(t)
		cq := must(d.CreateCQ(4))(t)
		errs := make(chan error)
		const waiters = 5
		for range waiters {
			go func() {
				var wcs [2]verbs.WC
				_, err := cq.Wait(context.Background(), wcs[:])
				errs <- err
			}()
		}
		synctest.Wait()
		check(t, cq.Close())
		for range waiters {
			wantErr(t, "wait", <-errs, verbs.ErrClosed, "wait for cq 1: closed")
		}
		for range 2 {
			go func() {
				_, err := d.NextEvent(context.Background())
				errs <- err
			}()
		}
		synctest.Wait()
		check(t, d.Close())
		for range 2 {
			wantErr(t, "next event", <-errs, verbs.ErrClosed, "device sim0: closed")
		}
	})
}

// A closed QP makes no completions of the work that it had, and its peer times out. Completions that are
// in the CQ already stay there.
func TestCloseQPWithWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		src, dst := x.MR(64), y.MR(64)
		y.Recv(recv(1, dst.SGE(0, 64)), recv(2, dst.SGE(0, 64)))
		x.Send(send(3, src.SGE(0, 8)))
		synctest.Wait()
		check(t, y.QP.Close())
		if wc := y.Done(); wc.ID != 1 {
			t.Errorf("completion %+v, want ID %v", wc, 1)
		}
		nothing(t, y) // the second receive is not flushed
		if wc := x.Done(); wc.ID != 3 {
			t.Errorf("completion %+v, want ID %v", wc, 3)
		}
		x.Send(send(4, src.SGE(0, 8)))
		if wc := x.Next(); wc.ID != 4 || wc.Status != verbs.WCRetryExceeded {
			t.Errorf("to a closed QP: completion %+v, want ID 4 with %v", wc, verbs.WCRetryExceeded)
		}
	})
}

// TestCloseLeaksNothing checks that closed objects are collected while their device is open.
func TestCloseLeaksNothing(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	collected := make([]chan struct{}, 5)
	for i := range collected {
		collected[i] = make(chan struct{})
	}
	func() {
		x, y := rdmatest.Connect(t, a, b)
		src, dst := x.MR(4096), y.MR(4096)
		x.Send(write(1, src.SGE(0, 4096), dst.Remote(0)))
		x.Done()
		gone := func(c chan struct{}) { close(c) }
		runtime.AddCleanup(x.QP, gone, collected[0])
		runtime.AddCleanup(x.CQ, gone, collected[1])
		runtime.AddCleanup(x.PD, gone, collected[2])
		runtime.AddCleanup(src, gone, collected[3])
		runtime.AddCleanup(y.QP, gone, collected[4])
		for _, c := range []interface{ Close() error }{x.QP, y.QP, src, dst, x.CQ, x.PD} {
			check(t, c.Close())
		}
	}()
	for _, c := range collected {
		waitCollected(t, c)
	}
	check(t, a.Close())
}

// The PD that packages share is one, stays while there is something in it, and does not keep the device
// from closing.
func TestSharedPD(t *testing.T) {
	d := rdmatest.New(t).Device()
	pd := must(d.SharedPD())(t)
	mr := must(pd.AllocMR(64, 0))(t)
	if again := must(d.SharedPD())(t); again != pd {
		t.Error("SharedPD: got two, want one")
	}
	if err := d.Close(); !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "pd 1 (with mr lkey") {
		t.Errorf("Close with memory in it: got error %v, want %v, and the memory named", err, verbs.ErrBusy)
	}
	check(t, mr.Close())
	cq := must(d.CreateCQ(1))(t)
	if err := d.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close with a CQ: got error %v, want %v", err, verbs.ErrBusy)
	}
	mr = must(pd.AllocMR(64, 0))(t) // it is still there
	check(t, mr.Close())
	check(t, pd.Close()) // by a program
	if again := must(d.SharedPD())(t); again == pd {
		t.Error("SharedPD after it was closed: got the same")
	}
	check(t, cq.Close())
	check(t, d.Close())
	if _, err := d.SharedPD(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("SharedPD of a closed device: got error %v, want %v", err, verbs.ErrClosed)
	}
}

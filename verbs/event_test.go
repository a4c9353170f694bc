package verbs_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// onlyEvent checks the device's next event, and that there is no other.
func onlyEvent(t *testing.T, e *rdmatest.Endpoint, typ verbs.EventType) {
	t.Helper()
	if ev := nextEvent(t, e.Device); ev.Type != typ || ev.QP != e.QP || ev.CQ != nil || ev.Port != 0 {
		t.Errorf("%v of %v, want %v of %v", ev.Type, ev.QP, typ, e.QP)
	}
	noEvent(t, e)
}

func noEvent(t *testing.T, e *rdmatest.Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // of the bubble
	defer cancel()
	ev, err := e.Device.NextEvent(ctx)
	wantErr(t, "NextEvent without events", err, context.DeadlineExceeded, "wait for an event of device "+e.Device.Name())
	if err == nil {
		t.Errorf("event %v, want none", ev.Type)
	}
}

// EventCommEst is raised by the first packet that comes while the QP is in RTR.
func TestEventCommEst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t)
		a, b := net.Device(), net.Device()
		x, y := newQP(t, a, verbs.QPCap{MaxSendWR: 4}), newQP(t, b, verbs.QPCap{})
		for i, qp := range []*verbs.QP{x, y} {
			check(t, qp.Init(1, rdmatest.Access))
			peer := []*verbs.QP{y, x}[i]
			check(t, qp.RTR(verbs.Peer{QPN: peer.QPN(), GID: gid(t, peer.PD().Device())}, verbs.Path{}))
		}
		check(t, x.RTS(0, verbs.DefaultRetry))
		for range 2 {
			must(x.PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}}))(t)
			var wcs [1]verbs.WC
			must(x.SendCQ().Wait(context.Background(), wcs[:]))(t)
		}
		ye := &rdmatest.Endpoint{Device: b, QP: y}
		onlyEvent(t, ye, verbs.EventCommEst)
		check(t, y.RTS(0, verbs.DefaultRetry))
	})
}

// EventSQDrained is raised when a QP that was taken to SQD has done all that it had begun.
func TestEventSQDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.Config{Delay: time.Millisecond})
		x, y := rdmatest.Connect(t, net.Device(), net.Device())
		const size = 4 << 20
		src, dst := x.MR(size), y.MR(size)
		drain := func(notify bool) {
			t.Helper()
			check(t, x.QP.Modify(&verbs.QPAttr{State: verbs.QPStateSQD, EnSQDAsyncNotify: notify}, verbs.MaskState|verbs.MaskEnSQDAsyncNotify))
		}
		resume := func() {
			t.Helper()
			check(t, x.QP.Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState))
		}
		x.Send(write(1, src.SGE(0, size), dst.Remote(0)), write(2, src.SGE(0, size), dst.Remote(0)))
		drain(true)
		if a, _, err := x.QP.Query(); err != nil || !a.SQDraining {
			t.Errorf("draining: %+v, %v; want SQDraining", a, err)
		}
		start := time.Now()
		onlyEvent(t, x, verbs.EventSQDrained)
		if time.Since(start) < 2*time.Millisecond {
			t.Error("the event came before the work was acknowledged")
		}
		if a, _, err := x.QP.Query(); err != nil || a.SQDraining || a.State != verbs.QPStateSQD {
			t.Errorf("drained: %+v, %v; want SQD, and SQDraining false", a, err)
		}
		if wc := x.Done(); wc.ID != 1 { // the one that was under way
			t.Errorf("completion %+v, want ID %v", wc, 1)
		}
		nothing(t, x)
		resume()
		if wc := x.Done(); wc.ID != 2 {
			t.Errorf("completion %+v, want ID %v", wc, 2)
		}
		drain(false)
		noEvent(t, x)
		resume()
		drain(true) // nothing to drain
		onlyEvent(t, x, verbs.EventSQDrained)
	})
}

// A request that breaks a rule fails at the requester. The responder has no work request that could
// fail, so its device raises an event.
func TestEventsOfBadRequests(t *testing.T) {
	tests := []struct {
		name   string
		access verbs.Access // of the responder's QP
		wr     func(src, dst *verbs.MR) verbs.SendWR
		status verbs.WCStatus
		event  verbs.EventType
	}{
		{"WRITE outside", rdmatest.Access, func(src, dst *verbs.MR) verbs.SendWR { return write(1, src.SGE(0, 8), dst.Remote(60)) }, verbs.WCRemAccessErr, verbs.EventQPAccessErr},
		{"READ outside", rdmatest.Access, func(src, dst *verbs.MR) verbs.SendWR { return read(1, src.SGE(0, 8), dst.Remote(60)) }, verbs.WCRemAccessErr, verbs.EventQPAccessErr},
		{"WRITE not allowed", verbs.AccessRemoteRead, func(src, dst *verbs.MR) verbs.SendWR { return write(1, src.SGE(0, 8), dst.Remote(0)) }, verbs.WCRemInvReqErr, verbs.EventQPReqErr},
		{"READ not allowed", verbs.AccessRemoteWrite, func(src, dst *verbs.MR) verbs.SendWR { return read(1, src.SGE(0, 8), dst.Remote(0)) }, verbs.WCRemInvReqErr, verbs.EventQPReqErr},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x, y := pair(t)
				check(t, y.QP.Modify(&verbs.QPAttr{Access: tt.access}, verbs.MaskAccessFlags))
				x.Send(tt.wr(x.MR(64), y.MR(64)))
				if wc := x.Next(); wc.Status != tt.status {
					t.Errorf("completion with %v, want %v", wc.Err(), tt.status)
				}
				onlyEvent(t, y, tt.event)
				noEvent(t, x)
				if x.QP.State() != verbs.QPStateErr || y.QP.State() != verbs.QPStateErr {
					t.Errorf("states %v and %v, want QPS_ERR of both", x.QP.State(), y.QP.State())
				}
			})
		})
	}
}

// The events of a closed QP are not delivered: the program may know nothing of it any more.
func TestEventsOfClosedQP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		x.Send(write(1, x.MR(8).SGE(0, 8), y.MR(4).Remote(0)))
		x.Next()
		check(t, y.QP.Close())
		noEvent(t, y)
	})
}

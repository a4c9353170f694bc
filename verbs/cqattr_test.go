package verbs_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestTimestamps: completions of a software device tell the nanosecond in which they came, if asked. The network takes
// its time, by the simulated clock.
func TestTimestamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := pair(t)
		cq := must(x.Device.CreateCQEx(verbs.CQAttr{Entries: 4, Timestamps: verbs.DeviceTimestamps}))(t)
		qp := must(x.PD.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: x.CQ, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}))(t)
		peer := must(y.PD.CreateQP(verbs.QPInitAttr{SendCQ: y.CQ, RecvCQ: y.CQ, Cap: verbs.QPCap{MaxRecvWR: 4, MaxRecvSGE: 1}}))(t)
		for q, to := range map[*verbs.QP]struct {
			dev *verbs.Device
			qp  *verbs.QP
		}{qp: {y.Device, peer}, peer: {x.Device, qp}} {
			check(t, q.Init(1, verbs.AccessRemoteWrite))
			check(t, q.RTR(verbs.Peer{QPN: to.qp.QPN(), GID: must(to.dev.GID(1, 0))(t).GID}, verbs.Path{}))
			check(t, q.RTS(0, verbs.DefaultRetry))
		}
		attr := must(x.Device.Query())(t)
		before := must(x.Device.RawClock())(t)
		time.Sleep(time.Second)
		check(t, qp.PostOneSend(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled})) // waits for a receive
		time.Sleep(time.Second)
		check(t, peer.PostOneRecv(1))
		var wcs [1]verbs.WC
		must(cq.Wait(t.Context(), wcs[:]))(t)
		check(t, wcs[0].Err())
		came := attr.Elapsed(before, wcs[0].Timestamp)
		if now := attr.Elapsed(before, must(x.Device.RawClock())(t)); came < 2*time.Second || came > now {
			t.Errorf("the completion came after %v, want 2s at least, and %v at most", came, now)
		}
		must(y.CQ.Wait(t.Context(), wcs[:]))(t)
		if wcs[0].Timestamp != 0 {
			t.Errorf("a completion of a CQ without timestamps has %d", wcs[0].Timestamp)
		}
	})
}

// TestCQAttr: attributes that a device does not have are refused with the reason.
func TestCQAttr(t *testing.T) {
	d := device(t)
	for what, c := range map[string]struct {
		attr verbs.CQAttr
		kind error
		part string
	}{
		"no entries":        {verbs.CQAttr{Timestamps: verbs.DeviceTimestamps}, verbs.ErrInvalid, "ask for at least one"},
		"a second vector":   {verbs.CQAttr{Entries: 1, CompVector: 1}, verbs.ErrInvalid, "completion vector 1: the device has 1 of them"},
		"a negative vector": {verbs.CQAttr{Entries: 1, CompVector: -1}, verbs.ErrInvalid, "completion vector -1"},
		"a date":            {verbs.CQAttr{Entries: 1, Timestamps: verbs.WallclockTimestamps}, verbs.ErrUnsupported, "use DeviceTimestamps"},
		"no such clock":     {verbs.CQAttr{Entries: 1, Timestamps: 3}, verbs.ErrInvalid, "unknown clock 3"},
	} {
		_, err := d.CreateCQEx(c.attr)
		wantErr(t, what, err, c.kind, "create cq on device", c.part)
	}
	if err := d.Close(); err != nil {
		t.Errorf("a CQ that was refused is left: %v", err)
	}

	d = (&foreign{change: func(a *verbs.DeviceAttr) { a.NumCompVectors, a.TimestampMask, a.ODPCaps = 2, 0, verbs.ODPCaps{} }}).open(t)
	_, err := d.CreateCQEx(verbs.CQAttr{Entries: 1, Timestamps: verbs.DeviceTimestamps})
	wantErr(t, "no clock", err, verbs.ErrUnsupported, "completion_timestamp_mask is 0")
	_, err = d.CreateCQEx(verbs.CQAttr{Entries: 1, CompVector: 1})
	wantErr(t, "no attributes", err, verbs.ErrUnsupported, "no attributes but their size")
	_, err = d.RawClock()
	wantErr(t, "no clock to read", err, verbs.ErrUnsupported, "none that programs can read")
	pd := must(d.AllocPD())(t)
	_, err = pd.AllocMR(64, verbs.AccessOnDemand)
	wantErr(t, "on demand", err, verbs.ErrUnsupported, "no on-demand paging (general_odp_caps)")
	_, err = pd.RegMR(make([]byte, 8), verbs.AccessOnDemand|1<<25)
	wantErr(t, "an unknown flag", err, verbs.ErrInvalid, "unknown access flags")
}

// TestElapsed reckons with clocks of other widths and rates.
func TestElapsed(t *testing.T) {
	for _, c := range []struct {
		mask, kHz, from, to uint64
		want                time.Duration
	}{
		{math.MaxInt64, 1e6, 5, 8, 3},
		{0xffffffff, 250000, 0xffffffff, 0, 4},         // around
		{1<<48 - 1, 156250, 0, 156250000, 1e9},         // a second
		{math.MaxUint64, 1, 0, 1 << 62, math.MaxInt64}, // more than a Duration holds
		{math.MaxUint64, 1e6, 0, math.MaxUint64, math.MaxInt64},
		{0xff, 0, 0, 5, 0}, // no clock
	} {
		a := verbs.DeviceAttr{TimestampMask: c.mask, HCACoreClock: c.kHz}
		if got := a.Elapsed(c.from, c.to); got != c.want {
			t.Errorf("from %#x to %#x with mask %#x at %d kHz: %v, want %v", c.from, c.to, c.mask, c.kHz, got, c.want)
		}
	}
}

//go:build linux && (amd64 || arm64)

package native

import (
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestCompletionVector: the vector that the program names arrives, with and without timestamps.
func TestCompletionVector(t *testing.T) {
	d := fake(t).device(t, fakeName)
	defer d.Close()
	for v := range must(d.Query())(t).NumCompVectors {
		for clock := range verbs.WallclockTimestamps + 1 {
			c := must(d.CreateCQEx(verbs.CQAttr{Entries: 1, CompVector: v, Timestamps: clock}))(t)
			if got := c.Provider().(*cq).r.P().Handle; got != uint32(v) {
				t.Errorf("clock %d: the CQ is of vector %d, want %d", clock, got, v)
			}
			check(t, c.Close())
		}
	}
}

// TestWallclock: completions tell the date, whether polled or taken out of C's hands before.
func TestWallclock(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	cq := must(p.dev.CreateCQEx(verbs.CQAttr{Entries: 8, Timestamps: verbs.WallclockTimestamps}))(t)
	defer cq.Close()
	q := &pair{dev: p.dev, pd: p.pd, mr: p.mr, cq: cq}
	q.a, q.b = q.qp(t), q.qp(t)
	defer q.b.Close()
	q.connect(t)
	before := time.Now()
	check(t, q.a.PostOneSend(q.write(1)))
	check(t, q.a.PostOneSend(q.write(2)))
	wcs := make([]verbs.WC, 4)
	if n := must(cq.Poll(wcs[:1]))(t); n != 1 {
		t.Fatalf("%d completions", n)
	}
	check(t, q.a.Close()) // which keeps the other completion
	if n := must(cq.Poll(wcs[1:]))(t); n != 1 || wcs[1].ID != 2 || wcs[1].QP != q.a {
		t.Fatalf("%d completions: %+v", n, wcs[1])
	}
	for i := range 2 {
		if at := time.Unix(0, int64(wcs[i].Timestamp)); at.Before(before.Truncate(0)) || at.After(time.Now()) {
			t.Errorf("completion %d came at %v, and the program began at %v", i, at, before)
		}
	}
	if n := must(cq.Poll(wcs))(t); n != 0 {
		t.Errorf("%d completions more", n)
	}
}

// TestNoTimestamps: a driver that knows the oldest calls alone has its attributes, and no clock.
func TestNoTimestamps(t *testing.T) {
	f := fake(t)
	d := f.device(t, quickName)
	defer d.Close()
	a := must(d.Query())(t)
	if a.MaxQP == 0 || a.TimestampMask != 0 || a.HCACoreClock != 0 || a.ODPCaps != (verbs.ODPCaps{}) {
		t.Errorf("attributes %+v", a)
	}
	_, err := d.CreateCQEx(verbs.CQAttr{Entries: 1, Timestamps: verbs.DeviceTimestamps})
	wantErr(t, "timestamps", err, verbs.ErrUnsupported, "completion_timestamp_mask is 0")
	_, err = d.CreateCQEx(verbs.CQAttr{Entries: 1, Timestamps: verbs.WallclockTimestamps})
	wantErr(t, "dates", err, verbs.ErrUnsupported, "ibv_create_cq_ex is missing")
	_, err = d.CreateCQEx(verbs.CQAttr{Entries: 1, CompVector: 1})
	wantErr(t, "a second vector", err, verbs.ErrInvalid, "the device has 1 of them")
	_, err = d.RawClock()
	wantErr(t, "the clock", err, verbs.ErrUnsupported, "ibv_query_rt_values_ex is missing")

	d = f.device(t, fakeName)
	defer d.Close()
	f.fail("ibv_create_cq_ex", int32(syscall.EOPNOTSUPP)) // as drivers say that know the call and not the clock
	_, err = d.CreateCQEx(verbs.CQAttr{Entries: 1, Timestamps: verbs.DeviceTimestamps})
	wantErr(t, "timestamps", err, verbs.ErrUnsupported, "ibv_create_cq_ex: operation not supported")
}

// TestOnDemand: what the device may do with memory that is not pinned is told, and such memory is refused where it may do
// nothing.
func TestOnDemand(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	a := must(p.dev.Query())(t)
	if c := a.ODPCaps; c.General != verbs.ODPSupport || c.RC.String() != "SUPPORT_SEND|SUPPORT_RECV|SUPPORT_WRITE|SUPPORT_READ|SUPPORT_ATOMIC|SUPPORT_SRQ" ||
		c.UC != 0 || c.UD != verbs.ODPSend|verbs.ODPRecv|verbs.ODPSRQRecv {
		t.Errorf("capabilities %v", c)
	}
	if a.DeviceCapFlagsEx != verbs.DeviceCapFlagsEx(a.DeviceCapFlags)|1<<34|7<<38 {
		t.Errorf("flags %#x, want those of %#x, 1<<34 and 7<<38", uint64(a.DeviceCapFlagsEx), uint32(a.DeviceCapFlags))
	}
	mr := must(p.pd.RegMR(make([]byte, 64), verbs.AccessOnDemand|verbs.AccessRelaxedOrdering))(t)
	check(t, mr.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessLocalWrite))
	check(t, mr.Close())

	d := f.device(t, quickName)
	defer d.Close()
	pd := must(d.AllocPD())(t)
	defer pd.Close()
	_, err := pd.AllocMR(64, verbs.AccessOnDemand)
	wantErr(t, "on demand", err, verbs.ErrUnsupported, "no on-demand paging (general_odp_caps)")
	mr = must(pd.AllocMR(64, verbs.AccessRelaxedOrdering))(t)
	wantErr(t, "rereg on demand", mr.Rereg(verbs.ReregAccess, nil, nil, verbs.AccessOnDemand), verbs.ErrUnsupported, "no on-demand paging")
	check(t, mr.Close())
}

// TestAccess: the flags that C is told. A wish for huge pages is the kernel's business on demand alone.
func TestAccess(t *testing.T) {
	for in, want := range map[verbs.Access]verbs.Access{
		verbs.AccessZeroBased | verbs.AccessLocalWrite:                           verbs.AccessLocalWrite,
		verbs.AccessHugeTLB | verbs.AccessRelaxedOrdering:                        verbs.AccessRelaxedOrdering,
		verbs.AccessHugeTLB | verbs.AccessOnDemand | verbs.AccessMWBind:          verbs.AccessHugeTLB | verbs.AccessOnDemand | verbs.AccessMWBind,
		verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessOnDemand: verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessOnDemand,
	} {
		if got := accessOf(in); got != uint32(want) {
			t.Errorf("%v: C is told %v, want %v", in, verbs.Access(got), want)
		}
	}
}

package rdmatest_test

import (
	"bytes"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

func TestConnect(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	x, y := rdmatest.Connect(t, a, b)

	src, dst := x.MR(64), y.MR(64)
	copy(src.Bytes(), "over memory")
	y.Recv(verbs.RecvWR{ID: 7, SGList: []verbs.SGE{dst.SGE(0, 64)}})
	x.Send(verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 11)}})
	if wc := y.Done(); wc.ID != 7 || wc.Op != verbs.WCRecv || wc.ByteLen != 11 || string(dst.Bytes()[:11]) != "over memory" {
		t.Errorf("received %+v, %q; want ID 7, 11 bytes, \"over memory\"", wc, dst.Bytes()[:11])
	}
	if wc := x.Done(); wc.ID != 3 || wc.Op != verbs.WCSend {
		t.Errorf("sent %+v, want ID 3, SEND", wc)
	}
}

// Both ends get the values of Options, and its defaults.
func TestOptions(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	x, y := rdmatest.Connect(t, a, b)
	for _, e := range []*rdmatest.Endpoint{x, y} {
		attr, init, err := e.QP.Query()
		if err != nil {
			t.Fatal(err)
		}
		c := init.Cap
		if c.MaxSendWR < 64 || c.MaxRecvWR < 64 || c.MaxSendSGE < 4 || c.MaxRecvSGE < 4 || c.MaxInlineData < 64 || e.CQ.Cap() < c.MaxSendWR+c.MaxRecvWR {
			t.Errorf("defaults: %+v, and a CQ of %d; want 64 work requests, 4 SGEs, 64 bytes inline, and a CQ for all", c, e.CQ.Cap())
		}
		if attr.State != verbs.QPStateRTS || attr.Access != rdmatest.Access || attr.RQPSN == 0 || attr.RQPSN != attr.SQPSN || attr.Timeout != verbs.DefaultRetry.Timeout {
			t.Errorf("defaults: %+v, want RTS, access %v, one PSN both ways and timeout %d", attr, rdmatest.Access, verbs.DefaultRetry.Timeout)
		}
	}
	x, y = rdmatest.Connect(t, a, b, rdmatest.Options{
		Cap: verbs.QPCap{MaxSendWR: 1000}, CQ: 5, GIDIndex: 1, PSN: 77,
		Path: verbs.Path{MTU: verbs.MTU256, MinRNRTimer: 3}, Retry: verbs.Retry{Timeout: 20, RetryCount: rdmatest.Zero},
	})
	for i, e := range []*rdmatest.Endpoint{x, y} {
		attr, init, err := e.QP.Query()
		if err != nil {
			t.Fatal(err)
		}
		if init.Cap.MaxSendWR < 1000 || e.CQ.Cap() < 5 || e.CQ.Cap() > 1000 {
			t.Errorf("%+v, and a CQ of %d; want 1000 sends, and a CQ of 5 or a little more", init.Cap, e.CQ.Cap())
		}
		if attr.AH.SGIDIndex != 1 || attr.AH.DGID.String() != []string{"fd00::2", "fd00::1"}[i] || attr.RQPSN != 77 || attr.SQPSN != 77 ||
			attr.PathMTU != verbs.MTU256 || attr.MinRNRTimer != 3 || attr.Timeout != 20 || attr.RetryCnt != 0 ||
			attr.RNRRetry != verbs.DefaultRetry.RNRRetryCount || attr.MaxRDAtomic == 0 {
			t.Errorf("end %d: %+v, want what Options says", i, attr)
		}
	}
	x, y = rdmatest.Datagrams(t, a, b, rdmatest.Options{Path: verbs.Path{TrafficClass: 0x68}})
	for i, e := range []*rdmatest.Endpoint{x, y} {
		if got := e.AH.Attr().TrafficClass; got != 0x68 {
			t.Errorf("end %d of Datagrams: got traffic class %#02x, want 0x68", i, got)
		}
	}
}

// A partition makes a connection fail after 8 timeouts of 67 ms, which take no time inside a
// bubble. If the partition heals before, it costs one retry.
func TestPartitionInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t)
		a, b := net.Device(), net.Device()
		x, _ := rdmatest.Connect(t, a, b)
		send := verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
		net.Partition(b, a)
		x.Send(send)
		synctest.Wait()
		net.Heal(a, b)
		start := time.Now()
		x.Done()
		if took := time.Since(start); took < 60*time.Millisecond || took > 200*time.Millisecond {
			t.Errorf("the retry took %v, want one timeout, of 67 ms", took)
		}
		net.Partition(a, b)
		x.Send(send)
		if wc := x.Next(); wc.Status != verbs.WCRetryExceeded {
			t.Errorf("partitioned: status %v, want %v", wc.Status, verbs.WCRetryExceeded)
		}
	})
}

// writes WRITEs single packets one after the other, and returns how long each took.
func writes(t *testing.T, c rdmatest.Config, n int) (took []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, c)
		x, y := rdmatest.Connect(t, net.Device(), net.Device())
		src, dst := x.MR(8), y.MR(8)
		for range n {
			start := time.Now()
			x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
			x.Done()
			took = append(took, time.Since(start))
		}
	})
	return took
}

// The seed decides which packets are lost.
func TestSeedRepeats(t *testing.T) {
	c := rdmatest.Config{Seed: 42, Loss: 0.2, Delay: time.Millisecond, Jitter: time.Millisecond}
	first := writes(t, c, 100)
	if again := writes(t, c, 100); !slices.Equal(first, again) {
		t.Errorf("seed 42 gave %v and then %v", first, again)
	}
	c.Seed = 43
	if other := writes(t, c, 100); slices.Equal(first, other) {
		t.Error("another seed gave the same")
	}
	if slices.Min(first) < 2*time.Millisecond || slices.Max(first) < 60*time.Millisecond {
		t.Errorf("WRITEs took %v, want 2 ms at least for each, and 60 ms for one that was lost", first)
	}
}

func TestSeed(t *testing.T) {
	t.Setenv("ADVERB_SEED", "0x2a")
	if s := rdmatest.New(t).Seed(); s != 42 {
		t.Errorf("seed %d, want the environment's, 42", s)
	}
	if s := rdmatest.New(t, rdmatest.Config{Seed: 7}).Seed(); s != 7 {
		t.Errorf("seed %d, want Config's, 7, and not the environment's", s)
	}
	t.Setenv("ADVERB_SEED", "")
	if a, b := rdmatest.New(t).Seed(), rdmatest.New(t).Seed(); a == b {
		t.Errorf("seed %d twice, want different ones", a)
	}
}

// Faults come and go while traffic flows, and none of them reaches the program.
func TestSetFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.Config{MTU: 1500})
		x, y := rdmatest.Connect(t, net.Device(), net.Device())
		const size = 200_000
		src, dst := x.MR(size), y.MR(size)
		for i, c := range []rdmatest.Config{
			{}, {Loss: 0.05}, {Duplicate: 0.3}, {Reorder: 0.3}, {Corrupt: 0.05}, {Delay: time.Millisecond, Jitter: time.Millisecond},
			{Loss: 0.03, Duplicate: 0.03, Reorder: 0.03, Corrupt: 0.03, Delay: time.Microsecond}, {},
		} {
			net.SetFaults(c)
			for j := range src.Bytes() {
				src.Bytes()[j] = byte(i + j)
			}
			y.Recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, size)}})
			x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}})
			x.Done()
			y.Done()
			if !bytes.Equal(src.Bytes(), dst.Bytes()) {
				t.Fatalf("data differ with %+v", c)
			}
		}
	})
}

// A congested network marks packets that allow it. The receiver of a datagram sees the mark in the
// GRH.
func TestMarkCE(t *testing.T) {
	const ect0, ce, dscp = 0b10, 0b11, 26 << 2
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.Config{MarkCE: 1})
		x, y := newDatagramEnd(t, net.Device()), newDatagramEnd(t, net.Device())
		for gid := range 2 { // IPv4 and IPv6
			for class, want := range map[uint8]uint8{dscp | ect0: dscp | ce, dscp: dscp} {
				if got := x.classOf(y, gid, class); got != want {
					t.Errorf("GID %d: what is sent with traffic class %#02x has %#02x, want %#02x", gid, class, got, want)
				}
			}
		}
		net.SetFaults(rdmatest.Config{MarkCEAbove: 1})
		if got := x.classOf(y, 0, ect0); got != ect0 {
			t.Errorf("on a network that is idle, traffic class %#02x has become %#02x", ect0, got)
		}
	})
}

// datagramEnd is a UD QP.
type datagramEnd struct {
	t   *testing.T
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
}

func newDatagramEnd(t *testing.T, dev *verbs.Device) *datagramEnd {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e := &datagramEnd{t: t, dev: dev}
	var err error
	e.pd, err = dev.AllocPD()
	must(err)
	e.cq, err = dev.CreateCQ(8)
	must(err)
	e.mr, err = e.pd.AllocMR(verbs.GRHSize, verbs.AccessLocalWrite)
	must(err)
	e.qp, err = e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxRecvSGE: 1}})
	must(err)
	must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: 1}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState|verbs.MaskSQPSN))
	return e
}

// classOf sends an empty datagram with a traffic class, and returns the class with which it
// arrives.
func (e *datagramEnd) classOf(to *datagramEnd, gid int, class uint8) uint8 {
	e.t.Helper()
	gids, err := to.dev.GIDs(1)
	if err != nil {
		e.t.Fatal(err)
	}
	ah, err := e.pd.CreateAH(verbs.AHAttr{DGID: gids[gid].GID, SGIDIndex: gid, TrafficClass: class})
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := to.qp.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{to.mr.SGE(0, verbs.GRHSize)}}}); err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, AH: ah, RemoteQPN: to.qp.QPN(), RemoteQKey: 1}}); err != nil {
		e.t.Fatal(err)
	}
	var wcs [1]verbs.WC
	for _, cq := range []*verbs.CQ{e.cq, to.cq} {
		if _, err := cq.Wait(e.t.Context(), wcs[:]); err != nil || wcs[0].Err() != nil {
			e.t.Fatal(err, wcs[0].Err())
		}
	}
	back, err := to.dev.AHAttrFromWC(1, &wcs[0], to.mr.Bytes())
	if err != nil {
		e.t.Fatal(err)
	}
	return back.TrafficClass
}

// A long message takes as long as its bytes need at the network's rate.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 2 << 20
		net := rdmatest.New(t, rdmatest.Config{Rate: 100 << 20, Delay: time.Microsecond})
		x, y := rdmatest.Connect(t, net.Device(), net.Device())
		src, dst := x.MR(size), y.MR(size)
		start := time.Now()
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
		x.Done()
		if took := time.Since(start); took < 20*time.Millisecond || took > 25*time.Millisecond {
			t.Errorf("2 MiB at 100 MiB/s take %v, want 20 ms and a little for headers and the acknowledgement", took)
		}
	})
}

// A test may close its devices itself, or leave everything open.
func TestDeviceCloses(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	if a.Name() != "sim0" || b.Name() != "sim1" {
		t.Errorf("names %s and %s, want sim0 and sim1", a.Name(), b.Name())
	}
	x, _ := rdmatest.Connect(t, a, b)
	if _, err := x.PD.RegMR(make([]byte, 10), 0); err != nil { // still pinned when the test ends
		t.Error(err)
	}
	c := net.Device()
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

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
		t.Errorf("received %+v, %q", wc, dst.Bytes()[:11])
	}
	if wc := x.Done(); wc.ID != 3 || wc.Op != verbs.WCSend {
		t.Errorf("sent %+v", wc)
	}
}

// Both ends get what Options says, and its defaults.
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
			t.Errorf("defaults: %+v, and a CQ of %d", c, e.CQ.Cap())
		}
		if attr.State != verbs.QPStateRTS || attr.Access != rdmatest.Access || attr.RQPSN == 0 || attr.RQPSN != attr.SQPSN || attr.Timeout != verbs.DefaultRetry.Timeout {
			t.Errorf("defaults: %+v", attr)
		}
	}
	x, y = rdmatest.Connect(t, a, b, rdmatest.Options{
		Cap: verbs.QPCap{MaxSendWR: 1000}, CQ: 5, GIDIndex: 1, PSN: 77,
		Path: verbs.Path{MTU: verbs.MTU256, MinRNRTimer: 3}, Retry: verbs.Retry{Timeout: 20, Count: 1},
	})
	for i, e := range []*rdmatest.Endpoint{x, y} {
		attr, init, err := e.QP.Query()
		if err != nil {
			t.Fatal(err)
		}
		if init.Cap.MaxSendWR < 1000 || e.CQ.Cap() < 5 || e.CQ.Cap() > 1000 {
			t.Errorf("%+v, and a CQ of %d", init.Cap, e.CQ.Cap())
		}
		if attr.AH.SGIDIndex != 1 || attr.AH.DGID.String() != []string{"fd00::2", "fd00::1"}[i] || attr.RQPSN != 77 || attr.SQPSN != 77 ||
			attr.PathMTU != verbs.MTU256 || attr.MinRNRTimer != 3 || attr.Timeout != 20 || attr.RetryCnt != 1 {
			t.Errorf("%+v", attr)
		}
	}
}

// A partition ends in a timeout, whose 8 × 67 ms take no time inside a bubble. One that
// heals before costs a retry.
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
			t.Errorf("the retry took %v", took)
		}
		net.Partition(a, b)
		x.Send(send)
		if wc := x.Next(); wc.Status != verbs.WCRetryExceeded {
			t.Errorf("partitioned: %v", wc.Err())
		}
	})
}

// writes sends single packets one after the other, and returns how long each took.
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

// The seed decides what is lost.
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
		t.Errorf("no delay or no loss: %v", first)
	}
}

func TestSeed(t *testing.T) {
	t.Setenv("ADVERB_SEED", "0x2a")
	if s := rdmatest.New(t).Seed(); s != 42 {
		t.Errorf("seed %d", s)
	}
	if s := rdmatest.New(t, rdmatest.Config{Seed: 7}).Seed(); s != 7 {
		t.Errorf("Config's seed gave way to the environment's: %d", s)
	}
	t.Setenv("ADVERB_SEED", "")
	if a, b := rdmatest.New(t).Seed(), rdmatest.New(t).Seed(); a == b {
		t.Errorf("seed %d twice", a)
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

// A test may close its devices itself, or leave everything open.
func TestDeviceCloses(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	if a.Name() != "sim0" || b.Name() != "sim1" {
		t.Errorf("names %s and %s", a.Name(), b.Name())
	}
	x, _ := rdmatest.Connect(t, a, b)
	if _, err := x.PD.RegMR(make([]byte, 10), 0); err != nil { // pinned when the test ends
		t.Error(err)
	}
	c := net.Device()
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

package rdmatest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestRoute: two devices share the port to a third. QPs with DCQCN fill it, and lose little.
func TestRoute(t *testing.T) {
	const size, rate = 1 << 20, 100e6
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.Config{Seed: 1})
		a, b, c := net.Device(), net.Device(), net.Device()
		port := net.Port(rdmatest.PortConfig{Rate: rate, Delay: 10 * time.Microsecond, Buffer: 8 << 20, MarkFrom: 50 << 10, MarkTo: 200 << 10, MarkMost: .1})
		net.Route(a, c, port)
		net.Route(b, c, port)
		var ends []*rdmatest.Endpoint
		start := time.Now()
		for _, d := range []*verbs.Device{a, b} {
			x, y := rdmatest.Connect(t, d, c)
			if err := x.QP.SetCongestionControl(verbs.CongestionDCQCN); err != nil {
				t.Fatal(err)
			}
			src, dst := x.MR(size), y.MR(size)
			for range 8 {
				x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
			}
			ends = append(ends, x)
		}
		for _, x := range ends {
			for range 8 {
				x.Done()
			}
		}
		took, s := time.Since(start), port.Stats()
		if least := time.Duration(16 * size / rate * 1e9); took < least || took > 2*least {
			t.Errorf("16 MiB took %v, want %v and little more", took, least)
		}
		if s.Marked == 0 || s.Lost > 0 || s.Passed < 16*size/4096 || s.Longest == 0 {
			t.Errorf("%+v, want all passed, some marked and none lost", s)
		}
	})
}

package rdmatest_test

import (
	"errors"
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

// TestPortMTU: a route whose MTU is small carries short messages and loses long ones. The error says why.
func TestPortMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.Config{Seed: 1})
		a, b := net.Device(), net.Device()
		port := net.Port(rdmatest.PortConfig{MTU: 1500})
		net.Route(a, b, port)
		x, y := rdmatest.Connect(t, a, b)
		src, dst := x.MR(8192), y.MR(8192)
		write := func(n int) verbs.WC {
			x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, n)}, Remote: dst.Remote(0)})
			return x.Next()
		}
		if wc := write(1024); wc.Status != verbs.WCSuccess {
			t.Errorf("a short WRITE: got %v, want success", wc.Err())
		}
		wc := write(8192)
		if hole, ok := errors.AsType[*verbs.PathMTUError](wc.Err()); !ok || hole.Fits != verbs.MTU1024 {
			t.Errorf("a long WRITE: got %v, want that a path MTU of 1024 fits", wc.Err())
		}
		if s := port.Stats(); s.TooLong == 0 || s.Lost > 0 {
			t.Errorf("%+v, want packets that are too long, and none lost otherwise", s)
		}
	})
}

// TestPaths: QPs take different paths where the source port decides, one QP takes all where the switch does, and while
// a path is down the packets of a QP that has it come to nothing.
func TestPaths(t *testing.T) {
	const size, n = 64 << 10, 4
	for _, how := range []rdmatest.Spread{rdmatest.ByPort, rdmatest.ByHash, rdmatest.ByPacket} {
		synctest.Test(t, func(t *testing.T) {
			net := rdmatest.New(t, rdmatest.Config{Seed: 1})
			a, b := net.Device(), net.Device()
			var ports []*rdmatest.Port
			var paths [][]*rdmatest.Port
			for range n {
				p := net.Port(rdmatest.PortConfig{Rate: 1e9, Delay: 10 * time.Microsecond})
				ports, paths = append(ports, p), append(paths, []*rdmatest.Port{p})
			}
			net.Paths(a, b, how, paths...)
			used := func() (list []int) {
				for i, p := range ports {
					if p.Stats().Passed > 0 {
						list = append(list, i)
					}
				}
				return list
			}
			x, y := rdmatest.Connect(t, a, b)
			src, dst := x.MR(size), y.MR(size)
			x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
			x.Done()
			if got, one := used(), how != rdmatest.ByPacket; len(got) != map[bool]int{true: 1, false: n}[one] {
				t.Errorf("way %d of choosing: one QP uses the paths %v", how, got)
			}
			for range 15 {
				x, y := rdmatest.Connect(t, a, b)
				src, dst := x.MR(64), y.MR(64)
				x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 64)}, Remote: dst.Remote(0)})
				x.Done()
			}
			if got := used(); len(got) < n/2 {
				t.Errorf("way %d of choosing: 16 QPs use the paths %v of %d", how, got, n)
			}
			for _, p := range ports {
				p.SetDown(true)
			}
			start := time.Now()
			x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
			time.AfterFunc(10*time.Millisecond, func() {
				for _, p := range ports {
					p.SetDown(false)
				}
			})
			x.Done()
			if took := time.Since(start); took < 10*time.Millisecond {
				t.Errorf("way %d of choosing: a WRITE took %v while all paths were down for 10 ms", how, took)
			}
			net.Paths(a, b, how)
			before := ports[0].Stats().Passed
			x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
			x.Done()
			if ports[0].Stats().Passed != before {
				t.Errorf("way %d of choosing: a path that was taken back still leads somewhere", how)
			}
		})
	}
}

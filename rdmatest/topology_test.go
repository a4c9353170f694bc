package rdmatest_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// spread gives two devices as many paths each way, of a rate of 1 GB/s, and a connection with as many source ports. It
// returns the ports of x's paths.
func spread(t *testing.T, net *rdmatest.Network, paths int) (x, y *rdmatest.Endpoint, ports []*rdmatest.Port) {
	a, b := net.Device(), net.Device()
	for _, way := range [][2]*verbs.Device{{b, a}, {a, b}} {
		ports = nil
		var list [][]*rdmatest.Port
		for range paths {
			p := net.Port(rdmatest.PortConfig{Rate: 1e9, Delay: 5 * time.Microsecond})
			ports, list = append(ports, p), append(list, []*rdmatest.Port{p})
		}
		net.Paths(way[0], way[1], rdmatest.ByPort, list...)
	}
	x, y = rdmatest.Connect(t, a, b)
	for _, e := range []*rdmatest.Endpoint{x, y} {
		if err := e.QP.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: true, Accept: true, Paths: paths}); err != nil {
			t.Fatal(err)
		}
	}
	return x, y, ports
}

// transfer WRITEs n messages of a size and fails the test unless y has the last.
func transfer(t *testing.T, x, y *rdmatest.Endpoint, n, size int) (took time.Duration) {
	t.Helper()
	src, dst := x.MR(size), y.MR(size)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16)
	}
	start := time.Now()
	for range n {
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
	}
	for range n {
		x.Done()
	}
	took = time.Since(start)
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Errorf("%d WRITEs of %d bytes are complete, and the memory differs, want it the same", n, size)
	}
	return took
}

// TestSpreadingQP: one QP with as many source ports as there are paths fills them all. If a path fails, or loses much,
// the others carry on, and everything arrives.
func TestSpreadingQP(t *testing.T) {
	const seed, paths, n, size = 1, 4, 16, 1 << 20
	for _, tt := range []struct {
		name string
		bad  func(p *rdmatest.Port) // makes it bad; nil if all are good
	}{
		{"all good", nil},
		{"one down", func(p *rdmatest.Port) { p.SetDown(true) }},
		{"one loses a fifth", func(p *rdmatest.Port) { p.SetFaults(rdmatest.Config{Loss: .2}) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			x, y, ports := spread(t, rdmatest.New(t, rdmatest.Config{Seed: seed}), paths)
			transfer(t, x, y, 1, size) // they learn each other's capabilities
			for _, p := range ports {
				p.ResetStats()
			}
			good := float64(paths)
			if tt.bad != nil {
				tt.bad(ports[1])
				good--
			}
			took := transfer(t, x, y, n, size)
			least := n * size / good / 1e9
			if s := took.Seconds(); tt.bad == nil && s > 1.15*least || s > 2*least {
				t.Errorf("seed %d, %s: %d MiB took %v, want little more than %.1f ms", seed, tt.name, n, took, least*1e3)
			}
			for i, p := range ports {
				s := p.Stats()
				full, bad := s.Bytes > n*size/paths*9/10, tt.bad != nil && i == 1
				if full == bad || !bad && s.CableLost+s.Lost > 0 {
					t.Errorf("seed %d, %s: path %d has %+v, want its part of %d bytes and no losses unless it is bad", seed, tt.name, i, s, n*size)
				}
			}
			if left := counter(t, x, "paths_left") > 0; left != (tt.bad != nil) {
				t.Errorf("seed %d, %s: a path was left: %v, want the opposite", seed, tt.name, left)
			}
		})
	}
}

// TestPortFaults: the faults of a cable show in its port's counts alone, and all of them are repaired.
func TestPortFaults(t *testing.T) {
	const seed, n, size = 1, 4, 256 << 10
	type counts struct{ lost, duplicated, reordered, corrupted, marked bool }
	for _, tt := range []struct {
		faults rdmatest.Config
		want   counts
	}{
		{rdmatest.Config{}, counts{}},
		{rdmatest.Config{Loss: .05}, counts{lost: true}},
		{rdmatest.Config{Duplicate: .05}, counts{duplicated: true}},
		{rdmatest.Config{Reorder: .05}, counts{reordered: true}},
		{rdmatest.Config{Corrupt: .05}, counts{corrupted: true}},
		{rdmatest.Config{MarkCE: .05}, counts{marked: true}},
		{rdmatest.Config{Delay: time.Millisecond, Jitter: time.Millisecond, Seed: 5, MTU: 100}, counts{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			net := rdmatest.New(t, rdmatest.Config{Seed: seed})
			a, b := net.Device(), net.Device()
			good, bad := net.Port(rdmatest.PortConfig{Rate: 1e9}), net.Port(rdmatest.PortConfig{Rate: 1e9, Delay: time.Microsecond})
			net.Route(a, b, good, bad)
			bad.SetFaults(tt.faults)
			x, y := rdmatest.Connect(t, a, b)
			if err := x.QP.SetCongestionControl(verbs.CongestionDCQCN); err != nil { // so that packets allow marks
				t.Fatal(err)
			}
			took := transfer(t, x, y, n, size)
			if took < tt.faults.Delay {
				t.Errorf("seed %d, faults %+v: %d WRITEs took %v, want the delay at least", seed, tt.faults, n, took)
			}
			of := func(s rdmatest.PortStats) counts {
				return counts{s.CableLost > 0, s.Duplicated > 0, s.Reordered > 0, s.Corrupted > 0, s.Marked > 0}
			}
			if s := bad.Stats(); of(s) != tt.want || s.Lost > 0 {
				t.Errorf("seed %d, faults %+v: %+v, want %+v", seed, tt.faults, s, tt.want)
			}
			if s := good.Stats(); of(s) != (counts{}) {
				t.Errorf("seed %d, faults %+v: the port before has %+v, want no faults", seed, tt.faults, s)
			}
			bad.SetFaults(rdmatest.Config{})
			before := bad.Stats()
			transfer(t, x, y, n, size)
			if s := bad.Stats(); s.CableLost != before.CableLost || s.Duplicated != before.Duplicated || s.Corrupted != before.Corrupted {
				t.Errorf("seed %d, faults %+v: %+v at the end of the faults and %+v later, want no more of them", seed, tt.faults, before, s)
			}
		})
	}
}

// refusal is a testing.TB whose Fatalf ends the goroutine and keeps the message.
type refusal struct {
	testing.TB
	says string
}

func (r *refusal) Helper()        {}
func (r *refusal) Cleanup(func()) {}
func (r *refusal) Fatalf(format string, args ...any) {
	r.says = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestPortFaultsRefused: a fault that a port does not have fails the test, with the remedy.
func TestPortFaultsRefused(t *testing.T) {
	for _, c := range []rdmatest.Config{{Rate: 1}, {MarkCEAbove: 1}} {
		r := &refusal{TB: t}
		done := make(chan bool)
		go func() {
			defer close(done)
			rdmatest.New(r, rdmatest.Config{Seed: 1}).Port(rdmatest.PortConfig{}).SetFaults(c)
		}()
		<-done
		if !strings.Contains(r.says, "PortConfig") {
			t.Errorf("faults %+v: the test fails with %q, want it to name PortConfig", c, r.says)
		}
	}
}

// TestFaultsOnRoute: on a route, a packet meets the fault of OnPacket and those of SetFaultsFrom, before the ports.
func TestFaultsOnRoute(t *testing.T) {
	const seed, n, size = 1, 4, 256 << 10
	for _, tt := range []struct {
		name   string
		set    func(net *rdmatest.Network, a, b *verbs.Device)
		losses bool
	}{
		{"OnPacket", func(net *rdmatest.Network, a, b *verbs.Device) { net.OnPacket(a, b, 20, rdmatest.Lose) }, true},
		{"SetFaultsFrom", func(net *rdmatest.Network, a, b *verbs.Device) {
			net.SetFaultsFrom(a, b, rdmatest.Config{Loss: .05})
		}, true},
		{"SetFaults", func(net *rdmatest.Network, a, b *verbs.Device) { net.SetFaults(rdmatest.Config{Loss: .05}) }, true},
		{"none", func(net *rdmatest.Network, a, b *verbs.Device) {
			net.SetFaultsFrom(a, b, rdmatest.Config{Loss: .05})
			net.ClearFaultsFrom(a, b)
		}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			net := rdmatest.New(t, rdmatest.Config{Seed: seed})
			a, b := net.Device(), net.Device()
			port := net.Port(rdmatest.PortConfig{Rate: 1e9, Delay: time.Microsecond})
			net.Route(a, b, port)
			x, y := rdmatest.Connect(t, a, b)
			tt.set(net, a, b)
			transfer(t, x, y, n, size)
			if again := counter(t, x, "retrans_pkts"); (again > 0) != tt.losses {
				t.Errorf("seed %d, %s: %d packets were sent again, want some if there are losses, and none if not", seed, tt.name, again)
			}
			if s := port.Stats(); s.Lost > 0 || s.CableLost > 0 || s.Passed == 0 {
				t.Errorf("seed %d, %s: the port has %+v, want packets that passed, and none that it lost", seed, tt.name, s)
			}
		})
	}
}

// TestPortStats: samples of a port add up to the packets that went through it, and have the bytes that wait.
func TestPortStats(t *testing.T) {
	const seed, n, size, rate = 1, 8, 1 << 20, 1e9
	synctest.Test(t, func(t *testing.T) {
		net := rdmatest.New(t, rdmatest.Config{Seed: seed})
		a, b := net.Device(), net.Device()
		port := net.Port(rdmatest.PortConfig{Rate: rate, Delay: time.Microsecond})
		net.Route(a, b, port)
		x, y := rdmatest.Connect(t, a, b)
		src, dst := x.MR(size), y.MR(size)
		for range n {
			x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
		}
		var samples []rdmatest.PortStats
		var sum rdmatest.PortStats
		for range 12 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			whole := port.Stats()
			s := port.ResetStats()
			if s != whole {
				t.Errorf("ResetStats returns %+v, want what Stats did: %+v", s, whole)
			}
			if after := port.Stats(); after != (rdmatest.PortStats{Queue: s.Queue, Longest: s.Queue}) {
				t.Errorf("after ResetStats there is %+v, want a queue of %d bytes and nothing else", after, s.Queue)
			}
			samples = append(samples, s)
			sum.Passed, sum.Bytes = sum.Passed+s.Passed, sum.Bytes+s.Bytes
		}
		for range n {
			x.Done()
		}
		for i, s := range samples[:8] { // 8 MiB and headers take more than 8 ms
			if s.Bytes < .99*rate/1000 || s.Bytes > 1.01*rate/1000 || s.Queue == 0 || s.Longest < s.Queue {
				t.Errorf("sample %d is %+v, want %.0f bytes, and a queue", i, s, rate/1000.)
			}
		}
		if last := samples[len(samples)-1]; last.Bytes != 0 || last.Queue != 0 || last.Passed != 0 {
			t.Errorf("the last sample is %+v, want nothing", last)
		}
		if sum.Bytes < n*size || sum.Bytes > n*size*11/10 || sum.Passed < n*size/4096 {
			t.Errorf("the samples add up to %+v, want %d bytes and headers", sum, n*size)
		}
		if !slices.ContainsFunc(samples, func(s rdmatest.PortStats) bool { return s.Queue < s.Longest }) {
			t.Errorf("samples are %+v, want a queue that shrinks", samples)
		}
	})
}

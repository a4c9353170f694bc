package hca

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// newPermutation makes a fabric whose hosts each write to another one, over paths that all share. It returns the
// paths' ports too.
func newPermutation(t testing.TB, hosts, paths, sources int) (f *fabric, ports []*sim.Port) {
	f = &fabric{t: t, net: sim.New(sim.Config{Seed: 1, QueueLen: 1 << 16}), start: time.Now()}
	seed := uint32(1)
	port := func(rate int64) *sim.Port {
		return f.net.Port(sim.PortConfig{Rate: rate, Delay: fabricDelay, Buffer: fabricBuffer})
	}
	for range paths {
		ports = append(ports, port(fabricRate))
	}
	for i := range hosts {
		h := &fabricHost{depth: fabricDepth, up: port(fabricRate), down: port(fabricRate)}
		var err error
		h.dev, err = Open(f.net.Netdev("sim"+string(rune('0'+i)), simAddr(i+1)), Config{Driven: true, Random: func() uint32 { seed = seed*1664525 + 1013904223; return seed }})
		if err != nil {
			t.Fatal(err)
		}
		h.user = verbs.NewDevice(h.dev)
		f.hosts = append(f.hosts, h)
	}
	o := options{cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: 1024, mtu: verbs.MTU4096}
	f.recv = make([]*end, hosts)
	for i, h := range f.hosts {
		j := (i + 3) % hosts
		x, y := connect(t, h.user, f.hosts[j].user, o)
		for _, e := range []*end{x, y} {
			if err := e.qp.SetAdaptiveRouting(verbs.AdaptiveRouting{Send: sources > 1, Accept: true, Paths: sources}); err != nil {
				t.Fatal(err)
			}
		}
		h.end, h.src = x, x.mr(fabricMessage)
		h.dst = y.mr(fabricMessage).Remote(0)
		for _, way := range [][2]int{{i, j}, {j, i}} {
			var list [][]*sim.Port
			for _, p := range ports {
				list = append(list, []*sim.Port{f.hosts[way[0]].up, p, f.hosts[way[1]].down})
			}
			f.net.SetRoutes(simAddr(way[0]+1), simAddr(way[1]+1), sim.ByHash, list...)
		}
		f.recv[i] = y
	}
	return f, ports
}

// TestPermutation: each of eight hosts writes to another one over as many equal paths, chosen by a hash. With one
// source port each some share a path while others are empty. With eight source ports all get more, and none is
// starved.
func TestPermutation(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector needs a minute for it")
	}
	var all, least [2]float64
	for k, sources := range []int{1, 8} {
		synctest.Test(t, func(t *testing.T) {
			f, ports := newPermutation(t, 8, 8, sources)
			defer f.close()
			f.run(2 * time.Millisecond)
			for _, h := range f.hosts {
				h.bytes = 0
			}
			for _, p := range ports {
				p.Stats(true)
			}
			f.run(5 * time.Millisecond)
			least[k] = 1
			for _, h := range f.hosts {
				g := float64(h.bytes) / .003 / fabricRate
				all[k] += g / 8
				least[k] = min(least[k], g)
			}
			if sources == 1 {
				return
			}
			for i, p := range ports {
				if p.Stats(false).Passed == 0 {
					t.Errorf("path %d is not used, want all used", i)
				}
			}
		})
	}
	t.Logf("of the ports' rate, one source port: %.2f, the least %.2f; eight: %.2f, the least %.2f", all[0], least[0], all[1], least[1])
	if all[1] < 1.2*all[0] || all[1] < .7 || least[1] < .5 || least[1] < 1.2*least[0] {
		t.Errorf("goodput is %.2f of the ports' rate and %.2f at least, want .7 and .5, and a fifth more than with one source port: %.2f and %.2f", all[1], least[1], all[0], least[0])
	}
}

// TestFlappingLink: the link between two hosts goes down and up four times, for longer than a probe takes. With the
// default timeout everything completes, the QP lives, and goodput is back each time.
func TestFlappingLink(t *testing.T) {
	for _, paths := range []int{1, 4} {
		if paths > 1 && testing.Short() {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			f := newPathFabric(t, paths, paths, sim.ByPort, 1, alike)
			defer f.close()
			f.run(3 * time.Millisecond)
			calm := f.goodput(3 * time.Millisecond)
			for n := range 4 {
				for _, down := range []bool{true, false} {
					f.forth[0].SetDown(down)
					f.back[0].SetDown(down)
					f.run(f.now() + time.Duration(6+n)*time.Millisecond) // whoever completes with an error fails the test
				}
				f.run(f.now() + 20*time.Millisecond)
				if g := f.goodput(3 * time.Millisecond); g < .8*calm {
					t.Errorf("%d paths, up for the %d. time: %.0f MB/s after a while, want %.0f", paths, n+1, g/1e6, calm/1e6)
				}
			}
			f.hosts[1].begins = 1 << 62
			f.run(f.now() + 20*time.Millisecond)
			if n := f.hosts[1].inFlight; n != 0 {
				t.Errorf("%d paths: %d WRITEs do not complete, want none", paths, n)
			}
			if lost := f.forth[0].Stats(false).Lost; lost == 0 {
				t.Errorf("%d paths: nothing was lost, want some", paths)
			}
		})
	}
}

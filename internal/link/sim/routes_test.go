package sim_test

import (
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/sim"
)

// TestAllocsRoutes: datagrams through ports allocate nothing, with faults or without.
func TestAllocsRoutes(t *testing.T) {
	for _, f := range []sim.Faults{{}, {Jitter: time.Microsecond}} {
		linktest.Allocs(t, func(t *testing.T) (a, b link.Link) {
			n := sim.New(sim.Config{})
			first, second := n.Port(sim.PortConfig{Rate: 1e9, Delay: time.Microsecond, MarkTo: 1, MarkMost: 1}), n.Port(sim.PortConfig{})
			first.SetFaults(f)
			n.SetRoute(addrA, addrB, first, second)
			n.SetPathFaults(addrA, addrB, &f)
			return open(t, n, addrA), open(t, n, addrB)
		})
	}
}

// TestFaultsOnRoutes: the faults of the network, those of a path and the plans hold on a route too, and all of them
// come before its first port.
func TestFaultsOnRoutes(t *testing.T) {
	const seed, n = 5, 1000
	for _, tt := range []struct {
		name string
		set  func(net *sim.Network)
		lost []int // the numbers, or nil for about a tenth of all
	}{
		{"of the network", func(net *sim.Network) { net.SetFaults(sim.Faults{Loss: .1}) }, nil},
		{"of the path", func(net *sim.Network) { net.SetPathFaults(addrA, addrB, &sim.Faults{Loss: .1}) }, nil},
		{"planned", func(net *sim.Network) {
			net.Plan(addrA, addrB, 3, fault.Plan{Lost: true})
			net.Plan(addrA, addrB, 7, fault.Plan{Lost: true})
		}, []int{2, 6}},
		{"of another path", func(net *sim.Network) { net.SetPathFaults(addrB, addrA, &sim.Faults{Loss: 1}) }, []int{}},
	} {
		receive := func(routed bool) (got []int, ports []sim.PortStats, stats sim.Stats) {
			c := &clock{}
			net := sim.New(sim.Config{Seed: seed, Now: c.Now})
			a, b := open(t, net, addrA), open(t, net, addrB)
			first, second := net.Port(sim.PortConfig{Rate: 1e9}), net.Port(sim.PortConfig{Delay: time.Microsecond})
			if routed {
				net.SetRoute(addrA, addrB, first, second)
			}
			tt.set(net)
			sendNumbers(t, a, b, 0, n)
			for at, more := net.NextDelivery(); more; at, more = net.NextDelivery() { // to the next port or to b
				c.now = max(c.now, at)
				got = append(got, numbers(t, b)...)
			}
			return got, []sim.PortStats{first.Stats(false), second.Stats(false)}, net.Stats()
		}
		got, ports, stats := receive(true)
		lost := n - len(got)
		if ports[0].Passed != uint64(len(got)) || ports[1].Passed != uint64(len(got)) || stats.Lost != uint64(lost) || ports[0].Longest == 0 {
			t.Errorf("seed %d, faults %s: %d of %d arrive, the ports have %+v, and the network %+v; want the arrivals to have passed both", seed, tt.name, len(got), n, ports, stats)
		}
		if tt.lost == nil {
			if lost < n/20 || lost > n/5 {
				t.Errorf("seed %d, faults %s: %d of %d are lost, want a tenth", seed, tt.name, lost, n)
			}
		} else {
			var missing []int
			for i := range n {
				if !slices.Contains(got, i) {
					missing = append(missing, i)
				}
			}
			if !slices.Equal(missing, tt.lost) {
				t.Errorf("faults %s: %v are lost, want %v", tt.name, missing, tt.lost)
			}
		}
		if direct, _, _ := receive(false); !slices.Equal(direct, got) {
			t.Errorf("seed %d, faults %s: others arrive on a route than without one, want the same", seed, tt.name)
		}
	}
}

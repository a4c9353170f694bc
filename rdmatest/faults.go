package rdmatest

import (
	"net/netip"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

func (c *Config) faults() sim.Faults {
	return sim.Faults{
		Loss: c.Loss, Duplicate: c.Duplicate, Reorder: c.Reorder, Corrupt: c.Corrupt, Delay: c.Delay, Jitter: c.Jitter,
		MarkCE: c.MarkCE, Rate: c.Rate, MarkCEAbove: c.MarkCEAbove,
	}
}

// SetFaults replaces all of New's Config but Seed and MTU, in both directions between all devices but those
// that have faults of their own by SetFaultsFrom. See Route for devices with ports between them.
func (n *Network) SetFaults(c Config) {
	n.t.Helper()
	n.needIP("SetFaults")
	n.sim.SetFaults(c.faults())
}

// SetFaultsFrom replaces the network's faults for the packets that one device sends to another, in
// that direction alone. Seed and MTU do not count. ClearFaultsFrom takes them back.
func (n *Network) SetFaultsFrom(from, to *verbs.Device, c Config) {
	n.t.Helper()
	f := c.faults()
	n.eachPair(from, to, func(x, y netip.Addr) { n.sim.SetPathFaults(x, y, &f) })
}

// ClearFaultsFrom gives the packets that one device sends to another the network's faults again.
func (n *Network) ClearFaultsFrom(from, to *verbs.Device) {
	n.t.Helper()
	n.eachPair(from, to, func(x, y netip.Addr) { n.sim.SetPathFaults(x, y, nil) })
}

// Fault is the fate of a packet, by OnPacket.
type Fault uint8

// The faults.
const (
	Lose      Fault = iota + 1 // it never arrives
	Duplicate                  // it arrives twice
	Corrupt                    // a bit of it flips
	Overtake                   // the next packet arrives before it, or 1 ms passes
)

var plans = map[Fault]fault.Plan{
	Lose: {Lost: true}, Duplicate: {Duplicate: true}, Corrupt: {Corrupt: true}, Overtake: {HoldBehind: 1},
}

// OnPacket does something to one packet: the nth that one device sends to another, counted from 1 and
// from now on. The packets of IPv4 and of IPv6 addresses are counted apart. Acknowledgements count, and so
// do the messages of a connection manager. Call it while nothing is under way.
func (n *Network) OnPacket(from, to *verbs.Device, nth int, f Fault) {
	n.t.Helper()
	what, ok := plans[f]
	if !ok || nth < 1 {
		n.t.Fatalf("rdmatest: OnPacket(%s, %s, %d, %d): packets are counted from 1, and the fault must be one of this package", from.Name(), to.Name(), nth, f)
	}
	n.eachPair(from, to, func(x, y netip.Addr) { n.sim.Plan(x, y, uint64(nth), what) })
}

// Partition makes the network lose all packets between two devices, until Heal.
func (n *Network) Partition(a, b *verbs.Device) { n.eachPair(a, b, n.sim.Partition) }

// Heal ends a Partition.
func (n *Network) Heal(a, b *verbs.Device) { n.eachPair(a, b, n.sim.Heal) }

func (n *Network) eachPair(a, b *verbs.Device, do func(x, y netip.Addr)) {
	n.t.Helper()
	n.needIP("faults between devices")
	for _, x := range gids(n.t, a) {
		for _, y := range gids(n.t, b) {
			switch {
			case x.Type != y.Type || x.GID.Addr().Is4() != y.GID.Addr().Is4():
			case x.Type == verbs.GIDTypeRoCEv1:
				do(link.V1(x.GID.Addr()), link.V1(y.GID.Addr()))
			default:
				do(x.GID.Addr(), y.GID.Addr())
			}
		}
	}
}

func gids(t testing.TB, d *verbs.Device) []verbs.GIDEntry {
	t.Helper()
	es, err := d.GIDs(1)
	if err != nil {
		t.Fatalf("rdmatest: %v", err)
	}
	return es
}

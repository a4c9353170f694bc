package rdmatest

import (
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// PortConfig describes a Port. A field of 0 sets no limit.
type PortConfig struct {
	Rate   int64         // bytes that leave in a second, with the headers of Ethernet frames
	Delay  time.Duration // of the cable behind it
	Buffer int           // bytes that may wait; packets that find no room are lost
	MTU    int           // bytes of the longest IP packet; longer ones are lost, and nobody is told

	// A packet that finds more than MarkFrom bytes waiting is marked with a probability that grows from 0
	// there to MarkMost at MarkTo. Beyond that all are marked. Only packets that allow it are: those of
	// QPs with verbs.CongestionDCQCN, and others by their traffic class. With MarkTo 0 none is.
	MarkFrom, MarkTo int
	MarkMost         float64
}

// Port is the way out of a card or of a switch: a queue, and a cable behind it.
type Port struct {
	n *Network
	p *sim.Port
}

// PortStats are the counters of a Port. All but Queue and Longest are packets or bytes since the port was added, or
// since ResetStats.
type PortStats struct {
	Passed  uint64 // packets that it took: they have left, or wait
	Bytes   uint64 // bytes that have left, with the headers of Ethernet frames
	Lost    uint64 // packets that found no room, or the port down
	Marked  uint64 // packets that were marked, of those that it took
	TooLong uint64 // packets that exceeded the MTU, which Lost does not count

	Queue   int // bytes that wait now; 0 for a port whose Rate is 0
	Longest int // the most bytes that have waited

	// Packets that met faults of SetFaults, counted once for each fault.
	CableLost, Duplicated, Reordered, Corrupted uint64
}

// Port adds a port to the network. Route leads through it.
func (n *Network) Port(c PortConfig) *Port {
	n.t.Helper()
	n.needIP("Port")
	return &Port{n, n.sim.Port(sim.PortConfig(c))}
}

// Stats returns the port's counters. In a bubble of testing/synctest, call synctest.Wait first, so that packets of this
// very time are counted.
func (p *Port) Stats() PortStats { return p.stats(false) }

// ResetStats is Stats, and begins anew: Longest with the bytes that wait now, and all else with 0. The results of
// calls at regular intervals make a plot over time.
func (p *Port) ResetStats() PortStats { return p.stats(true) }

func (p *Port) stats(reset bool) PortStats {
	s := p.p.Sample(p.n.sim.Now(), reset)
	return PortStats{
		Passed: s.Passed, Bytes: s.Left, Lost: s.Lost, Marked: s.Marked + s.Cable.Marked, TooLong: s.TooLong, Queue: s.Waiting, Longest: s.Longest,
		CableLost: s.Cable.Lost, Duplicated: s.Cable.Duplicated, Reordered: s.Cable.Reordered, Corrupted: s.Cable.Corrupted,
	}
}

// SetFaults sets the faults of the cable behind the port, from now on: a bad link of a topology. It replaces the faults
// of an earlier SetFaults, and Config{} ends all faults. Delay comes on top of PortConfig's. Seed and MTU do not count.
// Rate and MarkCEAbove must be 0, else the test fails: PortConfig has them. The fate of the n-th packet from one device
// to another that comes through the port, counted from the first SetFaults on, depends only on the network's seed and on
// how many ports were added before this one. Other devices that send through the port do not change that fate.
func (p *Port) SetFaults(c Config) {
	p.n.t.Helper()
	if c.Rate != 0 || c.MarkCEAbove != 0 {
		p.n.t.Fatalf("rdmatest: set faults of a port: Rate is %d and MarkCEAbove %d, which a port has from its PortConfig: Rate and MarkFrom there; leave them 0 here", c.Rate, c.MarkCEAbove)
	}
	p.p.SetFaults(c.faults())
}

// SetDown takes the port down, or up again. While the port is down, packets that come to it are lost. Packets that
// wait in the port or are on its cable still arrive.
func (p *Port) SetDown(down bool) { p.p.SetDown(down) }

// Route leads the packets that one device sends to another, in that direction, through ports, one after the other:
// say, that of its card and that of a switch. Routes that share a port share its rate and its buffer, which makes a
// bottleneck. The faults of the network, of SetFaultsFrom and of OnPacket hold on a route too: packets meet them
// before the first port. Port.SetFaults has those of a single cable. Without ports the route is taken back.
func (n *Network) Route(from, to *verbs.Device, ports ...*Port) {
	n.t.Helper()
	n.eachPair(from, to, func(x, y netip.Addr) { n.sim.SetRoute(x, y, simPorts(ports)...) })
}

// Spread is how a fabric chooses one of several paths for a packet.
type Spread = sim.Spread

// How a fabric chooses.
const (
	// ByPort takes the next path for the next UDP source port, as switches do that fold the port into their hash. A
	// device has 8 ports in a row.
	ByPort Spread = sim.ByPort
	// ByHash takes a path by a hash of addresses and UDP ports (ECMP). Several source ports may share a path.
	ByHash Spread = sim.ByHash
	// ByPacket takes a path for each packet, at random, as switches that spray do.
	ByPacket Spread = sim.ByPacket
)

// Paths is Route with several equal paths, of which the fabric chooses one for each packet. The choice depends on the
// network's seed. A path without ports fails the test. A call without paths takes the earlier paths back.
func (n *Network) Paths(from, to *verbs.Device, how Spread, paths ...[]*Port) {
	n.t.Helper()
	list := make([][]*sim.Port, len(paths))
	for i, ports := range paths {
		if len(ports) == 0 {
			n.t.Fatalf("rdmatest: path %d of %d has no ports", i+1, len(paths))
		}
		list[i] = simPorts(ports)
	}
	n.eachPair(from, to, func(x, y netip.Addr) { n.sim.SetRoutes(x, y, how, list...) })
}

func simPorts(ports []*Port) []*sim.Port {
	list := make([]*sim.Port, len(ports))
	for i, p := range ports {
		list[i] = p.p
	}
	return list
}

package rdmatest

import (
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// PortConfig describes a Port. What is 0 sets no limit.
type PortConfig struct {
	Rate   int           // bytes that leave in a second, with the headers of Ethernet frames
	Delay  time.Duration // of the cable behind it
	Buffer int           // bytes that may wait; what finds no room is lost
	MTU    int           // bytes of the longest IP packet; longer ones are lost, and nobody is told

	// A packet that finds more than MarkFrom bytes waiting is marked with a probability that grows from 0
	// there to MarkMost at MarkTo. Beyond that all are marked. Only packets that allow it are: those of
	// QPs with verbs.CongestionDCQCN, and others by their traffic class. With MarkTo 0 none is.
	MarkFrom, MarkTo int
	MarkMost         float64
}

// Port is the way out of a card or of a switch: a queue, and a cable behind it.
type Port struct{ p *sim.Port }

// PortStats counts what a Port did.
type PortStats struct {
	Passed, Lost, Marked uint64 // packets
	Longest              int    // bytes that have waited
	TooLong              uint64 // packets that exceeded the MTU, which Lost does not count
}

// Port adds a port to the network. Route leads through it.
func (n *Network) Port(c PortConfig) *Port { return &Port{n.sim.Port(sim.PortConfig(c))} }

// Stats returns what the port has done.
func (p *Port) Stats() PortStats {
	s := p.p.Stats(false)
	return PortStats{s.Passed, s.Lost, s.Marked, s.Longest, s.TooLong}
}

// SetDown takes the port down, or up again. While it is down, what comes to it is lost. What waits in it or is on its
// cable still arrives.
func (p *Port) SetDown(down bool) { p.p.SetDown(down) }

// Route leads what one device sends to another, in that direction, through ports, one after the other: say, that
// of its card and that of a switch. Routes that share a port share its rate and its buffer, which makes a
// bottleneck. There are no faults on a route. Without ports the route is taken back.
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

// Paths is Route with several equal paths, of which the fabric chooses one for each packet. What it chooses depends on
// the network's seed. A path without ports fails the test. Without paths those that there are are taken back.
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

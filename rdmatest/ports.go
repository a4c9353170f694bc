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
}

// Port adds a port to the network. Route leads through it.
func (n *Network) Port(c PortConfig) *Port { return &Port{n.sim.Port(sim.PortConfig(c))} }

// Stats returns what the port has done.
func (p *Port) Stats() PortStats {
	s := p.p.Stats(false)
	return PortStats{s.Passed, s.Lost, s.Marked, s.Longest}
}

// Route leads what one device sends to another, in that direction, through ports, one after the other: say, that
// of its card and that of a switch. Routes that share a port share its rate and its buffer, which makes a
// bottleneck. There are no faults on a route. Without ports the route is taken back.
func (n *Network) Route(from, to *verbs.Device, ports ...*Port) {
	n.t.Helper()
	list := make([]*sim.Port, len(ports))
	for i, p := range ports {
		list[i] = p.p
	}
	n.eachPair(from, to, func(x, y netip.Addr) { n.sim.SetRoute(x, y, list...) })
}

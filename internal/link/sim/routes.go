package sim

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link/fault"
)

// Port is the way out of a card or a switch, with a rate, a buffer, marks and a cable. PortConfig describes one, and
// PortStats counts its datagrams.
type (
	Port       = fault.Port
	PortConfig = fault.PortConfig
	PortStats  = fault.PortStats
)

// Spread is how a fabric chooses one of several routes for a datagram.
type Spread = fault.Spread

// How a fabric chooses.
const (
	ByPort   = fault.ByPort
	ByHash   = fault.ByHash
	ByPacket = fault.ByPacket
)

// Port makes a port for routes. Its marks depend on the network's seed and on how many ports there are already.
func (n *Network) Port(c PortConfig) *Port {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports++
	return fault.NewPort(n.seed+uint64(n.ports), c)
}

// SetRoute leads datagrams from src to dst through ports, one after the other. Several routes may share a port. The
// faults of the network, or of the path, happen before the first port, and those of Port.SetFaults behind each.
// Without ports the route is taken back.
func (n *Network) SetRoute(src, dst netip.Addr, ports ...*Port) {
	if len(ports) == 0 {
		n.SetRoutes(src, dst, ByPort)
		return
	}
	n.SetRoutes(src, dst, ByPort, ports)
}

// SetRoutes is SetRoute with several routes, none of them empty. The fabric chooses one for each datagram, which
// depends on the network's seed, the addresses and the datagram's source port or number.
func (n *Network) SetRoutes(src, dst netip.Addr, how Spread, list ...[]*Port) {
	p := n.path(src, dst)
	if len(list) == 0 {
		p.routes.Store(nil)
		return
	}
	p.routes.Store(fault.NewRoutes(n.seed, src, dst, how, list))
}

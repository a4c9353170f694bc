//go:build !linux || adverb_portable

package host

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
)

// Netdev is a network interface whose addresses belong to one process each: this system has
// no abstract unix sockets, on which sharing rests.
type Netdev struct{ *udp.Netdev }

var _ link.Netdev = (*Netdev)(nil)

// Share returns the network interface.
func Share(n *udp.Netdev) *Netdev { return &Netdev{n} }

// ClaimService gives every service of the address to this process.
func (n *Netdev) ClaimService(netip.Addr, uint64) (release func(), ok bool, err error) {
	return func() {}, true, nil
}

// ServeGSI does nothing: whatever comes is this process's.
func (n *Netdev) ServeGSI(bool) {}

// Claim takes a block of QPNs for this process, which is alone.
func (n *Netdev) Claim(uint32) (bool, error) { return true, nil }

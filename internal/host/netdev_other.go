//go:build !linux || adverb_portable

package host

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/shm"
)

// Netdev is a network interface whose addresses belong to one process each. Sharing needs abstract
// unix sockets, which this system does not have.
type Netdev struct{ *udp.Netdev }

var _ link.Netdev = (*Netdev)(nil)

// Share returns the network interface.
func Share(n *udp.Netdev) *Netdev { return &Netdev{n} }

// Alone returns nil: that addresses are not shared is usual here.
func Alone() error { return nil }

// Shard returns nil: an address has one link.
func (n *Netdev) Shard() *Netdev { return nil }

// ClaimService always succeeds: this process is alone.
func (n *Netdev) ClaimService(netip.Addr, uint64) (release func(), ok bool, err error) {
	return func() {}, true, nil
}

// ShareService always succeeds: this process is alone.
func (n *Netdev) ShareService(netip.Addr, uint64) (claim func() (bool, error), release func(), ok bool, err error) {
	return func() (bool, error) { return true, nil }, func() {}, true, nil
}

// LastWords does nothing: there is nobody who could speak for this process.
func (n *Netdev) LastWords(_, _ netip.Addr, _ uint8, _ []byte) (revoke func()) { return func() {} }

// ServeGSI does nothing: everything that comes is for this process.
func (n *Netdev) ServeGSI(bool) {}

// ShareMemory does nothing: there is nobody to share memory with.
func (n *Netdev) ShareMemory() {}

// Lane returns nil.
func (n *Netdev) Lane(_, _ netip.Addr, _ uint32) *shm.Out { return nil }

// Inbox returns nil.
func (n *Netdev) Inbox(netip.Addr) *shm.Inbox { return nil }

// Claim always succeeds: this process is alone.
func (n *Netdev) Claim(uint32) (bool, error) { return true, nil }

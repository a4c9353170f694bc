// Package ether carries RoCEv1: InfiniBand's packets in Ethernet frames of type 0x8915, behind a GRH. A frame's addresses
// are GIDs; see link.V1. The frames go through a packet socket, which needs root or CAP_NET_RAW, and Linux.
//
// The MAC address of a GID is found as Linux finds it for cards: a link-local GID has it in its EUI-64, a group's follows
// from the group's GID (see link.GroupV1), and for the GID of an IP address the kernel asks the neighbors (ARP, ND). No router forwards
// RoCEv1, so the neighbor is the peer itself. Frames to addresses of this host go through its loopback interface.
//
// A network interface of a VLAN has the tag put into its frames by the kernel.
//
// At any time one process has an address: the socket gets all of its frames, also those to QP1.
package ether

import (
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Netdev is a network interface that has, beside its addresses, those of RoCEv1.
type Netdev struct {
	link.Netdev
	o Options
}

// Options of New.
type Options struct {
	First bool // the addresses of RoCEv1 come before the others
	One   bool // the interface is restricted to one address: it has no link-local GID besides
}

var _ link.NeighborResolver = (*Netdev)(nil)

// New returns the network interface n with addresses of RoCEv1, or why this process cannot have them.
func New(n link.Netdev, o Options) (*Netdev, error) {
	if err := permitted(); err != nil {
		return nil, err
	}
	return &Netdev{n, o}, nil
}

// State implements link.Netdev.
func (n *Netdev) State() (link.NetdevState, error) {
	s, err := n.Netdev.State()
	if err != nil {
		return s, err
	}
	var v1 []netip.Addr
	for _, a := range s.Addrs {
		v1 = append(v1, link.V1(a))
	}
	if own, ok := link.LinkLocalV1(s.HardwareAddr); ok && !n.o.One && !slices.Contains(v1, own) {
		v1 = append(v1, own)
	}
	if n.o.First {
		s.Addrs = append(v1, s.Addrs...)
	} else {
		s.Addrs = append(s.Addrs, v1...)
	}
	return s, nil
}

// Open implements link.Netdev.
func (n *Netdev) Open(addr netip.Addr) (link.Link, error) {
	if !link.IsV1(addr) {
		return n.Netdev.Open(addr)
	}
	return n.open(addr)
}

// ResolveNeighbor implements link.NeighborResolver.
func (n *Netdev) ResolveNeighbor(src, dst netip.Addr) {
	if _, known := link.MACOf(dst); link.IsV1(dst) && known {
		return
	}
	if r, ok := n.Netdev.(link.NeighborResolver); ok {
		r.ResolveNeighbor(link.GIDAddr(src), link.GIDAddr(dst))
	}
}

package verbs

import (
	"fmt"
	"net/netip"
)

// GID is a global identifier (union ibv_gid): the address of a port. On RoCEv2 it is an IP address,
// IPv6 or IPv4 in its IPv4-mapped form, ::ffff:a.b.c.d.
type GID [16]byte

// GIDFromAddr returns the RoCEv2 GID of an IP address.
func GIDFromAddr(a netip.Addr) GID { return GID(a.WithZone("").As16()) }

// ParseGID parses the notation that String prints, and plain IPv4 addresses. A zone, as in
// fe80::1%eth0, is an error.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return GID{}, fmt.Errorf("parse GID: %w", err)
	}
	if a.Zone() != "" {
		return GID{}, fmt.Errorf("parse GID %q: a GID has no zone; leave out %%%s", s, a.Zone())
	}
	return GIDFromAddr(a), nil
}

// Addr returns the IP address that a RoCEv2 GID stands for.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether g is the zero GID, which is the address of nobody.
func (g GID) IsZero() bool { return g == GID{} }

// String prints g as an IPv6 address, as rdma-core does: ::ffff:10.0.0.1 or fe80::1.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// GIDType says which protocol a GID belongs to (enum ibv_gid_type).
type GIDType uint8

// The GID types (IBV_GID_TYPE_*).
const (
	GIDTypeIB     GIDType = 0
	GIDTypeRoCEv1 GIDType = 1
	GIDTypeRoCEv2 GIDType = 2
)

// String prints the type as ibv_devinfo does: "IB", "RoCE v1" or "RoCE v2".
func (t GIDType) String() string {
	switch t {
	case GIDTypeIB:
		return "IB"
	case GIDTypeRoCEv1:
		return "RoCE v1"
	case GIDTypeRoCEv2:
		return "RoCE v2"
	}
	return fmt.Sprintf("GID_TYPE(%d)", uint8(t))
}

// GIDEntry is an entry of a port's GID table (struct ibv_gid_entry).
type GIDEntry struct {
	GID    GID
	Index  int
	Port   int
	Type   GIDType
	Netdev string // the network interface that has the address, or empty
}

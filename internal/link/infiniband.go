package link

import "net/netip"

// IBPort is what a Netdev is besides if it is a port of InfiniBand. Its addresses are then the port's GIDs.
//
// In the AddrPort of a datagram's source or destination the port number is a LID. The address is a GID if the packet
// has a GRH, or else LIDAddr of the LID. FlowLabel has the service level in its bits 24 to 27, and the flow label of
// the GRH below. TrafficClass and HopLimit are of the GRH. Payload is from the BTH to the ICRC, as elsewhere, and there are no
// trains.
type IBPort struct {
	NodeGUID, GUID   uint64
	State, PhysState uint8 // codes of the C library, as all codes here
	LID, SMLID       uint16
	LMC, SMSL        uint8
	MTU, MaxMTU      uint8
	Width            uint8
	Speed            uint32
	SubnetTimeout    uint8
	MaxVL            uint8
	CapMask          uint32
	PKeys            []uint16 // all entries of the table; 0 is a free one
	Reregistered     uint64   // how often the subnet manager has asked clients to register anew
}

// LIDAddr is the address that stands for a LID where a packet has no GRH. It is in 100::/64, which no network uses.
func LIDAddr(lid uint16) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 1, 14: byte(lid >> 8), 15: byte(lid)})
}

// IsLID reports whether an address is LIDAddr of a LID.
func IsLID(a netip.Addr) bool {
	b := a.As16()
	return [14]byte(b[:]) == [14]byte{0: 1}
}

// IBPath is a path as subnet administration tells it.
type IBPath struct {
	DLID, SLID uint16
	SL         uint8
	MTU, Rate  uint8 // codes
	PKey       uint16
	Lifetime   uint8 // code
	HopLimit   uint8 // 0 in the subnet, where packets need no GRH
}

// An IBNetdev is a Netdev that is a port of InfiniBand.
type IBNetdev interface {
	Netdev

	// Path asks subnet administration for the path to a GID in a partition; a P_Key of 0 leaves it to subnet
	// administration.
	Path(to netip.Addr, pkey uint16) (IBPath, error)

	// Join makes the port a member of a multicast group of subnet administration's, and returns the group's LID. lid
	// is what that is to be, if the group is new; 0 leaves it to the subnet manager. pkey is the group's partition; 0 is
	// that by which the port is a member already, or else the default one. Members are counted by Leave.
	Join(group netip.Addr, lid, pkey uint16) (uint16, error)
	Leave(group netip.Addr) error
}

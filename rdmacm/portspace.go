package rdmacm

import (
	"fmt"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// PortSpace says whose ports are meant, and thereby which QPs connect (enum rdma_port_space). Each
// port space has ports of its own, which have nothing to do with those of the host's TCP and UDP.
type PortSpace uint16

// The port spaces (RDMA_PS_*). IPoIB's is not offered: RoCE has no IPoIB.
const (
	PortSpaceTCP PortSpace = 0x0106 // RC QPs, connected
	PortSpaceUDP PortSpace = 0x0111 // UD QPs, which look each other up (SIDR)
	PortSpaceIB  PortSpace = 0x013f // RC or UC QPs, connected
)

func (ps PortSpace) String() string {
	switch ps {
	case PortSpaceTCP:
		return "RDMA_PS_TCP"
	case PortSpaceUDP:
		return "RDMA_PS_UDP"
	case PortSpaceIB:
		return "RDMA_PS_IB"
	}
	return fmt.Sprintf("RDMA_PS(%#x)", uint16(ps))
}

func (ps PortSpace) known() bool {
	return ps == PortSpaceTCP || ps == PortSpaceUDP || ps == PortSpaceIB
}

// datagram reports whether IDs of the port space have UD QPs.
func (ps PortSpace) datagram() bool { return ps == PortSpaceUDP }

// qpType returns the type of QPs that IDs of the port space have unless the program chooses another.
func (ps PortSpace) qpType() verbs.QPType {
	if ps.datagram() {
		return verbs.QPTypeUD
	}
	return verbs.QPTypeRC
}

func (ps PortSpace) connector() connector.PortSpace { return connector.PortSpace(ps) }

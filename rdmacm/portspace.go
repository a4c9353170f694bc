package rdmacm

import "fmt"

// PortSpace says whose ports are meant, and with that which QPs connect (enum rdma_port_space).
// The port spaces are apart from each other and from the ports of the host's own TCP and UDP.
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

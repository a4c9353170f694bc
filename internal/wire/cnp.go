package wire

// NewCNP returns a congestion notification packet for the queue pair destQP, whose packets have
// arrived marked as having met congestion. It carries the BECN bit and 16 reserved bytes, which are
// sent as zero and ignored when received. It belongs to no sequence: its PSN is 0 and it is never
// acknowledged.
func NewCNP(destQP uint32, pkey uint16) Packet {
	return Packet{BTH: BTH{Opcode: CNP, BECN: true, PKey: pkey, DestQP: destQP}}
}

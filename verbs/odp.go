package verbs

// ODPCaps says what a device may do with memory that is registered by [AccessOnDemand] (struct
// ibv_odp_caps, and xrc_odp_caps).
type ODPCaps struct {
	General    ODPGeneralCaps
	RC, UC, UD ODPTransportCaps // per_transport_caps
	XRC        ODPTransportCaps
}

// ODPGeneralCaps are abilities of a device in on-demand paging (enum ibv_odp_general_caps).
type ODPGeneralCaps uint64

// The abilities (IBV_ODP_*).
const (
	ODPSupport         ODPGeneralCaps = 1 << 0 // the device has on-demand paging
	ODPSupportImplicit ODPGeneralCaps = 1 << 1 // one region may be the whole address space; package verbs has none
)

// ODPTransportCaps are the operations that may use such memory (enum ibv_odp_transport_cap_bits).
type ODPTransportCaps uint32

// The operations (IBV_ODP_SUPPORT_*).
const (
	ODPSend        ODPTransportCaps = 1 << 0
	ODPRecv        ODPTransportCaps = 1 << 1
	ODPWrite       ODPTransportCaps = 1 << 2
	ODPRead        ODPTransportCaps = 1 << 3
	ODPAtomic      ODPTransportCaps = 1 << 4
	ODPSRQRecv     ODPTransportCaps = 1 << 5
	ODPFlush       ODPTransportCaps = 1 << 6
	ODPAtomicWrite ODPTransportCaps = 1 << 7
)

var (
	odpGeneralNames   = []flagName{{uint64(ODPSupport), "ODP_SUPPORT"}, {uint64(ODPSupportImplicit), "ODP_SUPPORT_IMPLICIT"}}
	odpTransportNames = []flagName{
		{uint64(ODPSend), "SUPPORT_SEND"}, {uint64(ODPRecv), "SUPPORT_RECV"}, {uint64(ODPWrite), "SUPPORT_WRITE"},
		{uint64(ODPRead), "SUPPORT_READ"}, {uint64(ODPAtomic), "SUPPORT_ATOMIC"}, {uint64(ODPSRQRecv), "SUPPORT_SRQ"},
		{uint64(ODPFlush), "SUPPORT_FLUSH"}, {uint64(ODPAtomicWrite), "SUPPORT_ATOMIC_WRITE"},
	}
)

// String joins the names of the bits by "|", such as ODP_SUPPORT.
func (c ODPGeneralCaps) String() string { return flagNames(uint64(c), odpGeneralNames) }

// String joins the names of the bits by "|", such as SUPPORT_SEND|SUPPORT_RECV.
func (c ODPTransportCaps) String() string { return flagNames(uint64(c), odpTransportNames) }

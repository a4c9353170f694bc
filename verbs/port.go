package verbs

import "fmt"

// MTU is a path MTU (enum ibv_mtu): the most bytes of payload that a packet may have. Its values are the
// C library's codes; Bytes converts them.
type MTU uint8

// The MTUs (IBV_MTU_*).
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// MTUFromBytes returns the MTU of exactly n bytes. ok is false if there is none.
func MTUFromBytes(n int) (m MTU, ok bool) {
	for m = MTU256; m <= MTU4096; m++ {
		if m.Bytes() == n {
			return m, true
		}
	}
	return 0, false
}

// Valid reports whether m is one of the MTUs above.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes returns how many bytes of payload a packet may have: 256 to 4096, or 0 if m is not valid.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// String returns MTU_ and the bytes, such as MTU_1024.
func (m MTU) String() string {
	if !m.Valid() {
		return fmt.Sprintf("MTU(%d)", uint8(m))
	}
	return fmt.Sprintf("MTU_%d", m.Bytes())
}

// PortState is the logical state of a port (enum ibv_port_state).
type PortState uint8

// The port states (IBV_PORT_*).
const (
	PortNop         PortState = 0
	PortDown        PortState = 1
	PortInit        PortState = 2
	PortArmed       PortState = 3
	PortActive      PortState = 4
	PortActiveDefer PortState = 5
)

var portStateNames = names[PortState]{"PORT", map[PortState]string{
	PortNop: "PORT_NOP", PortDown: "PORT_DOWN", PortInit: "PORT_INIT",
	PortArmed: "PORT_ARMED", PortActive: "PORT_ACTIVE", PortActiveDefer: "PORT_ACTIVE_DEFER",
}}

// String returns the C library's name without IBV_, such as PORT_ACTIVE.
func (s PortState) String() string { return portStateNames.name(s) }

// PhysState is the physical state of a port (phys_state of struct ibv_port_attr).
type PhysState uint8

// The physical states.
const (
	PhysSleep           PhysState = 1
	PhysPolling         PhysState = 2
	PhysDisabled        PhysState = 3
	PhysPortTraining    PhysState = 4
	PhysLinkUp          PhysState = 5
	PhysLinkErrRecovery PhysState = 6
	PhysPhyTest         PhysState = 7
)

var physStateNames = names[PhysState]{"PHYS_STATE", map[PhysState]string{
	PhysSleep: "SLEEP", PhysPolling: "POLLING", PhysDisabled: "DISABLED", PhysPortTraining: "PORT_CONFIGURATION TRAINNING",
	PhysLinkUp: "LINK_UP", PhysLinkErrRecovery: "LINK_ERROR_RECOVERY", PhysPhyTest: "PHYTEST",
}}

// String prints the state as ibv_devinfo does, its spelling included.
func (s PhysState) String() string { return physStateNames.name(s) }

// LinkLayer is the kind of a port's link (link_layer of struct ibv_port_attr). Ethernet means RoCE
// or iWARP. The fields that a path to a peer needs depend on the link layer: see AHAttr.
type LinkLayer uint8

// The link layers (IBV_LINK_LAYER_*).
const (
	LinkLayerUnspecified LinkLayer = 0
	LinkLayerInfiniBand  LinkLayer = 1
	LinkLayerEthernet    LinkLayer = 2
)

var linkLayerNames = names[LinkLayer]{"LINK_LAYER", map[LinkLayer]string{
	LinkLayerUnspecified: "Unspecified", LinkLayerInfiniBand: "InfiniBand", LinkLayerEthernet: "Ethernet",
}}

// String prints the link layer as ibv_devinfo does.
func (l LinkLayer) String() string { return linkLayerNames.name(l) }

// PortAttr are the attributes of a port (struct ibv_port_attr). A code in a comment is a code of the
// C library.
type PortAttr struct {
	State         PortState
	MaxMTU        MTU
	ActiveMTU     MTU // the largest path MTU that works now; that of UD messages
	GIDTableLen   int // entries, used and free
	PortCapFlags  uint32
	PortCapFlags2 uint16
	MaxMsgSize    uint32 // bytes in one message
	BadPKeyCntr   uint32 // packets dropped for their P_Key
	QKeyViolCntr  uint32 // packets dropped for their Q_Key
	PKeyTableLen  int
	LID           uint16 // InfiniBand: the port's lowest LID; 0 on Ethernet
	SMLID         uint16 // InfiniBand: the subnet manager's LID
	LMC           uint8  // InfiniBand: the port has 2^LMC LIDs, from LID on
	MaxVLNum      uint8  // code
	SMSL          uint8  // InfiniBand: the subnet manager's service level
	SubnetTimeout uint8  // code n stands for 4.096 µs × 2^n
	InitTypeReply uint8
	ActiveWidth   uint8  // code: 1 is 1X, 2 is 4X, 4 is 8X, 8 is 12X, 16 is 2X
	ActiveSpeed   uint32 // code, in Gbit/s a lane: 1 is 2.5, 2 is 5, 4 and 8 are 10, 16 is 14, 32 is 25, 64 is 50, 128 is 100
	PhysState     PhysState
	LinkLayer     LinkLayer
	Flags         uint8
}

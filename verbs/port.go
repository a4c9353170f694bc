package verbs

import "fmt"

// MTU is a path MTU (enum ibv_mtu): the code, not the bytes.
type MTU uint8

// The MTUs (IBV_MTU_*).
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// MTUFromBytes returns the MTU of exactly n bytes, and false if there is none.
func MTUFromBytes(n int) (MTU, bool) {
	for m := MTU256; m <= MTU4096; m++ {
		if m.Bytes() == n {
			return m, true
		}
	}
	return 0, false
}

// Valid reports whether m is one of the MTUs above.
func (m MTU) Valid() bool { return m >= MTU256 && m <= MTU4096 }

// Bytes returns the payload bytes of a packet, 256 to 4096, or 0 if m is not valid.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

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

func (s PortState) String() string { return portStateNames.name(s) }

// PhysState is the physical state of a port.
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

// LinkLayer is what a port's link is (IBV_LINK_LAYER_*).
type LinkLayer uint8

// The link layers.
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

// PortAttr are the attributes of a port (struct ibv_port_attr).
type PortAttr struct {
	State         PortState
	MaxMTU        MTU
	ActiveMTU     MTU
	GIDTableLen   int
	PortCapFlags  uint32
	PortCapFlags2 uint16
	MaxMsgSize    uint32 // bytes
	BadPKeyCntr   uint32 // packets dropped for their P_Key
	QKeyViolCntr  uint32 // packets dropped for their Q_Key
	PKeyTableLen  int
	LID           uint16
	SMLID         uint16
	LMC           uint8
	MaxVLNum      uint8 // code
	SMSL          uint8
	SubnetTimeout uint8
	InitTypeReply uint8
	ActiveWidth   uint8  // code: 1 is 1X, 2 is 4X, 4 is 8X, 8 is 12X, 16 is 2X
	ActiveSpeed   uint32 // code: 1 is 2.5 Gbit/s a lane, 2 is 5, 4 and 8 are 10, 16 is 14, 32 is 25, 64 is 50, 128 is 100
	PhysState     PhysState
	LinkLayer     LinkLayer
	Flags         uint8
}

package wire

import "encoding/binary"

// Management classes, methods and attributes of subnet management.
const (
	MADClassSM       = 0x01 // SMPs that are forwarded by LID
	MADClassSMDirect = 0x81 // SMPs that name their route, port by port
	MADClassSA       = 0x03
	MADVersionSM     = 1
	MADVersionSA     = 2

	MADMethodGet      = 0x01
	MADMethodSet      = 0x02
	MADMethodTrap     = 0x05
	MADMethodGetTable = 0x12
	MADMethodDelete   = 0x15
	MADMethodResponse = 0x80 // the bit of an answer
	MADMethodGetResp  = MADMethodGet | MADMethodResponse

	AttrNotice    = 0x02
	AttrNodeDesc  = 0x10
	AttrNodeInfo  = 0x11
	AttrSwitch    = 0x12
	AttrGUIDInfo  = 0x14
	AttrPortInfo  = 0x15
	AttrPKeyTable = 0x16
	AttrSLtoVL    = 0x17
	AttrLFT       = 0x19
	AttrMFT       = 0x1b
	AttrSMInfo    = 0x20
)

// Statuses of answers.
const (
	MADStatusBadVersion = 1 << 2
	MADStatusBadMethod  = 2 << 2
	MADStatusBadAttr    = 3 << 2
	MADStatusBadField   = 7 << 2
)

const (
	SMPDataSize = 64 // bytes of an attribute
	MaxHops     = 63 // of a directed route

	smpMKey      = 24
	smpDrSLID    = 32
	smpDrDLID    = 34
	smpData      = 64
	smpInitial   = 128
	smpReturn    = 192
	smpDirection = 1 << 15 // of the status
)

// SMP is a subnet management packet. Its MAD header's status is without the direction of a directed route.
type SMP struct {
	MADHeader
	Back       bool // a directed route leads back
	HopPointer uint8
	HopCount   uint8
	MKey       uint64
	DrSLID     uint16
	DrDLID     uint16
	Data       [SMPDataSize]byte
	Out, In    [MaxHops + 1]uint8 // the ports by which each hop leaves, and by which the way back leaves; from index 1 on
}

// DecodeSMP reads an SMP. Its only error is [ErrShortMAD].
func DecodeSMP(b []byte) (s SMP, err error) {
	if len(b) < MADSize {
		return s, ErrShortMAD
	}
	if s.MADHeader, err = DecodeMADHeader(b); err != nil {
		return s, err
	}
	s.MKey = binary.BigEndian.Uint64(b[smpMKey:])
	s.Data = [SMPDataSize]byte(b[smpData:])
	if s.MgmtClass != MADClassSMDirect {
		return s, nil
	}
	s.Back = s.Status&smpDirection != 0
	s.Status &^= smpDirection
	s.HopPointer, s.HopCount = uint8(s.ClassSpecific>>8), uint8(s.ClassSpecific)
	s.ClassSpecific = 0
	s.DrSLID, s.DrDLID = binary.BigEndian.Uint16(b[smpDrSLID:]), binary.BigEndian.Uint16(b[smpDrDLID:])
	s.Out, s.In = [MaxHops + 1]uint8(b[smpInitial:]), [MaxHops + 1]uint8(b[smpReturn:])
	return s, nil
}

// AppendTo appends the SMP's 256 bytes to b.
func (s *SMP) AppendTo(b []byte) []byte {
	h, at := s.MADHeader, len(b)
	direct := s.MgmtClass == MADClassSMDirect
	if direct {
		h.ClassSpecific = uint16(s.HopPointer)<<8 | uint16(s.HopCount)
		if s.Back {
			h.Status |= smpDirection
		}
	}
	b = h.AppendTo(b)
	b = append(b, make([]byte, MADSize-MADHeaderSize)...)
	m := b[at:]
	binary.BigEndian.PutUint64(m[smpMKey:], s.MKey)
	copy(m[smpData:], s.Data[:])
	if direct {
		binary.BigEndian.PutUint16(m[smpDrSLID:], s.DrSLID)
		binary.BigEndian.PutUint16(m[smpDrDLID:], s.DrDLID)
		copy(m[smpInitial:], s.Out[:])
		copy(m[smpReturn:], s.In[:])
	}
	return b
}

// The types of nodes.
const (
	NodeCA     = 1
	NodeSwitch = 2
	NodeRouter = 3
)

// NodeInfo is the attribute that identifies a node.
type NodeInfo struct {
	Type            uint8
	Ports           uint8
	SystemImageGUID uint64
	NodeGUID        uint64
	PortGUID        uint64
	PartitionCap    uint16
	DeviceID        uint16
	Revision        uint32
	LocalPort       uint8 // by which the question came
	VendorID        uint32
}

// DecodeNodeInfo reads the attribute.
func DecodeNodeInfo(b *[SMPDataSize]byte) NodeInfo {
	be := binary.BigEndian
	return NodeInfo{
		Type: b[2], Ports: b[3], SystemImageGUID: be.Uint64(b[4:]), NodeGUID: be.Uint64(b[12:]), PortGUID: be.Uint64(b[20:]),
		PartitionCap: be.Uint16(b[28:]), DeviceID: be.Uint16(b[30:]), Revision: be.Uint32(b[32:]),
		LocalPort: b[36], VendorID: be.Uint32(b[36:]) & 0xffffff,
	}
}

// Put writes the attribute.
func (n *NodeInfo) Put(b *[SMPDataSize]byte) {
	be := binary.BigEndian
	clear(b[:])
	b[0], b[1], b[2], b[3] = MADBaseVersion, MADVersionSM, n.Type, n.Ports
	be.PutUint64(b[4:], n.SystemImageGUID)
	be.PutUint64(b[12:], n.NodeGUID)
	be.PutUint64(b[20:], n.PortGUID)
	be.PutUint16(b[28:], n.PartitionCap)
	be.PutUint16(b[30:], n.DeviceID)
	be.PutUint32(b[32:], n.Revision)
	be.PutUint32(b[36:], uint32(n.LocalPort)<<24|n.VendorID&0xffffff)
}

// SwitchInfo is the attribute of a switch as a whole.
type SwitchInfo struct {
	LinearCap    uint16 // entries of the linear forwarding table
	MulticastCap uint16 // entries of the multicast forwarding table
	LinearTop    uint16 // the highest LID that is forwarded
	LifeTime     uint8  // code of 5 bits: how long a packet may stay
	PortChanged  bool   // the state of a port; a Set with the bit clears it
}

// DecodeSwitchInfo reads the attribute.
func DecodeSwitchInfo(b *[SMPDataSize]byte) SwitchInfo {
	be := binary.BigEndian
	return SwitchInfo{be.Uint16(b[0:]), be.Uint16(b[4:]), be.Uint16(b[6:]), b[11] >> 3, b[11]&4 != 0}
}

// Put writes the attribute.
func (s *SwitchInfo) Put(b *[SMPDataSize]byte) {
	be := binary.BigEndian
	clear(b[:])
	be.PutUint16(b[0:], s.LinearCap)
	be.PutUint16(b[4:], s.MulticastCap)
	be.PutUint16(b[6:], s.LinearTop)
	b[11] = s.LifeTime<<3 | bit(s.PortChanged, 2)
}

func bit(set bool, n int) uint8 {
	if set {
		return 1 << n
	}
	return 0
}

// Bits of PortInfo's CapMask.
const (
	CapIsSM               = 1 << 1 // a subnet manager runs beside the port
	CapTrap               = 1 << 3
	CapAutomaticMigration = 1 << 5
	CapSLMapping          = 1 << 6
	CapSystemImageGUID    = 1 << 11
	CapExtendedSpeeds     = 1 << 14
	CapCM                 = 1 << 16
	CapClientReregister   = 1 << 25
)

// PortInfo is the attribute of a port. Codes are those of the attributes of package verbs' ports.
type PortInfo struct {
	MKey           uint64
	Prefix         uint64
	LID, SMLID     uint16
	CapMask        uint32
	LocalPort      uint8
	Width          uint8 // active
	State          uint8
	PhysState      uint8
	LMC            uint8
	Speed          uint8 // active: 1, 2 or 4
	MTU            uint8 // the neighbour's
	SMSL           uint8
	VLCap          uint8
	InitType       uint8
	InitTypeReply  uint8
	MTUCap         uint8
	OperationalVLs uint8
	PKeyViolations uint16
	QKeyViolations uint16
	GUIDCap        uint8
	Reregister     bool
	SubnetTimeout  uint8
	RespTime       uint8
	SpeedExt       uint8 // active: 1 is 14 Gbit/s a lane, 2 is 25, 4 is 50
}

// DecodePortInfo reads the attribute.
func DecodePortInfo(b *[SMPDataSize]byte) PortInfo {
	be := binary.BigEndian
	return PortInfo{
		MKey: be.Uint64(b[0:]), Prefix: be.Uint64(b[8:]), LID: be.Uint16(b[16:]), SMLID: be.Uint16(b[18:]), CapMask: be.Uint32(b[20:]),
		LocalPort: b[28], Width: b[31], State: b[32] & 0xf, PhysState: b[33] >> 4, LMC: b[34] & 7, Speed: b[35] >> 4,
		MTU: b[36] >> 4, SMSL: b[36] & 0xf, VLCap: b[37] >> 4, InitType: b[37] & 0xf, InitTypeReply: b[41] >> 4, MTUCap: b[41] & 0xf,
		OperationalVLs: b[43] >> 4, PKeyViolations: be.Uint16(b[46:]), QKeyViolations: be.Uint16(b[48:]), GUIDCap: b[50],
		Reregister: b[51]&0x80 != 0, SubnetTimeout: b[51] & 0x1f, RespTime: b[52] & 0x1f, SpeedExt: b[62] >> 4,
	}
}

// Put writes the attribute. What is enabled and supported is what is active.
func (p *PortInfo) Put(b *[SMPDataSize]byte) {
	be := binary.BigEndian
	clear(b[:])
	be.PutUint64(b[0:], p.MKey)
	be.PutUint64(b[8:], p.Prefix)
	be.PutUint16(b[16:], p.LID)
	be.PutUint16(b[18:], p.SMLID)
	be.PutUint32(b[20:], p.CapMask)
	b[28], b[29], b[30], b[31] = p.LocalPort, p.Width, p.Width, p.Width
	b[32] = p.Speed<<4 | p.State&0xf
	b[33] = p.PhysState << 4
	b[34] = p.LMC & 7
	b[35] = p.Speed<<4 | p.Speed&0xf
	b[36] = p.MTU<<4 | p.SMSL&0xf
	b[37] = p.VLCap<<4 | p.InitType&0xf
	b[41] = p.InitTypeReply<<4 | p.MTUCap&0xf
	b[43] = p.OperationalVLs << 4
	be.PutUint16(b[46:], p.PKeyViolations)
	be.PutUint16(b[48:], p.QKeyViolations)
	b[50] = p.GUIDCap
	b[51] = bit(p.Reregister, 7) | p.SubnetTimeout&0x1f
	b[52] = p.RespTime & 0x1f
	b[62] = p.SpeedExt<<4 | p.SpeedExt&0xf
	b[63] = p.SpeedExt & 0x1f
}

// SMInfo is the attribute by which subnet managers find out which of them is master.
type SMInfo struct {
	GUID     uint64
	Key      uint64
	Activity uint32
	Priority uint8
	State    uint8 // 1 discovering, 2 standby, 3 master
}

// Modifiers of a Set of SMInfo.
const (
	SMHandover    = 1 // of a master to one that stands by
	SMAcknowledge = 2 // the answer of that one
)

// DecodeSMInfo reads the attribute.
func DecodeSMInfo(b *[SMPDataSize]byte) SMInfo {
	be := binary.BigEndian
	return SMInfo{be.Uint64(b[0:]), be.Uint64(b[8:]), be.Uint32(b[16:]), b[20] >> 4, b[20] & 0xf}
}

// Put writes the attribute.
func (s *SMInfo) Put(b *[SMPDataSize]byte) {
	be := binary.BigEndian
	clear(b[:])
	be.PutUint64(b[0:], s.GUID)
	be.PutUint64(b[8:], s.Key)
	be.PutUint32(b[16:], s.Activity)
	b[20] = s.Priority<<4 | s.State&0xf
}

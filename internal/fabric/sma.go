package fabric

import (
	"encoding/binary"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// mad makes the packet of a MAD, from the LRH to the ICRC.
func mad(h wire.LRH, qpn, srcQPN, qkey uint32, m []byte) []byte {
	h.LNH = wire.LNHLocal
	n := wire.BTHSize + wire.DETHSize + len(m) + wire.ICRCSize
	h.Length = uint16(wire.LRHSize+n) / 4
	b := h.AppendTo(make([]byte, 0, wire.LRHSize+n+wire.VCRCSize))
	bth := wire.BTH{Opcode: wire.UDSendOnly, MigReq: true, PKey: wire.DefaultPKey, DestQP: qpn}
	b = bth.AppendTo(b)
	deth := wire.DETH{QKey: qkey, SrcQP: srcQPN}
	b = deth.AppendTo(b)
	b = append(b, m...)
	b = append(b, 0, 0, 0, 0)
	f := wire.NewLocalFlow(h.SLID, h.DLID, h.SL)
	f.Seal(0, b[wire.LRHSize:])
	return b
}

// readMAD returns the MAD in a packet from the LRH to the ICRC, the QPN that it is for, and whether the ICRC is right.
func readMAD(b []byte) (h wire.LRH, p wire.Packet, ok bool) {
	h, err := wire.DecodeLRH(b)
	if err != nil {
		return h, p, false
	}
	body := b[wire.LRHSize:]
	f := wire.NewLocalFlow(h.SLID, h.DLID, h.SL)
	if h.LNH == wire.LNHGlobal {
		g, err := wire.DecodeGRH(body)
		if err != nil {
			return h, p, false
		}
		f, body = wire.NewGlobalFlow(g.SGID, g.DGID, 0, 0), body[wire.GRHSize:]
	}
	if p.Decode(body) != nil || p.Opcode != wire.UDSendOnly || len(p.Payload) != wire.MADSize {
		return h, p, false
	}
	return h, p, f.Verify(0, body)
}

// sendSMP puts an SMP on the port's cable.
func (p *Port) sendSMP(s *wire.SMP, slid, dlid uint16) {
	if !p.linked() {
		return
	}
	h := wire.LRH{VL: wire.ManagementVL, DLID: dlid, SLID: slid}
	p.Stats.Sent++
	if b := p.onCable(wire.AppendVCRC(mad(h, wire.SMIQPN, wire.SMIQPN, 0, s.AppendTo(nil)))); b != nil {
		p.node.f.mgmt = append(p.node.f.mgmt, delivery{p.peer, b})
	}
}

// arriveSMP takes a packet of virtual lane 15 from the cable.
func (p *Port) arriveSMP(packet []byte) {
	whole, ok := wire.CutVCRC(packet)
	h, pk, valid := readMAD(whole)
	if !ok || !valid || h.VL != wire.ManagementVL || pk.DestQP != wire.SMIQPN || int(h.Length)*4 != len(whole) {
		p.Stats.Damaged++
		return
	}
	if !p.linked() { // the cable broke meanwhile
		return
	}
	p.Stats.Received++
	s, err := wire.DecodeSMP(pk.Payload)
	switch {
	case err != nil:
	case s.MgmtClass == wire.MADClassSMDirect:
		p.direct(&s)
	case s.MgmtClass == wire.MADClassSM:
		p.routed(&s, h)
	}
}

// routed takes an SMP that is forwarded by LID.
func (p *Port) routed(s *wire.SMP, h wire.LRH) {
	if p.node.kind == wire.NodeSwitch {
		for _, out := range p.node.route(h.DLID, p.num) {
			p.node.ports[out].sendSMP(s, h.SLID, h.DLID)
		}
		return // a switch answers no questions by LID: subnet managers here ask by directed routes
	}
	if p.manager != nil && p.owns(h.DLID) {
		p.manager.hear(s)
	}
}

// direct takes an SMP with a directed route one step on.
func (p *Port) direct(s *wire.SMP) {
	if s.HopCount > wire.MaxHops {
		return
	}
	if s.Back {
		switch {
		case s.HopPointer > 1 && s.HopPointer <= s.HopCount && p.node.kind == wire.NodeSwitch:
			s.HopPointer--
			p.node.leave(s.In[s.HopPointer], s)
		case s.HopPointer == 1:
			s.HopPointer--
			if p.manager != nil {
				p.manager.hear(s)
			}
		}
		return
	}
	switch {
	case s.HopPointer == 0 || s.HopPointer > s.HopCount:
	case s.HopPointer < s.HopCount:
		if p.node.kind == wire.NodeSwitch {
			s.In[s.HopPointer] = p.num
			s.HopPointer++
			p.node.leave(s.Out[s.HopPointer], s)
		}
	default:
		s.In[s.HopPointer] = p.num
		s.HopPointer++
		if !p.answer(s) {
			return
		}
		s.Back = true
		s.HopPointer--
		p.sendSMP(s, wire.PermissiveLID, wire.PermissiveLID)
	}
}

// leave sends an SMP by a port of a switch.
func (n *node) leave(port uint8, s *wire.SMP) {
	if port > 0 && int(port) < len(n.ports) {
		n.ports[port].sendSMP(s, wire.PermissiveLID, wire.PermissiveLID)
	}
}

// trap tells the subnet manager that a port of the switch has changed its state: trap 128.
func (n *node) trap() {
	sm := n.ports[0].info.SMLID
	if sm == 0 {
		return // no manager knows the switch, or will find it
	}
	lid := n.ports[0].info.LID
	t := notice(n, lid, trapUrgent, trapPortState)
	binary.BigEndian.PutUint16(t.Data[10:], lid)
	for _, out := range n.route(sm, 0) {
		n.ports[out].sendSMP(&t, lid, sm)
	}
}

// trap144 tells the subnet manager that another one of a higher priority runs at the port: trap 144.
func (p *Port) trap144() {
	if p.info.SMLID == 0 {
		return // the manager finds the port when it brings it into service
	}
	t := notice(p.node, p.info.LID, trapInformational, trapLocalChange)
	binary.BigEndian.PutUint16(t.Data[12:], p.info.LID)
	t.Data[15] = 1 // not the capability mask alone has changed
	binary.BigEndian.PutUint32(t.Data[16:], p.info.CapMask)
	binary.BigEndian.PutUint16(t.Data[20:], changedPriority)
	p.sendSMP(&t, p.info.LID, p.info.SMLID)
}

// notice makes a generic trap of a node.
func notice(n *node, lid uint16, severity uint8, trap uint16) wire.SMP {
	t := wire.SMP{MADHeader: wire.MADHeader{
		BaseVersion: wire.MADBaseVersion, MgmtClass: wire.MADClassSM, ClassVersion: wire.MADVersionSM,
		Method: wire.MADMethodTrap, TID: n.guid, AttrID: wire.AttrNotice,
	}}
	t.Data[0] = 1<<7 | severity
	t.Data[3] = n.kind
	binary.BigEndian.PutUint16(t.Data[4:], trap)
	binary.BigEndian.PutUint16(t.Data[6:], lid)
	return t
}

const (
	trapUrgent        = 1
	trapInformational = 4
	trapPortState     = 128
	trapLocalChange   = 144
	changedPriority   = 1 << 3
)

// answer executes an SMP for the node, and makes it its answer. It returns false if there is none.
func (p *Port) answer(s *wire.SMP) bool {
	if s.Method != wire.MADMethodGet && s.Method != wire.MADMethodSet {
		return false
	}
	set := s.Method == wire.MADMethodSet
	s.Method = wire.MADMethodGetResp
	s.Status = p.node.attribute(s, p, set)
	return true
}

// attribute reads an attribute into s, and writes it before if set. It returns the status.
func (n *node) attribute(s *wire.SMP, at *Port, set bool) uint16 {
	isSwitch := n.kind == wire.NodeSwitch
	switch s.AttrID {
	case wire.AttrNodeInfo:
		info := wire.NodeInfo{Type: n.kind, Ports: uint8(len(n.ports) - 1), SystemImageGUID: n.guid, NodeGUID: n.guid, PortGUID: at.guid,
			PartitionCap: pkeyCap, LocalPort: at.num}
		info.Put(&s.Data)
	case wire.AttrNodeDesc:
		clear(s.Data[:])
		copy(s.Data[:], n.name)
	case wire.AttrPortInfo:
		p := n.portOf(s.AttrMod, at)
		if p == nil {
			return wire.MADStatusBadField
		}
		if set {
			if status := p.set(wire.DecodePortInfo(&s.Data)); status != 0 {
				return status
			}
		}
		p.info.Put(&s.Data)
	case wire.AttrPKeyTable:
		p := n.portOf(s.AttrMod>>16, at)
		if p == nil || s.AttrMod&0xffff != 0 {
			return wire.MADStatusBadField
		}
		for i := range p.pkeys {
			if v := binary.BigEndian.Uint16(s.Data[2*i:]); set && p.pkeys[i] != v {
				p.pkeys[i] = v
				p.touch()
			}
		}
		clear(s.Data[:])
		for i, k := range p.pkeys {
			binary.BigEndian.PutUint16(s.Data[2*i:], k)
		}
	case wire.AttrGUIDInfo: // its one entry cannot be written
		if s.AttrMod != 0 {
			return wire.MADStatusBadField
		}
		clear(s.Data[:])
		binary.BigEndian.PutUint64(s.Data[:], at.guid)
	case wire.AttrSLtoVL:
		return n.slToVL(s, set)
	case wire.AttrSMInfo:
		if at.manager == nil || at.manager.stopped {
			return wire.MADStatusBadAttr
		}
		if set {
			if status := at.manager.told(s.AttrMod, wire.DecodeSMInfo(&s.Data)); status != 0 {
				return status
			}
		}
		at.manager.info().Put(&s.Data)
	case wire.AttrSwitch:
		if !isSwitch {
			return wire.MADStatusBadAttr
		}
		if set {
			v := wire.DecodeSwitchInfo(&s.Data)
			n.top = min(v.LinearTop, linearCap-1)
			n.changed = n.changed && !v.PortChanged
		}
		(&wire.SwitchInfo{LinearCap: linearCap, MulticastCap: multiCap, LinearTop: n.top, LifeTime: lifetime, PortChanged: n.changed}).Put(&s.Data)
	case wire.AttrLFT:
		first := int(s.AttrMod) * wire.SMPDataSize
		if !isSwitch || s.AttrMod >= linearCap/wire.SMPDataSize {
			return wire.MADStatusBadAttr
		}
		if set {
			copy(n.lft[first:], s.Data[:])
		}
		copy(s.Data[:], n.lft[first:])
	case wire.AttrMFT:
		if !isSwitch {
			return wire.MADStatusBadAttr
		}
		return n.multicastTable(s, set)
	default:
		return wire.MADStatusBadAttr
	}
	return 0
}

// slToVL reads the table that gives each service level its virtual lane, which is the same for all ports and cannot be
// written. Of a switch the modifier has the ports by which a packet comes and leaves.
func (n *node) slToVL(s *wire.SMP, set bool) uint16 {
	if in, out := s.AttrMod>>8, s.AttrMod&0xff; n.kind == wire.NodeSwitch && (int(in) >= len(n.ports) || int(out) >= len(n.ports)) {
		return wire.MADStatusBadField
	}
	var table [wire.SMPDataSize]byte
	for sl := uint8(0); sl < serviceLevels; sl += 2 {
		table[sl/2] = VL(sl)<<4 | VL(sl+1)
	}
	if set && s.Data != table {
		return wire.MADStatusBadField
	}
	s.Data = table
	return 0
}

const serviceLevels = 16

const mftEntries = wire.SMPDataSize / 2 // of a block; each has 16 ports

// multicastTable reads or writes a block of the multicast forwarding table.
func (n *node) multicastTable(s *wire.SMP, set bool) uint16 {
	position, first := uint(s.AttrMod>>28), (s.AttrMod&0x1ff)*mftEntries
	if first >= multiCap || position >= 4 {
		return wire.MADStatusBadField
	}
	for i := range mftEntries {
		lid, at := uint16(wire.MulticastLID+first)+uint16(i), 2*i
		if set {
			mask := n.mft[lid]&^(0xffff<<(16*position)) | uint64(binary.BigEndian.Uint16(s.Data[at:]))<<(16*position)
			if n.mft[lid] = mask; mask == 0 {
				delete(n.mft, lid)
			}
		}
		binary.BigEndian.PutUint16(s.Data[at:], uint16(n.mft[lid]>>(16*position)))
	}
	return 0
}

// portOf returns the port that an attribute modifier names, or nil. A channel adapter and a router tell of the port that
// was asked.
func (n *node) portOf(mod uint32, at *Port) *Port {
	if n.kind != wire.NodeSwitch {
		if mod != 0 && mod != uint32(at.num) {
			return nil
		}
		return at
	}
	if int(mod) >= len(n.ports) {
		return nil
	}
	return n.ports[mod]
}

// set takes over what a subnet manager may set of a port. It returns the status.
func (p *Port) set(v wire.PortInfo) uint16 {
	switch {
	case v.State == 0, v.State == p.info.State:
	case v.State == Armed && p.info.State == Init, v.State == Active && p.info.State == Armed:
	default:
		return wire.MADStatusBadField
	}
	if v.LID >= wire.MulticastLID || v.MTU < minMTU || v.MTU > p.info.MTUCap {
		return wire.MADStatusBadField
	}
	if v.State != 0 {
		p.info.State = v.State
	}
	if v.SMLID != p.info.SMLID || v.SMSL != p.info.SMSL {
		p.smChanges++
	}
	p.info.LID, p.info.SMLID, p.info.LMC, p.info.SMSL, p.info.Prefix = v.LID, v.SMLID, v.LMC, v.SMSL, v.Prefix
	p.info.MTU, p.info.SubnetTimeout = v.MTU, v.SubnetTimeout
	if v.Reregister {
		p.rereg++
	}
	p.touch()
	p.kick()
	return 0
}

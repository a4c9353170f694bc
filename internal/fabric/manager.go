package fabric

import (
	"slices"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// The states of a subnet manager: codes of SMInfo.
const (
	smDiscovering = 1
	smStandby     = 2
	smMaster      = 3
)

// manager is a subnet manager, with the subnet administration that goes with it.
type manager struct {
	port     *Port
	priority uint8
	lmc      uint8
	prefix   uint64
	state    uint8
	stopped  bool
	dirty    bool // something has changed
	activity uint32
	heirOf   uint64 // the GUID of the manager that has handed over, until the sweep that follows; or 0

	tid    uint64
	got    map[uint64]wire.SMP // answers
	lids   map[uint64]uint16   // by a port's GUID: the lowest
	fresh  map[uint64]bool     // ports that the latest sweep found first
	used   map[uint16]uint64   // the GUID that has a LID
	subnet subnet
	groups map[[16]byte]*group
	blocks map[uint32]bool // of multicast forwarding tables, that may have entries
	sweeps int
}

// Manager is a subnet manager that runs beside a channel adapter's port.
type Manager struct{ m *manager }

// Manager starts a subnet manager at the port of a channel adapter. Of several in a subnet the one with the highest
// priority, 0 to 15, is the master, or else the one with the lowest GUID. A master that finds such a one hands over to it.
// lmc is how many low bits of a LID choose a path.
func (p *Port) Manager(priority, lmc uint8) *Manager {
	m := &manager{port: p, priority: priority, lmc: min(lmc, 7), prefix: firstPrefix, state: smDiscovering, dirty: true, got: map[uint64]wire.SMP{},
		lids: map[uint64]uint16{}, fresh: map[uint64]bool{}, used: map[uint16]uint64{}, groups: map[[16]byte]*group{}, blocks: map[uint32]bool{0: true}}
	p.manager = m
	p.info.CapMask |= wire.CapIsSM
	p.node.f.managers = append(p.node.f.managers, m)
	return &Manager{m}
}

// SetPrefix gives the subnet another prefix than fe80::, which routers do not forward. It is called before the fabric
// settles.
func (m *Manager) SetPrefix(prefix uint64) { m.m.prefix = prefix }

// IsMaster reports whether the manager serves the subnet.
func (m *Manager) IsMaster() bool { return m.m.state == smMaster && !m.m.stopped }

// Sweeps returns how often the manager has looked at the whole subnet.
func (m *Manager) Sweeps() int { return m.m.sweeps }

// Stop ends the manager, as if its process were killed. Nobody is told: another manager notices when it polls.
func (m *Manager) Stop() {
	m.m.stopped = true
	m.m.port.info.CapMask &^= wire.CapIsSM
}

// Start starts the manager again. It knows nothing of what it knew.
func (m *Manager) Start() {
	p, prefix := m.m.port, m.m.prefix
	*m.m = *p.Manager(m.m.priority, m.m.lmc).m
	m.m.prefix, p.manager = prefix, m.m
	f := p.node.f
	f.managers = slices.DeleteFunc(f.managers[:len(f.managers)-1], func(x *manager) bool { return x == m.m })
	f.managers = append(f.managers, m.m)
}

// Poll has the managers that stand by ask whether the master still is there, and the master look at the subnet again.
// Managers of a real subnet do so every few seconds.
func (f *Fabric) Poll() {
	for _, m := range f.managers {
		m.dirty = true
	}
}

// info is the manager's SMInfo.
func (m *manager) info() *wire.SMInfo {
	m.activity++
	return &wire.SMInfo{GUID: m.port.guid, Activity: m.activity, Priority: m.priority, State: m.state}
}

// hear takes an SMP that is for the manager.
func (m *manager) hear(s *wire.SMP) {
	switch {
	case m.stopped:
	case s.Method == wire.MADMethodTrap:
		m.dirty = m.dirty || m.state == smMaster
	case s.Method&wire.MADMethodResponse != 0:
		m.got[s.TID] = *s
	}
}

// work does one thing, and reports whether there was any.
func (m *manager) work() bool {
	switch {
	case m.stopped:
		m.port.requests = nil
		return false
	case m.dirty:
		m.dirty = false
		m.sweep()
		return true
	case len(m.port.requests) > 0:
		r := m.port.requests[0]
		m.port.requests = m.port.requests[1:]
		m.serve(&r)
		return true
	}
	return false
}

const tries = 4 // of a question

// ask sends a question by a directed route, and waits for the answer.
func (m *manager) ask(route []uint8, method uint8, attr uint16, mod uint32, data *[wire.SMPDataSize]byte) (wire.SMP, bool) {
	for range tries {
		m.tid++
		s := wire.SMP{MADHeader: wire.MADHeader{
			BaseVersion: wire.MADBaseVersion, MgmtClass: wire.MADClassSMDirect, ClassVersion: wire.MADVersionSM,
			Method: method, TID: m.tid, AttrID: attr, AttrMod: mod,
		}, HopCount: uint8(len(route)), DrSLID: wire.PermissiveLID, DrDLID: wire.PermissiveLID}
		if data != nil {
			s.Data = *data
		}
		if len(route) == 0 { // the manager's own node
			m.port.answer(&s)
			return s, s.Status == 0
		}
		copy(s.Out[1:], route)
		s.HopPointer = 1
		m.port.sendSMP(&s, wire.PermissiveLID, wire.PermissiveLID)
		m.port.node.f.pump()
		if got, ok := m.got[m.tid]; ok {
			delete(m.got, m.tid)
			return got, got.Status == 0
		}
		if !m.port.linked() {
			break
		}
	}
	return wire.SMP{}, false
}

// get asks for an attribute.
func (m *manager) get(route []uint8, attr uint16, mod uint32) (*[wire.SMPDataSize]byte, bool) {
	s, ok := m.ask(route, wire.MADMethodGet, attr, mod, nil)
	return &s.Data, ok
}

// put sets an attribute.
func (m *manager) put(route []uint8, attr uint16, mod uint32, data *[wire.SMPDataSize]byte) {
	m.ask(route, wire.MADMethodSet, attr, mod, data)
}

// sweep looks at the whole subnet, and brings into service what it finds.
func (m *manager) sweep() {
	if m.port.info.PhysState != physLinkUp {
		m.state = smDiscovering
		return
	}
	m.sweeps++
	m.subnet = m.discover()
	if m.heirOf != 0 {
		m.acknowledge()
	} else if m.yields() {
		return
	}
	took := m.state != smMaster
	if m.state = smMaster; took {
		clear(m.groups) // nobody has told of them
	}
	m.number()
	m.program()
	m.activate(took)
	m.multicast()
	m.port.node.f.changes++
}

// yields leaves the subnet to another manager, and reports whether it does. A master hands over to the highest one that is
// above it, and waits for a master below it to hand over. Others stand by for any master, and for who is above them.
func (m *manager) yields() bool {
	var highest *found
	var master *wire.SMInfo
	own := m.info()
	for _, n := range m.subnet.nodes {
		if n.sm == nil || n.portGUID == m.port.guid {
			continue
		}
		if n.sm.State == smMaster {
			master = n.sm
		}
		if above(n.sm, own) && (highest == nil || above(n.sm, highest.sm)) {
			highest = n
		}
	}
	if m.state == smMaster {
		if highest != nil && m.tell(highest, wire.SMHandover) {
			m.state = smStandby
			return true
		}
		return highest == nil && master != nil
	}
	if m.state = smDiscovering; highest == nil && master == nil {
		return false
	}
	m.state = smStandby
	if master != nil && highest == nil {
		m.port.trap144() // the master does not know that there is a higher one
	}
	return true
}

// above reports whether a manager is rather to be the master than another: by its priority, or else by its lower GUID.
func above(a, b *wire.SMInfo) bool {
	return a.Priority > b.Priority || a.Priority == b.Priority && a.GUID < b.GUID
}

// acknowledge answers a handover. One that was master itself has nothing to answer.
func (m *manager) acknowledge() {
	from := m.subnet.by[m.heirOf]
	m.heirOf = 0
	if from != nil && m.state == smStandby {
		m.tell(from, wire.SMAcknowledge)
	}
}

// tell sets the SMInfo of another manager.
func (m *manager) tell(to *found, mod uint32) bool {
	var data [wire.SMPDataSize]byte
	m.info().Put(&data)
	_, ok := m.ask(to.route, wire.MADMethodSet, wire.AttrSMInfo, mod, &data)
	return ok
}

// told takes a Set of the manager's SMInfo. As OpenSM does, it takes a handover from a master alone, and an
// acknowledgement from one that stands by while it does so itself. It returns the status.
func (m *manager) told(mod uint32, by wire.SMInfo) uint16 {
	switch {
	case mod == wire.SMHandover && by.State == smMaster:
		m.heirOf, m.dirty = by.GUID, true
	case mod == wire.SMAcknowledge && by.State == smStandby && m.state == smStandby:
	default:
		return wire.MADStatusBadField
	}
	return 0
}

// number gives each port its LIDs. A port keeps what it has, unless another has that too.
func (m *manager) number() {
	clear(m.used)
	clear(m.fresh)
	n := uint16(1) << m.lmc
	ends := m.subnet.ends()
	for pass := range 2 {
		for _, e := range ends {
			lid, known := m.lids[e.guid]
			if !known {
				m.fresh[e.guid] = true
				lid = e.info.LID
			}
			if pass == 1 && m.used[m.lids[e.guid]] == e.guid && m.lids[e.guid] != 0 {
				continue
			}
			width := n
			if e.isSwitch {
				width = 1
			}
			if pass == 0 && (lid == 0 || lid%width != 0 || !m.free(lid, width)) {
				continue
			}
			if pass == 1 {
				if lid = m.unused(width); lid == 0 { // the port stays out of service
					delete(m.lids, e.guid)
					continue
				}
			}
			m.lids[e.guid] = lid
			for i := range width {
				m.used[lid+i] = e.guid
			}
		}
	}
}

// unused returns the first of so many LIDs that no port has, or 0.
func (m *manager) unused(width uint16) uint16 {
	for lid := width; lid < wire.MulticastLID; lid += width {
		if m.free(lid, width) {
			return lid
		}
	}
	return 0
}

func (m *manager) free(lid, width uint16) bool {
	for i := range width {
		if m.used[lid+i] != 0 {
			return false
		}
	}
	return true
}

// activate tells the ports their LIDs and takes them to ACTIVE: first all to ARMED, then all to ACTIVE.
func (m *manager) activate(took bool) {
	for _, state := range []uint8{Armed, Active} {
		for _, n := range m.subnet.nodes {
			for num, info := range n.ports {
				if info == nil || info.PhysState != physLinkUp {
					continue
				}
				want := *info
				want.State, want.SMLID = state, m.lids[m.port.guid]
				if info.State == Active || num == 0 && n.isSwitch {
					want.State = 0
				}
				want.Prefix, want.SubnetTimeout, want.MTU = m.prefix, lifetime, n.linkMTU(uint8(num))
				if !n.isSwitch || num == 0 {
					if want.LID = m.lids[n.portGUID]; want.LID == 0 {
						continue
					}
				}
				if !n.isSwitch {
					want.LMC = m.lmc
					want.Reregister = state == Active && (took || m.fresh[n.portGUID] || info.State == Armed)
				}
				if state == Armed && !n.isSwitch {
					m.partition(n, num)
				}
				same := *info
				if same.State == Active || want.State == 0 {
					same.State = 0
				}
				if want == same {
					continue
				}
				var data [wire.SMPDataSize]byte
				want.Put(&data)
				if s, ok := m.ask(n.route, wire.MADMethodSet, wire.AttrPortInfo, uint32(num), &data); ok {
					got := wire.DecodePortInfo(&s.Data)
					n.ports[num] = &got
				}
			}
		}
	}
}

// partition writes the P_Key table of a channel adapter's port.
func (m *manager) partition(n *found, num int) {
	var data [wire.SMPDataSize]byte
	for i, k := range m.pkeysOf(n) {
		data[2*i], data[2*i+1] = uint8(k>>8), uint8(k)
	}
	if has, ok := m.get(n.route, wire.AttrPKeyTable, 0); ok && *has != data {
		m.put(n.route, wire.AttrPKeyTable, 0, &data)
	}
}

// pkeysOf returns the P_Keys of a node's port that has LIDs. A switch itself is in the default partition alone.
func (m *manager) pkeysOf(n *found) []uint16 {
	keys := []uint16{wire.DefaultPKey}
	for _, p := range m.port.node.f.Partitions {
		if !n.isSwitch && len(keys) < pkeyCap && slices.ContainsFunc(p.Members, func(x *Port) bool { return x.guid == n.portGUID }) {
			keys = append(keys, p.PKey)
		}
	}
	return keys
}

// sharePKey reports whether ports of these P_Keys may talk to each other in a partition: both are in it, and not both as
// limited members.
func sharePKey(a, b []uint16, pkey uint16) bool {
	for _, x := range a {
		for _, y := range b {
			if wire.SamePartition(x, pkey) && wire.MayTalk(x, y) {
				return true
			}
		}
	}
	return false
}

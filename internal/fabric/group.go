package fabric

import (
	"maps"
	"slices"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// group is a multicast group of a subnet manager.
type group struct {
	record  wire.MCMemberRecord // what all members have in common
	members map[uint64]bool     // by a port's GUID
}

// member answers a question for a group, or a wish to join or to leave.
func (m *manager) member(s *wire.SAMAD) (status uint16) {
	q := wire.DecodeMCMemberRecord(&s.Data)
	if s.Mask&wire.MemberMGID == 0 {
		return wire.SAStatusMissing
	}
	g := m.groups[q.MGID]
	if s.Method == wire.MADMethodGet {
		if g == nil {
			return wire.SAStatusNoRecords
		}
		g.record.Put(s)
		return 0
	}
	if s.Mask&wire.MemberPort == 0 || s.Mask&wire.MemberState == 0 {
		return wire.SAStatusMissing
	}
	e := m.endOf(q.Port, 0, true)
	if e == nil || q.MGID[0] != 0xff {
		return wire.SAStatusBadGID
	}
	if s.Method == wire.MADMethodDelete {
		if g == nil || !g.members[e.guid] {
			return wire.SAStatusInvalid
		}
		if delete(g.members, e.guid); len(g.members) == 0 {
			delete(m.groups, q.MGID)
		}
		m.multicast()
		return 0
	}
	if g == nil {
		mlid, ok := m.freeMLID(q.MLID)
		if !ok {
			return wire.SAStatusNoResources
		}
		g = &group{members: map[uint64]bool{}, record: wire.MCMemberRecord{
			MGID: q.MGID, MLID: mlid, QKey: q.QKey, MTU: maxMTU, Rate: rate100, Lifetime: lifetime, PKey: wire.DefaultPKey, JoinState: 1, Scope: q.MGID[1] & 0xf,
		}}
		m.groups[q.MGID] = g
	}
	g.members[e.guid] = true
	m.multicast()
	r := g.record
	r.Port = q.Port
	r.Put(s)
	return 0
}

// freeMLID returns a LID that no group has, the wanted one if possible.
func (m *manager) freeMLID(wanted uint16) (uint16, bool) {
	taken := map[uint16]bool{}
	for _, g := range m.groups {
		taken[g.record.MLID] = true
	}
	if wanted >= wire.MulticastLID && wanted < wire.MulticastLID+multiCap && !taken[wanted] {
		return wanted, true
	}
	for lid := uint16(wire.MulticastLID); lid < wire.MulticastLID+multiCap; lid++ {
		if !taken[lid] {
			return lid, true
		}
	}
	return 0, false
}

// multicast computes a tree for each group, and writes the switches' multicast forwarding tables. All trees have one
// root, the switch next to the manager, and the first of the shortest ways to it.
func (m *manager) multicast() {
	s := &m.subnet
	want := map[*found]map[uint16]uint64{}
	var root *found
	for _, n := range s.nodes {
		if n.isSwitch {
			want[n] = map[uint16]uint64{}
			if root == nil {
				root = n
			}
		}
	}
	if root == nil {
		return
	}
	dist := s.hops(root)
	for _, g := range m.groups {
		for _, e := range s.ends() {
			n := e.at.node
			if !g.members[e.guid] || n == nil || want[n] == nil {
				continue
			}
			want[n][g.record.MLID] |= 1 << e.at.port
			for n != root {
				if _, reached := dist[n]; !reached {
					break
				}
				for _, num := range n.linked() {
					l := n.links[num]
					if d, ok := dist[l.node]; ok && d == dist[n]-1 {
						want[n][g.record.MLID] |= 1 << num
						want[l.node][g.record.MLID] |= 1 << l.port
						n = l.node
						break
					}
				}
			}
		}
	}
	for _, n := range s.nodes {
		if n.isSwitch {
			m.writeMFT(n, want[n])
		}
	}
}

// writeMFT writes the blocks of a switch's table that differ, of those in which an entry is set or has been.
func (m *manager) writeMFT(n *found, want map[uint16]uint64) {
	for lid := range want {
		m.blocks[uint32(lid-wire.MulticastLID)/mftEntries] = true
	}
	for _, b := range slices.Sorted(maps.Keys(m.blocks)) {
		for position := uint32(0); position*16 < uint32(len(n.ports)); position++ {
			var data [wire.SMPDataSize]byte
			for i := range mftEntries {
				mask := want[uint16(wire.MulticastLID+b*mftEntries)+uint16(i)] >> (16 * position)
				data[2*i], data[2*i+1] = uint8(mask>>8), uint8(mask)
			}
			mod := position<<28 | b
			if has, ok := m.get(n.route, wire.AttrMFT, mod); ok && *has != data {
				m.put(n.route, wire.AttrMFT, mod, &data)
			}
		}
	}
}

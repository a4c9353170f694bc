package fabric

import (
	"maps"
	"slices"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// group is a multicast group of a subnet manager.
type group struct {
	record  wire.MCMemberRecord // what all members have in common
	members map[uint64]uint8    // JoinState by a port's GUID
}

const (
	joinReceives = wire.JoinFull | wire.JoinNonMember    // who takes the group's packets
	joinKeeps    = wire.JoinFull | wire.JoinSendOnlyFull // while there is one of these, the group exists
)

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
	if e == nil || !isGroup(q.MGID) {
		return wire.SAStatusBadGID
	}
	if s.Method == wire.MADMethodDelete {
		return m.leave(g, e, &q)
	}
	return m.join(g, e, &q, s)
}

// leave takes away from a member's JoinState. A group without full members is no more.
func (m *manager) leave(g *group, e *end, q *wire.MCMemberRecord) (status uint16) {
	if g == nil || q.JoinState == 0 || q.JoinState&^g.members[e.guid] != 0 {
		return wire.SAStatusInvalid
	}
	if g.members[e.guid] &^= q.JoinState; g.members[e.guid] == 0 {
		delete(g.members, e.guid)
	}
	if !g.kept() {
		delete(m.groups, q.MGID)
	}
	m.multicast()
	return 0
}

// kept reports whether the group has a full member.
func (g *group) kept() bool {
	for _, state := range g.members {
		if state&joinKeeps != 0 {
			return true
		}
	}
	return false
}

// join makes a port a member of a group, which a full member makes if there is none. The group is of one partition, in
// which the port must be, and has the MTU of the port by which it was made, which the others must have too.
func (m *manager) join(g *group, e *end, q *wire.MCMemberRecord, s *wire.SAMAD) (status uint16) {
	made := g == nil
	if made {
		switch {
		case q.JoinState&joinKeeps == 0:
			return wire.SAStatusInvalid
		case s.Mask&memberComponents != memberComponents:
			return wire.SAStatusMissing
		}
		g = &group{members: map[uint64]uint8{}, record: wire.MCMemberRecord{
			MGID: q.MGID, QKey: q.QKey, MTU: e.info.MTU, TrafficClass: q.TrafficClass, PKey: q.PKey, Rate: rate100, Lifetime: lifetime, SL: q.SL,
			FlowLabel: q.FlowLabel, Scope: q.MGID[1] & 0xf,
		}}
	}
	within := slices.ContainsFunc(m.pkeysOf(e.node), func(k uint16) bool { return wire.SamePartition(k, g.record.PKey) })
	other := s.Mask&wire.MemberPKey != 0 && !wire.SamePartition(q.PKey, g.record.PKey)
	if q.JoinState == 0 || !within || other || e.info.MTU < g.record.MTU {
		return wire.SAStatusInvalid
	}
	if made {
		mlid, ok := m.freeMLID(q.MLID)
		if !ok {
			return wire.SAStatusNoResources
		}
		g.record.MLID = mlid
		m.groups[q.MGID] = g
	}
	g.members[e.guid] |= q.JoinState
	m.multicast()
	r := g.record
	r.Port, r.JoinState = q.Port, g.members[e.guid]
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
			n, state := e.at.node, g.members[e.guid]
			if state == 0 || n == nil || want[n] == nil {
				continue
			}
			receives := state&joinReceives != 0
			if receives {
				want[n][g.record.MLID] |= 1 << e.at.port
			}
			for n != root {
				if _, reached := dist[n]; !reached {
					break
				}
				for _, num := range n.linked() {
					l := n.links[num]
					if d, ok := dist[l.node]; ok && d == dist[n]-1 {
						want[n][g.record.MLID] |= 1 << num
						if receives {
							want[l.node][g.record.MLID] |= 1 << l.port
						}
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

package fabric

import (
	"slices"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// subnet is what a subnet manager has found.
type subnet struct {
	nodes []*found          // its own node first, the nearer ones before the others
	by    map[uint64]*found // a switch by its GUID, others by that of the port
}

// found is a node of a subnet. Each port of a router is one.
type found struct {
	guid, portGUID uint64
	kind           uint8
	isSwitch       bool
	num            uint8 // of the port that has LIDs
	route          []uint8
	ports          []*wire.PortInfo // by number; nil where there is none, or it did not answer
	links          map[uint8]far
	sm             *wire.SMInfo
	top            uint16
	lft            []uint8 // as it should be
}

// far is the other end of a cable.
type far struct {
	node *found
	port uint8
}

// discover asks its way through the subnet.
func (m *manager) discover() subnet {
	s := subnet{by: map[uint64]*found{}}
	n, _ := m.visit(&s, nil)
	for i := 0; n != nil && i < len(s.nodes); i++ {
		n = s.nodes[i]
		for num, info := range n.ports {
			if info == nil || num == 0 || info.PhysState != physLinkUp {
				continue
			}
			if !n.isSwitch && i > 0 {
				continue // behind a channel adapter there is nothing, and behind a router another subnet
			}
			route := append(slices.Clone(n.route), uint8(num))
			if len(route) > wire.MaxHops {
				continue
			}
			if to, port := m.visit(&s, route); to != nil {
				n.links[uint8(num)] = far{to, port}
				to.links[port] = far{n, uint8(num)}
			}
		}
	}
	return s
}

// visit asks the node at the end of a route who it is, and for its ports if it is new. It returns the port by which it
// was asked.
func (m *manager) visit(s *subnet, route []uint8) (*found, uint8) {
	data, ok := m.get(route, wire.AttrNodeInfo, 0)
	if !ok {
		return nil, 0
	}
	info := wire.DecodeNodeInfo(data)
	key := info.PortGUID
	if info.Type == wire.NodeSwitch {
		key = info.NodeGUID
	}
	if n := s.by[key]; n != nil {
		return n, info.LocalPort
	}
	n := &found{guid: info.NodeGUID, portGUID: info.PortGUID, kind: info.Type, isSwitch: info.Type == wire.NodeSwitch, num: info.LocalPort, route: route,
		ports: make([]*wire.PortInfo, int(info.Ports)+1), links: map[uint8]far{}}
	if int(n.num) >= len(n.ports) {
		return nil, 0
	}
	first, last := int(n.num), int(n.num)
	if n.isSwitch {
		n.num, first, last = 0, 0, len(n.ports)-1
		if data, ok := m.get(route, wire.AttrSwitch, 0); ok {
			v := wire.DecodeSwitchInfo(data)
			n.top = v.LinearTop
			if v.PortChanged {
				v.Put(data)
				m.put(route, wire.AttrSwitch, 0, data)
			}
		}
	}
	for num := first; num <= last; num++ {
		if data, ok := m.get(route, wire.AttrPortInfo, uint32(num)); ok {
			p := wire.DecodePortInfo(data)
			n.ports[num] = &p
		}
	}
	if !n.isSwitch && n.ports[info.LocalPort] != nil && n.ports[info.LocalPort].CapMask&wire.CapIsSM != 0 {
		if data, ok := m.get(route, wire.AttrSMInfo, 0); ok {
			v := wire.DecodeSMInfo(data)
			n.sm = &v
		}
	}
	s.nodes = append(s.nodes, n)
	s.by[key] = n
	return n, info.LocalPort
}

// end is a port that has LIDs: that of a channel adapter or a router, or a switch itself.
type end struct {
	guid     uint64
	isSwitch bool
	info     *wire.PortInfo
	node     *found
	at       far // the switch next to it; of a switch itself, and port 0
}

// ends returns the ports that have LIDs.
func (s *subnet) ends() (list []end) {
	for _, n := range s.nodes {
		at := far{n, 0}
		if !n.isSwitch {
			at = n.links[n.num]
		}
		if info := n.ports[n.num]; info != nil {
			list = append(list, end{n.portGUID, n.isSwitch, info, n, at})
		}
	}
	return list
}

// linkMTU returns the largest MTU that both ends of a port's cable can.
func (n *found) linkMTU(num uint8) uint8 {
	mtu := n.ports[num].MTUCap
	if l, ok := n.links[num]; ok && l.node.ports[l.port] != nil {
		mtu = min(mtu, l.node.ports[l.port].MTUCap)
	}
	return mtu
}

// pathMTU returns the smallest MTU on the way of a LID from one port to another, or 0 if no way leads there.
func (s *subnet) pathMTU(from, to *end, dlid uint16) uint8 {
	mtu := from.info.MTU
	n := from.at.node
	for range s.nodes {
		switch {
		case from.guid == to.guid || n == to.node: // its own loop, or a cable between the two
			return mtu
		case n == nil || !n.isSwitch || int(dlid) >= len(n.lft):
			return 0
		}
		num := n.lft[dlid]
		if num == 0 || int(num) >= len(n.ports) || n.ports[num] == nil {
			return 0 // to another switch itself, or nowhere
		}
		mtu = min(mtu, n.ports[num].MTU)
		n = n.links[num].node
	}
	return 0
}

// hops returns the number of cables from each switch to one.
func (s *subnet) hops(to *found) map[*found]int {
	dist := map[*found]int{to: 0}
	for queue := []*found{to}; len(queue) > 0; queue = queue[1:] {
		n := queue[0]
		for _, num := range n.linked() {
			if next := n.links[num].node; next.isSwitch {
				if _, seen := dist[next]; !seen {
					dist[next] = dist[n] + 1
					queue = append(queue, next)
				}
			}
		}
	}
	return dist
}

// linked returns the ports with cables, in order.
func (n *found) linked() (list []uint8) {
	for num := range n.links {
		list = append(list, num)
	}
	slices.Sort(list)
	return list
}

// program computes the shortest ways to each LID, and writes the switches' linear forwarding tables. Of several ports
// that lead on equally well, the one by which the fewest LIDs are forwarded so far is taken: OpenSM's default does so.
func (m *manager) program() {
	s := &m.subnet
	top := uint16(0)
	for lid := range m.used {
		top = max(top, lid)
	}
	load := map[*found]map[uint8]int{}
	for _, n := range s.nodes {
		if n.isSwitch {
			load[n] = map[uint8]int{}
			n.lft = slices.Repeat([]uint8{noPort}, int(top)+1)
		}
	}
	for _, e := range s.ends() {
		if e.at.node == nil || !e.at.node.isSwitch || m.lids[e.guid] == 0 {
			continue // a cable between two channel adapters, or more ports than LIDs
		}
		dist := s.hops(e.at.node)
		width := uint16(1)
		if !e.isSwitch {
			width = 1 << m.lmc
		}
		for lid := m.lids[e.guid]; lid < m.lids[e.guid]+width; lid++ {
			for _, n := range s.nodes {
				d, reached := dist[n]
				if !n.isSwitch || !reached {
					continue
				}
				best := e.at.port
				if d > 0 {
					best = noPort
					for _, num := range n.linked() {
						far, ok := dist[n.links[num].node]
						if ok && far == d-1 && (best == noPort || load[n][num] < load[n][best]) {
							best = num
						}
					}
				}
				load[n][best]++
				n.lft[lid] = best
			}
		}
	}
	for _, n := range s.nodes {
		if n.isSwitch {
			m.writeLFT(n, top)
		}
	}
}

// writeLFT writes the blocks of a switch's table that differ.
func (m *manager) writeLFT(n *found, top uint16) {
	for first := 0; first <= int(top); first += wire.SMPDataSize {
		var want [wire.SMPDataSize]byte
		for i := range want {
			if want[i] = noPort; first+i < len(n.lft) {
				want[i] = n.lft[first+i]
			}
		}
		mod := uint32(first / wire.SMPDataSize)
		if has, ok := m.get(n.route, wire.AttrLFT, mod); ok && *has != want {
			m.put(n.route, wire.AttrLFT, mod, &want)
		}
	}
	if n.top != top {
		v := wire.SwitchInfo{LinearTop: top, LifeTime: lifetime}
		var data [wire.SMPDataSize]byte
		v.Put(&data)
		m.put(n.route, wire.AttrSwitch, 0, &data)
	}
}

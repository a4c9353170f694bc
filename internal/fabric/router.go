package fabric

import (
	"slices"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// Values that this implementation has chosen.
const (
	maxHopLimit = 255  // of a path by a router, as OpenSM gives it
	maxWays     = 1024 // destinations that a router remembers
)

// Router adds a router. Each of its ports is in the subnet at its cable, whose subnet manager gives it a LID.
func (f *Fabric) Router(name string, ports int) *Router {
	n := f.node(wire.NodeRouter, name, ports)
	n.ways = map[[16]byte]*way{}
	return &Router{n}
}

// Router takes packets with a GRH from one subnet to another. It makes a new LRH, and takes one from the hop limit. The
// ICRC covers neither, and stays.
//
// How routers learn of subnets that are not at their own ports is not specified. Here a router knows all routers whose
// ports are active, and takes the way with the fewest. Groups end at a router.
type Router struct{ n *node }

// Port returns a port, counted from 1.
func (r *Router) Port(n int) *Port { return r.n.ports[n] }

// Fail takes the router out of order: its cables go down, and its packets are lost. Repair undoes that.
func (r *Router) Fail() {
	r.n.fail()
	clear(r.n.ways)
	r.n.asks = nil
	for _, p := range r.n.ports[1:] {
		for vl := range p.in {
			p.Stats.Discarded += uint64(len(p.in[vl]))
			p.in[vl] = nil
		}
	}
}

// Repair puts a failed router back in order, as after power has returned.
func (r *Router) Repair() { r.n.repair() }

// way is where a router sends the packets for a GID.
type way struct {
	dgid   [16]byte
	target [16]byte // the port whose LID is asked for: that of dgid, or the next router's
	out    *Port
	dlid   uint16 // 0 while it is asked for
	age    uint64 // Fabric.changes, when the way was found
	tries  int
	tid    uint64 // of the question
	keeps  []kept // packets that wait for the answer
}

// kept is a packet that a router keeps, from the LRH to the ICRC.
type kept struct {
	packet []byte
	vl     int
}

// enter takes a packet that has come to a router's port. packet has its VCRC, and whole has none.
func (p *Port) enter(packet, whole []byte, h *wire.LRH, vl int) {
	n := blocks(packet)
	if !p.owns(h.DLID) {
		p.Stats.Discarded++
		p.grant(vl, n)
		return
	}
	if p.administration(whole) {
		p.grant(vl, n)
		return
	}
	dgid, ok := routable(whole)
	var w *way
	if ok {
		w = p.node.wayTo(dgid)
	}
	switch {
	case w == nil:
		p.Stats.Discarded++
	case w.dlid != 0:
		p.keep(inside{packet: w.readdress(whole), to: []uint8{w.out.num}}, vl)
		return // the packet holds its credits
	case len(w.keeps) < maxQueue:
		w.keeps = append(w.keeps, kept{whole, vl})
	default:
		p.Stats.Discarded++
	}
	p.grant(vl, n)
}

// routable returns the destination of a packet that may go to another subnet.
func routable(whole []byte) (dgid [16]byte, ok bool) {
	if wire.LNH(whole[1]&3) != wire.LNHGlobal {
		return dgid, false
	}
	g, err := wire.DecodeGRH(whole[wire.LRHSize:])
	const linkLocal = firstPrefix
	if err != nil || g.HopLimit <= 1 || prefixOf(g.SGID) == linkLocal || prefixOf(g.DGID) == linkLocal || g.DGID[0] == 0xff {
		return dgid, false
	}
	return g.DGID, true
}

// readdress returns a packet as it leaves the router, from the LRH to the VCRC.
func (w *way) readdress(whole []byte) []byte {
	b := append(make([]byte, 0, len(whole)+wire.VCRCSize), whole...)
	h, _ := wire.DecodeLRH(b)
	h.SLID, h.DLID = w.out.info.LID, w.dlid
	h.AppendTo(b[:0])
	b[wire.LRHSize+hopLimitAt]--
	return wire.AppendVCRC(b)
}

const hopLimitAt = 7 // of the GRH

// wayTo returns the way to a GID, which the router may still have to ask for. It is nil if no router leads there.
func (n *node) wayTo(dgid [16]byte) *way {
	w := n.ways[dgid]
	if w != nil && (w.dlid == 0 || w.age == n.f.changes) {
		return w
	}
	out, next, _ := n.toward(prefixOf(dgid))
	if out == nil || w == nil && len(n.ways) >= maxWays {
		delete(n.ways, dgid)
		return nil
	}
	w = &way{dgid: dgid, target: dgid, out: out}
	if next != nil {
		w.target = next.GID()
	}
	n.ways[dgid] = w
	n.asks = append(n.asks, w)
	return w
}

// ask has a router ask for the first way that it does not know, or take the answer. It reports whether there was
// anything to do. It is called when nothing moves, so a question without an answer is lost, unless it waits for credits.
func (n *node) ask() bool {
	if len(n.asks) == 0 {
		return false
	}
	w := n.asks[0]
	if w.tries > 0 {
		s := w.out.answers[w.tid]
		if s == nil && n.f.Congested() {
			return false
		}
		delete(w.out.answers, w.tid)
		if s != nil {
			if r := wire.DecodePathRecord(&s.Data); s.Status == 0 {
				w.dlid, w.age = r.DLID, n.f.changes
			}
			n.found(w)
			return true
		}
	}
	if w.tries++; w.tries > tries || w.out.info.State != Active {
		n.found(w)
		return true
	}
	r := wire.PathRecord{DGID: w.target, SGID: w.out.GID(), Reversible: true, Count: 1}
	var err error
	if w.tid, err = w.out.question(wire.MADMethodGet, wire.AttrPathRecord, wire.PathDGID|wire.PathSGID|wire.PathReversible|wire.PathNumb, r.Put); err != nil {
		delete(w.out.answers, w.tid)
		n.found(w)
	}
	return true
}

// found ends the asking for a way. What was kept for it goes on, or is lost.
func (n *node) found(w *way) {
	n.asks = n.asks[1:]
	keeps := w.keeps
	w.keeps = nil
	if w.dlid == 0 {
		delete(n.ways, w.dgid)
		w.out.Stats.Discarded += uint64(len(keeps))
		return
	}
	for _, k := range keeps {
		w.out.out[k.vl] = append(w.out.out[k.vl], w.readdress(k.packet))
	}
	w.out.kick()
}

// toward returns the port by which a router leads to a subnet, the next router's port there, which is nil in the subnet
// itself, and how many routers are on the way. out is nil if there is no way.
func (n *node) toward(prefix uint64) (out, next *Port, routers int) {
	type entry struct{ out, next *Port }
	known := map[*node]entry{}
	var level []*node
	for _, r := range n.f.nodes {
		if p := r.within(prefix); p != nil {
			known[r] = entry{p, nil}
			level = append(level, r)
		}
	}
	for routers = 1; len(level) > 0; routers++ {
		if e, ok := known[n]; ok {
			return e.out, e.next, routers
		}
		var further []*node
		for _, r := range n.f.nodes {
			if _, ok := known[r]; ok || r.kind != wire.NodeRouter {
				continue
			}
			for _, q := range level {
				if p, to := r.shares(q); p != nil {
					known[r] = entry{p, to}
					further = append(further, r)
					break
				}
			}
		}
		level = further
	}
	return nil, nil, 0
}

// within returns the router's active port in a subnet, or nil.
func (n *node) within(prefix uint64) *Port {
	if n.kind != wire.NodeRouter {
		return nil
	}
	i := slices.IndexFunc(n.ports[1:], func(p *Port) bool { return p.info.State == Active && p.info.Prefix == prefix })
	if i < 0 {
		return nil
	}
	return n.ports[1+i]
}

// shares returns two routers' ports in a subnet that both are in, or nil.
func (n *node) shares(with *node) (p, to *Port) {
	for _, p := range n.ports[1:] {
		if p.info.State == Active && p.info.Prefix != firstPrefix {
			if to := with.within(p.info.Prefix); to != nil {
				return p, to
			}
		}
	}
	return nil, nil
}

// gateway returns the router's port that leads from the subnet to another by the fewest routers, or nil. OpenSM reads
// from a file which router that is.
func (m *manager) gateway(prefix uint64) (best *end) {
	fewest := 0
	for _, e := range m.subnet.ends() {
		if e.node.kind != wire.NodeRouter || m.lids[e.guid] == 0 || prefix == m.prefix {
			continue
		}
		i := slices.IndexFunc(m.port.node.f.nodes, func(n *node) bool { return n.guid == e.node.guid })
		if out, _, n := m.port.node.f.nodes[i].toward(prefix); out != nil && out.guid != e.guid && (best == nil || n < fewest) {
			best, fewest = &e, n
		}
	}
	return best
}

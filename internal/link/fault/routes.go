package fault

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Spread is how a fabric chooses one of several routes for a datagram.
type Spread uint8

// How a fabric chooses.
const (
	// ByPort takes the next route for the next source port, as switches do that fold the port into their hash.
	ByPort Spread = iota
	// ByHash takes a route by a hash of addresses and ports. Several source ports may share a route.
	ByHash
	// ByPacket takes a route for each packet, as switches that spray do.
	ByPacket
)

// Routes are equal ways from one address to another: each is the ports that it leads through.
type Routes struct {
	how  Spread
	key  uint64
	list [][]*Port
}

// NewRoutes returns the routes from src to dst. There is at least one, and none is empty.
func NewRoutes(seed uint64, src, dst netip.Addr, how Spread, list [][]*Port) *Routes {
	key := mix(seed + golden)
	for _, addr := range []netip.Addr{src, dst} {
		b := addr.As16()
		key = mix(key ^ binary.BigEndian.Uint64(b[:8]))
		key = mix(key ^ binary.BigEndian.Uint64(b[8:]) + golden)
	}
	return &Routes{how: how, key: key, list: list}
}

// choose returns the ports of the way that the path's nth datagram takes.
func (r *Routes) choose(n uint64, d *link.Datagram) []*Port {
	k := uint64(len(r.list))
	if k == 1 {
		return r.list[0]
	}
	switch r.how {
	case ByPacket:
		return r.list[draw(r.key, n)%k]
	case ByHash:
		return r.list[draw(r.key, uint64(d.Src.Port())<<16|uint64(d.Dst.Port()))%k]
	default:
		return r.list[(r.key%k+uint64(d.Src.Port()))%k]
	}
}

// Route is PassRoutes without Faults. The path is Clear.
func (p *Path) Route(q *Queue, r *Routes, now time.Duration, d *link.Datagram) {
	ports := r.choose(p.n, d)
	p.n++
	q.Arrive(now)
	q.hop(q.copy(d, way{p, ports}), now)
	q.Arrive(now)
}

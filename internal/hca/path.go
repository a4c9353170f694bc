package hca

import (
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/peer"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// path is where an address handle leads.
type path struct {
	eng          *engine
	dst          netip.AddrPort
	trafficClass uint8
	ib           *ibWay // on InfiniBand, or nil
}

// outbound is the way that a QP's packets take. It is set from RTR on. A UD QP's is the way of the latest
// datagram.
type outbound struct {
	path
	src  netip.AddrPort
	flow wire.Flow
	ah   *ah       // UD: that the way is of
	ways *[]source // RC: for as many source ports, if there are several; nil otherwise
}

// source is a source port, by which switches choose a way.
type source struct {
	src  netip.AddrPort
	flow wire.Flow
}

// resolve finds the way from a shard to a peer or, if that is allowed, to a multicast group: IBTA CA17-11, CA17-12
// and, over IPv6, IBTA CA17-18, CA17-19.
func (d *Device) resolve(s *shard, ah *verbs.AHAttr, multicast bool) (path, error) {
	if d.isIB {
		return d.resolveIB(s, ah)
	}
	local, err := d.port.addr(ah.SGIDIndex)
	if err != nil {
		return path{}, err
	}
	remote := ah.DGID.Addr()
	if remote.Is4() != link.GIDAddr(local).Is4() && !(link.IsV1(local) && remote.IsMulticast()) { // groups of RoCEv1 are GIDs alone
		return path{}, verbs.Errorf(verbs.ErrInvalid, "AV: the peer's GID %v and ours, %v at index %d, are of different IP versions: "+
			"choose another GID index", ah.DGID, verbs.GIDFromAddr(local), ah.SGIDIndex)
	}
	if remote.IsUnspecified() || remote.IsMulticast() && !multicast {
		return path{}, verbs.Errorf(verbs.ErrInvalid, "AV: the peer's GID %v is no single host's address", ah.DGID)
	}
	e, err := d.engine(s, local)
	if err != nil {
		return path{}, err
	}
	remote = link.Like(local, remote)
	return path{eng: e, dst: netip.AddrPortFrom(remote, link.PortOf(remote)), trafficClass: ah.TrafficClass}, nil
}

// meet waits until the system has resolved the neighbor that packets by p go to. Packets that are sent before that may be
// lost, so meet is for QPs that repeat nothing. Kernels resolve the neighbor too, for each AV.
func (d *Device) meet(p path) {
	r, ok := d.Netdev.(link.NeighborResolver)
	src, dst := p.eng.addr, p.dst.Addr()
	if ok && src != dst && !dst.IsLoopback() && !dst.IsMulticast() {
		r.ResolveNeighbor(src, dst)
	}
}

// setPath connects q to its peer.
func (q *qp) setPath(p path) {
	if q.out.eng != p.eng {
		q.clearPath()
		q.follow(p.eng, 1)
	}
	q.route(p)
	q.spread()
	q.allowMarks(p.trafficClass)
	q.findLane(p, q.t.Attr().DestQPN)
	if q.peer = peer.New(q.typ); p.ib != nil {
		q.peer = peer.NewIB(q.typ)
	}
}

// allowMarks gives q's packets a traffic class and, if q's congestion control works by ECN marks, makes the packets
// ECN-capable. RoCEv2 uses ECT(0). Programs may have set ECT(0) or ECT(1) already.
func (q *qp) allowMarks(class uint8) {
	if q.t.AllowsMarks() && class&link.ECNMask == link.NotECT {
		class |= link.ECT0
	}
	q.out.trafficClass = class
}

// SetCongestionControl implements verbs.ProviderCongestion.
func (q *qp) SetCongestionControl(c verbs.CongestionControl) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.ErrClosed
	}
	if err := q.t.SetCongestionControl(c); err != nil {
		return err
	}
	if q.out.eng != nil {
		q.allowMarks(q.t.Attr().AH.TrafficClass)
	}
	q.transmit(q.dev.now()) // packets that the former congestion control held back
	return nil
}

// SetAdaptiveRouting implements verbs.ProviderRouting.
func (q *qp) SetAdaptiveRouting(r verbs.AdaptiveRouting) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return verbs.ErrClosed
	}
	q.t.SetAdaptiveRouting(r)
	q.spread()
	q.transmit(q.dev.now()) // a NAK, perhaps, if a gap is not waited for any more
	return nil
}

// route has q's packets go by p.
func (q *qp) route(p path) {
	q.out.path = p
	if p.ib != nil {
		q.out.src, q.out.flow = p.ib.src, p.ib.flow
		return
	}
	q.out.src = p.eng.link.Source(q.num)
	q.out.flow = wire.NewFlow(q.out.src, p.dst)
}

// spread gives q as many source ports as q asks for and the link has. The first is the port that q has without
// multipath.
func (q *qp) spread() {
	if w := q.out.ways; w != nil {
		q.out.src, q.out.flow, q.out.ways = (*w)[0].src, (*w)[0].flow, nil
	}
	var ports []uint16
	if e, n := q.out.eng, q.t.Paths(); n > 1 && e != nil && q.out.ib == nil {
		var ways []source
		for i := uint32(0); i < sourceTries && len(ways) < n; i++ {
			if src := e.link.Source(q.num + i); !slices.Contains(ports, src.Port()) {
				ports = append(ports, src.Port())
				ways = append(ways, source{src, wire.NewFlow(src, q.out.dst)})
			}
		}
		if len(ways) > 1 {
			q.out.ways = &ways
		}
	}
	q.t.SetSources(ports)
}

// The sources of sourceTries flows are looked at. A link has few sources, so these flows show all of them.
const sourceTries = 256

// routeTo has q's packets go to a, and reports whether they went elsewhere before.
func (q *qp) routeTo(a *ah) bool {
	if q.out.ah == a {
		return false
	}
	q.out.ah = a
	q.route(a.path)
	return true
}

func (q *qp) clearPath() {
	if q.out.eng == nil {
		return
	}
	q.leaveLane()
	q.dropTimer()
	if q.typ != verbs.QPTypeUD {
		q.follow(q.out.eng, -1)
	}
	q.out.eng, q.out.ah = nil, nil
	q.spread()
}

// follow tells the CQs that one more connected QP is at e, or one fewer.
func (q *qp) follow(e *engine, n int) {
	q.sendCQ.follow(e, n)
	q.recvCQ.follow(e, n)
}

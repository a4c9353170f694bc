package hca

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// path is where an address handle leads.
type path struct {
	eng          *engine
	dst          netip.AddrPort
	trafficClass uint8
}

// outbound is the way that a QP's packets take. It is set from RTR on; of UD it is that of the latest
// datagram.
type outbound struct {
	path
	src  netip.AddrPort
	flow wire.Flow
	ah   *ah // UD: that the way is of
}

// resolve finds the way to a peer or, if that is allowed, to a multicast group.
func (d *Device) resolve(ah *verbs.AHAttr, multicast bool) (path, error) {
	local, err := d.port.addr(ah.SGIDIndex)
	if err != nil {
		return path{}, err
	}
	peer := ah.DGID.Addr()
	if peer.Is4() != local.Is4() {
		return path{}, verbs.Errorf(verbs.ErrInvalid, "AV: the peer's GID %v and ours, %v at index %d, are of different IP versions: "+
			"choose another GID index", ah.DGID, verbs.GIDFromAddr(local), ah.SGIDIndex)
	}
	if peer.IsUnspecified() || peer.IsMulticast() && !multicast {
		return path{}, verbs.Errorf(verbs.ErrInvalid, "AV: the peer's GID %v is no single host's address", ah.DGID)
	}
	e, err := d.engine(local)
	if err != nil {
		return path{}, err
	}
	return path{eng: e, dst: netip.AddrPortFrom(peer, link.Port), trafficClass: ah.TrafficClass}, nil
}

// setPath connects q to its peer.
func (q *qp) setPath(p path) {
	if q.out.eng != nil && q.out.eng != p.eng {
		q.clearPath()
	}
	q.route(p)
	q.in = inbound{}
}

// route makes what q sends go by p.
func (q *qp) route(p path) {
	q.out.path = p
	q.out.src = p.eng.link.Source(q.num)
	q.out.flow = wire.NewFlow(q.out.src, p.dst)
}

// routeTo makes what q sends go to a, and reports whether that is another way than before.
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
	q.out.eng.timers.remove(q)
	q.timerAt = never
	q.out.eng, q.out.ah = nil, nil
}

package connector

import (
	"net/netip"
	"sync"
	"time"
	"weak"

	"github.com/adverb-rdma/adverb/verbs"
)

// The path MTU is the connecting end's choice: the REQ names it, and the other end takes it or refuses. Nobody
// knows how large the packets are that the network between carries until large packets have been lost. So the
// path MTU that a QP has found out on the way to an address counts for the next connections to that address,
// for a while.

const (
	// A path MTU that was found out counts for pathMTUExpires: networks are repaired.
	pathMTUExpires = 10 * time.Minute
	// Up to maxPathMTUs ways have one. The path MTU that was found first makes room.
	maxPathMTUs = 256
)

// pathMTUs is a cache of path MTUs, of the ways on which large packets get lost. The entries of a device
// outlive its connector, which ends with its last connection.
type pathMTUs struct {
	mu sync.Mutex
	of map[pathKey]pathMTU
}

// pathKey is a way: from a device to an address. It does not keep the device alive.
type pathKey struct {
	dev weak.Pointer[verbs.Device]
	to  netip.Addr
}

type pathMTU struct {
	fits verbs.MTU
	at   time.Time // when it was found
}

var knownMTUs pathMTUs

// found takes note that packets of a path MTU get through, and packets of the next larger one may not.
func (n *pathMTUs) found(now time.Time, dev *verbs.Device, to netip.Addr, fits verbs.MTU) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[pathKey]pathMTU{}
	}
	first := pathKey{weak.Make(dev), to}
	if n.of[first] = (pathMTU{fits, now}); len(n.of) <= maxPathMTUs {
		return
	}
	for k, p := range n.of {
		if p.at.Before(n.of[first].at) {
			first = k
		}
	}
	delete(n.of, first)
}

// limit returns the path MTU to ask for: mtu, or a smaller one that was found out.
func (n *pathMTUs) limit(now time.Time, dev *verbs.Device, to netip.Addr, mtu verbs.MTU) verbs.MTU {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := pathKey{weak.Make(dev), to}
	p, ok := n.of[key]
	if !ok {
		return mtu
	}
	if now.Sub(p.at) >= pathMTUExpires {
		delete(n.of, key)
		return mtu
	}
	return min(p.fits, mtu)
}

// LimitMTU implements Conn.
func (c *ibConn) LimitMTU(fits verbs.MTU) {
	knownMTUs.found(time.Now(), c.c.dev, c.remote.Addr().Unmap().WithZone(""), fits)
}

// LimitMTU implements Conn. TCP sees to the MTU.
func (c *tcpConn) LimitMTU(verbs.MTU) {}

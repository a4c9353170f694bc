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
	// A path MTU that was found out counts for narrowTime: networks are repaired.
	narrowTime = 10 * time.Minute
	// It is kept for up to maxNarrow ways. The one that was found first makes room.
	maxNarrow = 256
)

// narrowPaths are the ways on which large packets get lost. A device's outlive its connector, which ends with its
// last connection.
type narrowPaths struct {
	mu sync.Mutex
	of map[narrowKey]narrowPath
}

// narrowKey is a way: from a device to an address. It does not keep the device alive.
type narrowKey struct {
	dev weak.Pointer[verbs.Device]
	to  netip.Addr
}

type narrowPath struct {
	fits verbs.MTU
	at   time.Time // when it was found
}

var narrow narrowPaths

// found takes note that packets of a path MTU get through, and those of the next may not.
func (n *narrowPaths) found(now time.Time, dev *verbs.Device, to netip.Addr, fits verbs.MTU) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[narrowKey]narrowPath{}
	}
	first := narrowKey{weak.Make(dev), to}
	if n.of[first] = (narrowPath{fits, now}); len(n.of) <= maxNarrow {
		return
	}
	for k, p := range n.of {
		if p.at.Before(n.of[first].at) {
			first = k
		}
	}
	delete(n.of, first)
}

// limit returns the path MTU to ask for, where mtu would be the one.
func (n *narrowPaths) limit(now time.Time, dev *verbs.Device, to netip.Addr, mtu verbs.MTU) verbs.MTU {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := narrowKey{weak.Make(dev), to}
	p, ok := n.of[key]
	if !ok {
		return mtu
	}
	if now.Sub(p.at) >= narrowTime {
		delete(n.of, key)
		return mtu
	}
	return min(p.fits, mtu)
}

// Narrow implements Conn.
func (c *ibConn) Narrow(fits verbs.MTU) {
	narrow.found(time.Now(), c.c.dev, c.remote.Addr().Unmap().WithZone(""), fits)
}

// Narrow implements Conn. TCP sees to the MTU.
func (c *tcpConn) Narrow(verbs.MTU) {}

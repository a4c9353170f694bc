package hca

import (
	"net/netip"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Stats counts the datagrams of one address of a device.
type Stats struct {
	Addr  netip.Addr
	Link  link.Stats
	Drops Drops
}

// Drops counts datagrams that arrived and were refused, by cause.
type Drops struct {
	Malformed uint64 // no RoCEv2 packet
	NoQP      uint64 // no QP of that number on this address
	Source    uint64 // not from the address of the QP's peer
	ICRC      uint64 // wrong ICRC
	PKey      uint64 // of another partition
	QKey      uint64 // UD: not with the QP's Q_Key
}

// Stats returns the counts of each address in use, in the order in which QPs began to use them.
func (d *Device) Stats() []Stats {
	engines := *d.engines.Load()
	all := make([]Stats, len(engines))
	for i, e := range engines {
		all[i] = Stats{Addr: e.addr, Link: e.link.Stats(), Drops: e.drops.load()}
	}
	return all
}

// drops are the Drops of an engine.
type drops struct {
	malformed, noQP, source, icrc, pkey, qkey atomic.Uint64
}

func (d *drops) load() Drops {
	return Drops{
		Malformed: d.malformed.Load(), NoQP: d.noQP.Load(), Source: d.source.Load(), ICRC: d.icrc.Load(), PKey: d.pkey.Load(), QKey: d.qkey.Load(),
	}
}

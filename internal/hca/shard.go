package hca

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/idtable"
	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Shard is the configuration of a further shard of a device.
type Shard struct {
	Netdev link.Netdev // of this shard alone. The device closes it
	Ways
}

// Ways are the ways of a shard's packets beside its network interface. All of them are optional.
type Ways struct {
	// Claim asks for a block of 4096 QPNs for this shard alone. The block is given by the upper 12
	// bits of its QPNs. Claim returns false where somebody else has the block. Where Claim is nil
	// every block is free.
	Claim func(block uint32) (bool, error)

	// Lane returns a lane from a local address to the process that owns a QPN at another, with one user
	// more, or nil if there is none. Inbox returns where the lanes to a local address end. Both are nil where
	// all packets go by the network.
	Lane  func(from, to netip.Addr, qpn uint32) *shm.Out
	Inbox func(at netip.Addr) *shm.Inbox
}

// A shard is the part of a device that some of its QPs have for themselves: their QPNs and, at each address, a link
// and an engine. QPs of different shards share no lock while packets come and go, so that cores do not wait for one
// another. For the network each shard is as a process of its own, which gets the packets for its blocks of QPNs.
//
// The first shard has all that a device has once: QP1, the UD QPs, and the multicast groups.
type shard struct {
	Shard
	index int
	qps   idtable.Table[qp]
}

func newShard(index int, w Shard, random func() uint32) *shard {
	s := &shard{Shard: w, index: index}
	s.qps.Limit, s.qps.Spread, s.qps.Claim, s.qps.Rest, s.qps.Random = limits.MaxQP, qpnSpread, w.Claim, qpnRest, random
	return s
}

// shardFor chooses the shard of a QP. QPs that share a CQ are of one shard, since a program that polls the CQ looks
// after all of them. So CQs are spread over the shards, in the order in which QPs begin to use them.
func (d *Device) shardFor(typ verbs.QPType, send, recv *cq) *shard {
	if typ == verbs.QPTypeUD || len(d.shards) == 1 {
		return d.shards[0]
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := recv.shard
	if s == nil {
		s = send.shard
	}
	if s == nil {
		s = d.shards[d.spread%len(d.shards)]
		d.spread++
	}
	if recv.shard == nil {
		recv.shard = s
	}
	if send.shard == nil {
		send.shard = s
	}
	return s
}

package hca

import (
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Stats counts the datagrams of one shard of a device at one address.
type Stats struct {
	Addr  netip.Addr
	Link  link.Stats
	Drops Drops
}

// Drops counts datagrams that were dropped, by cause.
type Drops struct {
	Malformed uint64 // no RoCEv2 packet
	NoQP      uint64 // no QP of that number on this address
	Source    uint64 // not from the address of the QP's peer, or not from its port
	ICRC      uint64 // wrong ICRC
	PKey      uint64 // of another partition
	QKey      uint64 // UD: not with the QP's Q_Key
	Secured   uint64 // refused by packet security, or for lack of keys
}

// Stats returns the counts of each shard and address in use, in the order in which QPs began to use them.
func (d *Device) Stats() []Stats {
	engines := *d.engines.Load()
	all := make([]Stats, len(engines))
	for i, e := range engines {
		all[i] = Stats{Addr: e.addr, Link: e.link.Stats(), Drops: e.drops.load()}
	}
	return all
}

// dropCause is why a datagram is refused.
type dropCause uint8

const (
	dropMalformed dropCause = iota
	dropNoQP
	dropSource
	dropICRC
	dropPKey
	dropQKey
	dropForged
	dropReplayed
	dropPlain
	dropNoKey
	dropCauses
)

var dropTexts = [dropCauses]string{
	dropMalformed: "it is no RoCEv2 packet",
	dropNoQP:      "no QP has its number",
	dropSource:    "it does not come from the QP's peer",
	dropICRC:      "its ICRC is wrong",
	dropPKey:      "it is of another partition",
	dropQKey:      "it has another Q_Key than the QP",
	dropForged:    "it is not encrypted by the peer's key, or was changed on the way",
	dropReplayed:  "it has come before, or is far behind others, by its packet number",
	dropPlain:     "it is not encrypted, and the QP has packet security",
	dropNoKey:     "it is encrypted, and the QP has no packet security",
}

// drops are the Drops of an engine, by cause.
type drops [dropCauses]atomic.Uint64

func (d *drops) load() Drops {
	return Drops{
		Malformed: d[dropMalformed].Load(), NoQP: d[dropNoQP].Load(), Source: d[dropSource].Load(),
		ICRC: d[dropICRC].Load(), PKey: d[dropPKey].Load(), QKey: d[dropQKey].Load(),
		Secured: d[dropForged].Load() + d[dropReplayed].Load() + d[dropPlain].Load() + d[dropNoKey].Load(),
	}
}

// drop counts a datagram that is refused, and logs it. q is the QP that it was for, whose lock the
// caller holds, or nil.
func (e *engine) drop(c dropCause, q *qp, d *link.Datagram) {
	e.drops[c].Add(1)
	if q != nil {
		switch c {
		case dropICRC:
			q.traffic.badICRC++
		case dropPKey:
			q.traffic.badPKey++
		case dropSource:
			q.traffic.badSource++
		case dropForged:
			q.traffic.forged++
		case dropReplayed:
			q.traffic.replayed++
		case dropPlain:
			q.traffic.plain++
		case dropNoKey:
			q.traffic.noKey++
		}
	}
	if log := &e.dev.Log; log.On() {
		log.Add(slog.LevelWarn, dropTexts[c], "packet dropped",
			slog.String("cause", dropTexts[c]), slog.String("from", d.Src.String()), slog.String("to", d.Dst.String()), qpAttr(q))
	}
}

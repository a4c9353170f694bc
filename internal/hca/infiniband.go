package hca

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/peer"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// A port of InfiniBand, which only simulations have. All that differs from RoCEv2 is here: link.IBPort says how
// datagrams name LIDs and GIDs.

// ibWay is the part of a path that InfiniBand has.
type ibWay struct {
	src      netip.AddrPort
	flow     wire.Flow
	hopLimit uint8
	alt      *path // of a QP: the alternate path, or nil
	refused  bool  // the peer has migrated and the QP has not followed, which the program has been told
}

var _ verbs.ProviderMcastLID = (*qp)(nil)

// ib returns the state of the port as one of InfiniBand, or nil.
func (p *port) ib() *link.IBPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.IB
}

func (p *port) isIB() bool { return p.ib() != nil }

// pkeys returns the P_Key table. RoCE devices know one partition.
func (p *port) pkeys() []uint16 {
	if keys := p.ibKeys.Load(); keys != nil {
		return *keys
	}
	return []uint16{wire.DefaultPKey}
}

// checkPKey returns why a QP cannot have the P_Key of an index, or nil.
func (p *port) checkPKey(index int) error {
	keys := p.pkeys()
	switch {
	case len(keys) == 1 && index != 0:
		return verbs.Errorf(verbs.ErrInvalid, "PKEY_INDEX %d: the table has one entry, 0", index)
	case index < 0 || index >= len(keys):
		return verbs.Errorf(verbs.ErrInvalid, "PKEY_INDEX %d: the table has %d entries", index, len(keys))
	case keys[index]&wire.PKeyBase == 0:
		return verbs.Errorf(verbs.ErrInvalid, "PKEY_INDEX %d: the subnet manager has written no P_Key there", index)
	}
	return nil
}

// guidFrom turns a number into a GUID.
func guidFrom(n uint64) (g verbs.GUID) {
	binary.BigEndian.PutUint64(g[:], n)
	return g
}

// queryIB fills in what a port of InfiniBand has. The caller holds p.mu.
func (p *port) queryIB(a *verbs.PortAttr) {
	ib := p.state.IB
	a.State, a.PhysState, a.LinkLayer = verbs.PortState(ib.State), verbs.PhysState(ib.PhysState), verbs.LinkLayerInfiniBand
	a.MaxMTU, a.ActiveMTU = verbs.MTU(ib.MaxMTU), verbs.MTU(ib.MTU)
	a.LID, a.SMLID, a.LMC, a.SMSL = ib.LID, ib.SMLID, ib.LMC, ib.SMSL
	a.SubnetTimeout, a.MaxVLNum, a.PortCapFlags, a.PKeyTableLen = ib.SubnetTimeout, ib.MaxVL, ib.CapMask, len(ib.PKeys)
	a.ActiveWidth, a.ActiveSpeed = ib.Width, ib.Speed
}

// raiseIB raises the events that a port of InfiniBand has besides.
func (d *Device) raiseIB(was, is *link.IBPort) {
	if was == nil || is == nil {
		return
	}
	raise := func(changed bool, t verbs.EventType) {
		if changed {
			d.Raise(verbs.AsyncEvent{Type: t, Port: 1})
		}
	}
	raise(was.LID != is.LID || was.LMC != is.LMC, verbs.EventLIDChange)
	raise(was.SMLID != is.SMLID || was.SMSL != is.SMSL, verbs.EventSMChange)
	raise(!slices.Equal(was.PKeys, is.PKeys), verbs.EventPKeyChange)
	raise(was.Reregistered != is.Reregistered, verbs.EventClientReregister)
}

// resolveIB is resolve on InfiniBand. A LID leads there, and a GRH is for peers in other subnets, for groups, and on
// demand.
func (d *Device) resolveIB(s *shard, ah *verbs.AHAttr) (path, error) {
	index := 0
	if ah.IsGlobal() {
		index = ah.SGIDIndex
	}
	local, err := d.port.addr(index)
	if err != nil {
		return path{}, err
	}
	ib := d.port.ib()
	slid := ib.LID&^(1<<ib.LMC-1) | uint16(ah.SrcPathBits)&(1<<ib.LMC-1)
	way := &ibWay{flow: wire.NewLocalFlow(slid, ah.DLID, ah.SL), hopLimit: ah.HopLimit}
	from, to := link.LIDAddr(slid), link.LIDAddr(ah.DLID)
	switch group := ah.DLID >= wire.MulticastLID; {
	case ah.IsGlobal():
		from, to = local, ah.DGID.Addr()
		if to.Is4() {
			to = netip.AddrFrom16(ah.DGID)
		}
		if to.IsMulticast() != group {
			return path{}, verbs.Errorf(verbs.ErrInvalid, "AV: LID %#04x and GID %v: one leads to a group, and the other does not", ah.DLID, ah.DGID)
		}
		way.flow = wire.NewGlobalFlow(local.As16(), ah.DGID, ah.SL, ah.FlowLabel)
	case group:
		return path{}, verbs.Errorf(verbs.ErrInvalid, "AV: LID %#04x leads to a multicast group, and needs its GID (DGID) too", ah.DLID)
	}
	way.src = netip.AddrPortFrom(from, slid)
	e, err := d.engine(s, local)
	if err != nil {
		return path{}, err
	}
	return path{eng: e, dst: netip.AddrPortFrom(to, ah.DLID), trafficClass: ah.TrafficClass, ib: way}, nil
}

// loadAlternate makes a path the alternate one of q. The port is the only one that there is.
func (d *Device) loadAlternate(s *shard, attr *verbs.QPAttr) (*path, error) {
	switch {
	case !d.isIB:
		return nil, verbs.Errorf(verbs.ErrUnsupported, "ALT_PATH: RoCE has no automatic path migration")
	case attr.AltPort != 1:
		return nil, verbs.Errorf(verbs.ErrInvalid, "ALT_PATH: alternate port %d: the device has port 1 alone", attr.AltPort)
	}
	if err := d.port.checkPKey(attr.AltPKeyIndex); err != nil {
		return nil, err
	}
	p, err := d.resolve(s, &attr.AltAH, false)
	return &p, err
}

// checkMigState returns why a program cannot set the state of path migration.
func (q *qp) checkMigState(attr *verbs.QPAttr, loads bool) error {
	switch {
	case attr.PathMigState == verbs.MigMigrated:
		return nil
	case !q.dev.isIB:
		return verbs.Errorf(verbs.ErrUnsupported, "PATH_MIG_STATE %d: RoCE has no automatic path migration, so it is always MigMigrated (0)", attr.PathMigState)
	case attr.PathMigState == verbs.MigArmed:
		return verbs.Errorf(verbs.ErrInvalid, "PATH_MIG_STATE 2: the device itself arms, when the peer wants to have it too: set MigRearm (1)")
	case !loads && (q.out.ib == nil || q.out.ib.alt == nil):
		return verbs.Errorf(verbs.ErrInvalid, "PATH_MIG_STATE 1: there is no alternate path to migrate to: set ALT_PATH too")
	}
	return nil
}

// takeAlternate sends by the alternate path, if the transport has migrated to it.
func (q *qp) takeAlternate() {
	if ib := q.out.ib; ib != nil && ib.alt != nil && q.migrating && q.t.Attr().PathMigState == verbs.MigMigrated {
		q.migrating = false
		q.setPath(*ib.alt)
	}
}

// followsPeer reports whether a packet asks q to migrate, from the peer's new path to q's alternate one, and has q do so.
// A QP that wishes for migration and cannot follow tells its program once: it hears nothing from its peer any more.
func (q *qp) followsPeer(now time.Duration, p *wire.Packet, d *link.Datagram, segment int, payload []byte) bool {
	ib := q.out.ib
	if ib == nil || ib.alt == nil || !p.MigReq || !q.peer.Verify(d.Dst.Addr(), d, segment, payload) {
		return false
	}
	if d.Src == ib.alt.dst && d.Dst == ib.alt.ib.src && q.t.Migrate(now) {
		q.takeAlternate()
		return true
	}
	if q.migrating && !ib.refused {
		ib.refused = true
		q.t.RefuseMigration()
	}
	return false
}

// pkey returns the P_Key of q's packets, which the table has now at the QP's index; 0 where the subnet manager has taken
// it away.
func (q *qp) pkey() uint16 {
	keys := q.dev.port.ibKeys.Load()
	if keys == nil {
		return wire.DefaultPKey
	}
	if i := q.t.PKeyIndex(); i < len(*keys) {
		return (*keys)[i]
	}
	return 0
}

// mark gives a packet a P_Key.
func mark(packet []byte, pkey uint16) { binary.BigEndian.PutUint16(packet[2:], pkey) }

// matches reports whether packets of a P_Key are for a QP that has the P_Key own. Two limited members do not talk to each
// other, and what has no partition talks to nobody.
func matches(own, pkey uint16) bool {
	return own&wire.PKeyBase != 0 && wire.MayTalk(own, pkey)
}

// flowOf returns the flow of a datagram that has come.
func (d *Device) flowOf(in *link.Datagram) wire.Flow {
	if d.isIB {
		return peer.IBFlow(in)
	}
	return wire.NewFlow(in.Src, in.Dst)
}

// putHeader writes the bytes before the payload in the buffer of a UD receive, and returns what else the completion
// tells on InfiniBand.
func (d *Device) putHeader(b *[verbs.GRHSize]byte, in *link.Datagram, payload int) *transport.Origin {
	if !d.isIB {
		putGRH(b, in, payload)
		return nil
	}
	clear(b[:])
	label, sl := wire.LinkLabel(in.FlowLabel)
	o := &transport.Origin{SLID: in.Src.Port(), SL: sl, Global: !link.IsLID(in.Src.Addr())}
	if ib := d.port.ib(); in.Dst.Port() < wire.MulticastLID {
		o.PathBits = uint8(in.Dst.Port() & (1<<ib.LMC - 1))
	}
	if o.Global {
		h := wire.GRH{TrafficClass: in.TrafficClass, FlowLabel: label, Length: uint16(payload), NextHeader: wire.GRHNextHeader, HopLimit: in.HopLimit,
			SGID: in.Src.Addr().As16(), DGID: in.Dst.Addr().As16()}
		h.AppendTo(b[:0])
	}
	return o
}

// join has an engine join a group.
func (d *Device) join(e *engine, group netip.Addr, lid uint16) error {
	if n, ok := d.Netdev.(link.IBNetdev); ok {
		_, err := n.Join(group, lid, 0)
		return err
	}
	return link.Join(e.link, group)
}

// leave undoes join.
func (d *Device) leave(e *engine, group netip.Addr) {
	if n, ok := d.Netdev.(link.IBNetdev); ok {
		_ = n.Leave(group) // who does not answer forgets the port when it is gone
		return
	}
	_ = link.Leave(e.link, group)
}

// IBPath asks subnet administration for the path to a GID, in a partition or in any: 0. ok is false on a port that is none of InfiniBand.
func (d *Device) IBPath(to netip.Addr, pkey uint16) (p link.IBPath, ok bool, err error) {
	n, ok := d.Netdev.(link.IBNetdev)
	if ok {
		p, err = n.Path(to, pkey)
	}
	return p, ok, err
}

// IBJoin makes the port a member of a group of a partition, of the default one by 0, and returns the group's LID. ok is as that of IBPath.
func (d *Device) IBJoin(group netip.Addr, pkey uint16) (lid uint16, ok bool, err error) {
	n, ok := d.Netdev.(link.IBNetdev)
	if ok {
		lid, err = n.Join(group, 0, pkey)
	}
	return lid, ok, err
}

// IBLeave undoes IBJoin.
func (d *Device) IBLeave(group netip.Addr) error {
	if n, ok := d.Netdev.(link.IBNetdev); ok {
		return n.Leave(group)
	}
	return nil
}

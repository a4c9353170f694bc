package hca

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/limits"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// port is the device's one port. It holds the present state of the network interface.
type port struct {
	mu    sync.Mutex
	state link.NetdevState
	gids  [gidTableLen]netip.Addr // the zero Addr is a free entry
	had   [gidTableLen]netip.Addr // the address that each entry has, or had last
	eui   verbs.GUID

	ibKeys     atomic.Pointer[[]uint16] // of InfiniBand: the P_Key table, for those who do not hold mu
	netdevName string
	downed     uint64 // how often state.Up became false

	badPKeys       counter32
	qkeyViolations counter32
}

// look takes over the network interface's state, and has those who follow the device's addresses look at them.
func (d *Device) look() {
	d.port.refresh(d, false)
	d.TellChanged()
}

// refresh takes over the network interface's state. An address keeps its place in the GID table for as
// long as the interface has the address. If the address goes away and comes back, it gets its place back, if that is
// free: a state that cannot be read hides addresses which the interface may have. Changes raise events, except in the
// first call.
func (p *port) refresh(d *Device, first bool) error {
	if d.IsGone() {
		return nil
	}
	s, err := d.Look(first)
	if err != nil {
		if first {
			return err
		}
		s = link.NetdevState{}
	}
	if err == nil && !first {
		d.groups.rejoin(s.Addrs) // before the event that tells of the address
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil { // the state does not tell these: another MTU would fail posts and changes of QPs that are right
		s.MTU, s.SpeedMbps = p.state.MTU, p.state.SpeedMbps
	}
	wasUp, was := p.state.Up, p.state.IB
	p.state = s
	if s.IB != nil {
		p.ibKeys.Store(&s.IB.PKeys) // before the event that tells of them
	}
	if first {
		p.eui = guidOf(s)
	}
	changed := false
	for i, a := range p.gids {
		if a.IsValid() && !slices.Contains(s.Addrs, a) {
			p.gids[i] = netip.Addr{}
			changed = true
		}
	}
	for i, a := range p.had {
		if a.IsValid() && !p.gids[i].IsValid() && slices.Contains(s.Addrs, a) {
			p.gids[i] = a
			changed = true
		}
	}
	for _, a := range s.Addrs {
		if slices.Contains(p.gids[:], a) {
			continue
		}
		if i := slices.Index(p.gids[:], netip.Addr{}); i >= 0 {
			p.gids[i], p.had[i] = a, a
			changed = true
		}
	}
	if first {
		return nil
	}
	d.raiseIB(was, s.IB)
	if changed {
		d.Raise(verbs.AsyncEvent{Type: verbs.EventGIDChange, Port: 1})
	}
	if !s.Up && wasUp {
		p.downed++
	}
	d.RaisePort(wasUp, s.Up, err)
	return nil
}

// fault says why the interface sends no packet from an address and receives none for it. It returns "" if the interface is
// not at fault.
func (p *port) fault(addr netip.Addr) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.state.Up:
		return fmt.Sprintf("network interface %s is down", p.netdevName)
	case !slices.Contains(p.state.Addrs, addr) && p.state.IB == nil: // a LID is no address
		return fmt.Sprintf("network interface %s does not have the address %v any more", p.netdevName, addr)
	}
	return ""
}

// guidOf makes an EUI-64 of the interface's MAC address or, where it has none, of its first IP address.
func guidOf(s link.NetdevState) verbs.GUID {
	m := s.HardwareAddr
	if s.IB != nil {
		return guidFrom(s.IB.NodeGUID)
	}
	if len(m) == 6 && slices.Max(m) != 0 {
		return verbs.GUID{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
	}
	g := verbs.GUID{0x02, 0, 0, 0xff, 0xfe}
	if len(s.Addrs) > 0 {
		a := s.Addrs[0].As16()
		copy(g[5:], a[13:])
	}
	return g
}

// timesDown returns how often the port went down.
func (p *port) timesDown() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.downed
}

func (p *port) guid() verbs.GUID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.eui
}

// packetOverhead is the largest sum of IP and UDP headers, transport headers and ICRC. A path MTU fits
// an interface whose MTU is larger by that.
const packetOverhead = 40 + 8 + wire.BTHSize + wire.AtomicETHSize + wire.ImmDtSize + wire.ICRCSize

// activeMTU is the largest path MTU that fits the interface's MTU.
func activeMTU(netdev int) verbs.MTU {
	m := verbs.MTU4096
	for m > verbs.MTU256 && m.Bytes()+packetOverhead > netdev {
		m--
	}
	return m
}

// speeds are the link speeds that the verbs have codes for, fastest first.
var speeds = []struct {
	mbps  int
	width uint8
	speed uint32
}{
	{400000, 2, 128}, {200000, 2, 64}, {100000, 2, 32}, {50000, 1, 64}, {40000, 2, 8}, {25000, 1, 32}, {10000, 1, 8}, {0, 1, 1},
}

func (p *port) query() verbs.PortAttr {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := verbs.PortAttr{
		State: verbs.PortDown, PhysState: verbs.PhysDisabled,
		MaxMTU: verbs.MTU4096, ActiveMTU: activeMTU(p.state.MTU),
		GIDTableLen: gidTableLen, PKeyTableLen: 1,
		PortCapFlags: 1 << 16, // CM supported
		MaxMsgSize:   limits.MaxMessageSize, MaxVLNum: 1, LinkLayer: verbs.LinkLayerEthernet,
		BadPKeyCntr: p.badPKeys.load(), QKeyViolCntr: p.qkeyViolations.load(),
	}
	if p.state.IB != nil {
		p.queryIB(&a)
		return a
	}
	if p.state.Up {
		a.State, a.PhysState = verbs.PortActive, verbs.PhysLinkUp
	}
	for _, s := range speeds {
		if p.state.SpeedMbps >= s.mbps {
			a.ActiveWidth, a.ActiveSpeed = s.width, s.speed
			break
		}
	}
	return a
}

// bytesPerSecond is the speed of the network interface; 0 if that is unknown.
func (p *port) bytesPerSecond() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return uint64(max(0, p.state.SpeedMbps)) * 1e6 / 8
}

func (p *port) addr(index int) (netip.Addr, error) {
	if index < 0 || index >= gidTableLen {
		return netip.Addr{}, verbs.Errorf(verbs.ErrNotFound, "GID index %d: the table has %d entries", index, gidTableLen)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.gids[index]; a.IsValid() {
		return a, nil
	}
	return netip.Addr{}, emptyGID(index)
}

// emptyGID is the error for a free entry of the GID table. A search for an address meets many, so making
// one is cheap.
type emptyGID uint8

func (e emptyGID) Error() string {
	return fmt.Sprintf("GID index %d is empty: the interface has fewer addresses", uint8(e))
}

func (e emptyGID) Unwrap() error { return verbs.ErrNotFound }

func (p *port) gid(index int) (verbs.GIDEntry, error) {
	a, err := p.addr(index)
	if err != nil {
		return verbs.GIDEntry{}, err
	}
	if p.isIB() {
		return verbs.GIDEntry{GID: verbs.GIDFromAddr(a), Index: index, Port: 1, Type: verbs.GIDTypeIB}, nil
	}
	typ := verbs.GIDTypeRoCEv2 // IBTA CA17-26
	if link.IsV1(a) {
		typ = verbs.GIDTypeRoCEv1
	}
	return verbs.GIDEntry{GID: verbs.GIDFromAddr(a), Index: index, Port: 1, Type: typ, Netdev: p.netdevName}, nil
}

package ucma

import (
	"net/netip"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// group is a multicast group that an ID has joined. The program attaches its QP itself.
type group struct {
	c        *cmID
	number   uint32
	uid      uint64 // the program's own number, which the event has
	addr     netip.Addr
	reported uint32 // events that the program has read; m.mu guards it
}

// maxGroups is how many groups the IDs of a program may have joined.
const maxGroups = 1 << 16

// Flags of a join: RDMA_MC_JOIN_FLAG_.
const (
	fullMember = iota
	sendOnlyFullMember
)

func (f *File) joinIPMcast(k *call) error {
	var in uapi.CMJoinIPMcastArg
	if err := k.in(&in); err != nil {
		return err
	}
	if uapi.SockaddrSize(in.Addr[:]) == 0 {
		return syscall.EINVAL
	}
	return f.join(k, in.Response, in.ID, in.UID, in.Addr[:])
}

func (f *File) joinMcast(k *call) error {
	var in uapi.CMJoinMcastArg
	if err := k.in(&in); err != nil {
		return err
	}
	if size := uapi.SockaddrSize(in.Addr[:]); size == 0 || int(in.AddrSize) != size {
		return syscall.EINVAL
	}
	switch in.JoinFlags {
	case fullMember, sendOnlyFullMember: // the difference is whether the program attaches its QP
	default:
		return syscall.EINVAL
	}
	return f.join(k, in.Response, in.ID, in.UID, in.Addr[:])
}

func (f *File) join(k *call, response uint64, number uint32, uid uint64, to []byte) error {
	var resp uapi.CMCreateResp
	if err := k.needsAll(resp); err != nil {
		return err
	}
	addr, err := address(to)
	if mgid, _, _, _, ok := uapi.ReadSockaddrIB(to); ok {
		addr, err = netip.AddrPortFrom(verbs.GID(mgid).Addr(), 0), nil
	}
	if err != nil {
		return err
	}
	c, err := f.withDevice(number)
	if err != nil {
		return err
	}
	if p := c.look(f.m); c.qpType != verbs.QPTypeUD || p.routed || p.listens {
		return syscall.EINVAL
	}
	g := &group{c: c, uid: uid, addr: addr.Addr().Unmap().WithZone("")}
	if err := f.m.addGroup(g); err != nil { // before the event can come
		return err
	}
	if err := c.v.JoinMulticast(g.addr); err != nil {
		f.m.dropGroup(g)
		return err
	}
	resp.ID = g.number
	if err := k.out(response, resp); err != nil {
		f.m.leave(g)
		return err
	}
	return nil
}

// addGroup gives a group its number.
func (m *Manager) addGroup(g *group) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids.get(g.c.number) != g.c { // destroyed meanwhile
		return syscall.ENOENT
	}
	if m.joined(g.c, g.addr) != nil { // rdmacm would say so, too
		return syscall.EBUSY
	}
	var ok bool
	if g.number, ok = m.groups.put(g, maxGroups); !ok {
		return syscall.ENOMEM
	}
	return nil
}

// dropGroup forgets a group with its events that the program has not read.
func (m *Manager) dropGroup(g *group) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.groups.get(g.number) == g {
		m.groups.drop(g.number)
	}
	g.c.file.dropEvents(func(ev *event) bool { return ev.group == g })
}

func (m *Manager) leave(g *group) {
	_ = g.c.v.LeaveMulticast(g.addr) // it fails for an ID that is closed
	m.dropGroup(g)
}

// joined returns the group of an ID with an address, or nil. The caller holds m.mu.
func (m *Manager) joined(c *cmID, addr netip.Addr) *group {
	for _, g := range m.groups.v {
		if g != nil && g.c == c && g.addr == addr {
			return g
		}
	}
	return nil
}

// groupOf returns the group that an event is about, or nil. The caller holds m.mu.
func (m *Manager) groupOf(c *cmID, ev *rdmacm.Event) *group {
	if ev.Type != rdmacm.EventMulticastJoin {
		return nil
	}
	to := ev.UD.AH.DGID.Addr()
	for _, g := range m.groups.v {
		if g != nil && g.c == c && (g.addr == to || link.GroupV1(g.addr) == to) {
			return g
		}
	}
	return nil
}

func (f *File) leaveMcast(k *call) error {
	var (
		in   uapi.CMDestroy
		resp uapi.CMDestroyResp
	)
	if err := k.needsAll(resp); err != nil {
		return err
	}
	if err := k.in(&in); err != nil {
		return err
	}
	g, err := f.group(in.ID)
	if err != nil {
		return err
	}
	f.m.leave(g)
	f.m.mu.Lock()
	resp.EventsReported = g.reported
	f.m.mu.Unlock()
	return k.out(in.Response, resp)
}

// group returns the group with a number.
func (f *File) group(number uint32) (*group, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	g := f.m.groups.get(number)
	switch {
	case g == nil:
		return nil, syscall.ENOENT
	case g.c.file != f:
		return nil, syscall.EINVAL
	case g.c.phase.gone:
		return nil, syscall.ENXIO
	}
	return g, nil
}

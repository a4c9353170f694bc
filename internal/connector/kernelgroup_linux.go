package connector

import (
	"net/netip"
	"sync"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// kernelGroups are the multicast groups of a kernelConn. The kernel's members are IDs: an ID of the groups' own is
// bound to the end's address, since the end's ID comes with Connect alone. The kernel tells of a group by a name of the
// group's own.
type kernelGroups struct {
	mu     sync.Mutex
	member *kernelID // nil before the first Join
	joined map[netip.Addr]*kernelID
	closed bool
}

// Join implements Conn. On InfiniBand the subnet manager answers, so the answer is an event.
func (c *kernelConn) Join(group netip.Addr, tos uint8) (*Datagram, error) {
	g := &c.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, ErrState
	}
	if err := g.open(c, tos); err != nil {
		return nil, verbs.Errorf(err, "bind %v in the kernel's connection manager: %w", c.name.Addr, err)
	}
	name := c.c.name(0, func(ev *uapi.CMEventResp) { c.groupEvent(group, ev) })
	if err := name.join(g.member, c.name.IB, group.WithZone(c.name.Addr.Zone())); err != nil {
		name.forget()
		return nil, verbs.Errorf(err, "join %v by the kernel's connection manager: %w", group, err)
	}
	g.joined[group] = name
	return nil, nil
}

// join makes a member one of a group, which gets the name's number.
func (id *kernelID) join(member *kernelID, ib bool, group netip.Addr) error {
	var resp uapi.CMCreateResp
	err := member.call(uapi.CMJoinMcast, func(at uint64) any {
		arg := uapi.CMJoinMcastArg{Response: at, UID: id.name, ID: member.number}
		if ib {
			arg.Addr, arg.AddrSize = sockaddrIB(group, 0, 0)
		} else {
			arg.Addr, arg.AddrSize = sockaddr(netip.AddrPortFrom(group, 0))
		}
		return arg
	}, &resp)
	id.number = resp.ID
	return err
}

// open makes the ID that is the member of the groups. The caller holds g.mu.
func (g *kernelGroups) open(c *kernelConn, tos uint8) error {
	if g.member != nil {
		return nil
	}
	id, err := c.c.create(c.name.PS, verbs.QPTypeUD, func(*uapi.CMEventResp) {})
	if err != nil {
		return err
	}
	if tos != 0 {
		err = id.set(uapi.OptionIDTOS, []byte{tos})
	}
	if err == nil {
		name := c.name
		name.Port, name.Service = 0, name.Service&uapi.ServiceMask
		err = id.bind(name)
	}
	if err != nil {
		id.destroy()
		return err
	}
	g.member, g.joined = id, map[netip.Addr]*kernelID{}
	return nil
}

// groupEvent takes an event of a group. It is called by the connector's goroutine.
func (c *kernelConn) groupEvent(group netip.Addr, ev *uapi.CMEventResp) {
	switch ev.Event {
	case uapi.CMEventMulticastJoin:
		c.report(Event{Kind: Joined, Group: group, Peer: datagramOf(ev)})
	case uapi.CMEventMulticastError:
		c.report(Event{Kind: NotJoined, Group: group, Err: statusErr(ev)})
	}
}

// Leave implements Conn.
func (c *kernelConn) Leave(group netip.Addr) {
	g := &c.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	name := g.joined[group]
	if name == nil {
		return
	}
	delete(g.joined, group)
	name.forget()
	var resp uapi.CMDestroyResp
	// It fails for a group that was not joined, which the kernel has forgotten.
	_ = c.c.call(uapi.CMLeaveMcast, func(at uint64) any { return uapi.CMDestroy{Response: at, ID: name.number} }, &resp)
}

// close ends the member, which leaves all groups.
func (g *kernelGroups) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.member == nil {
		return
	}
	g.member.destroy()
	for _, name := range g.joined {
		name.forget()
	}
	g.joined = nil
}

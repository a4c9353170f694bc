package rdmacm

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/verbs"
)

// opJoin names the operation in errors.
const opJoin = "join multicast group"

// group is a multicast group that an ID has joined.
type group struct {
	addr netip.Addr
	gid  verbs.GID
	qp   *verbs.QP // attached to it, or nil
}

// groups are those that an ID has joined.
type groups []group

// JoinMulticast joins a group (rdma_join_multicast). From then on the ID's QP, if it has one,
// receives the datagrams that are sent to the group. The answer is EventMulticastJoin, whose UD
// says how to send to the group, or EventMulticastError. On InfiniBand the answer takes the subnet manager's time, and
// has the group's LID, service level and Q_Key; the group is of the partition of ResolveIB, once ResolveRoute was called. The
// ID must have a device, from BindAddr with an address or from ResolveAddr.
func (id *ID) JoinMulticast(to netip.Addr) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	to = to.Unmap().WithZone("")
	switch {
	case id.state == stateClosed:
		return id.error(opJoin, verbs.ErrClosed)
	case !id.ps.datagram():
		return id.error(opJoin, verbs.Errorf(verbs.ErrUnsupported, "%v has no groups: use RDMA_PS_UDP", id.ps))
	case id.agent == nil:
		return id.error(opJoin, verbs.Errorf(verbs.ErrState, "the ID has no device: call ResolveAddr, or BindAddr with an address of one, first"))
	case !to.IsMulticast():
		return id.error(opJoin, verbs.Errorf(verbs.ErrInvalid, "%v is no multicast address", to))
	case !id.ib && to.Is4() != id.local.Addr().Is4():
		return id.error(opJoin, verbs.Errorf(verbs.ErrInvalid, "group %v and the ID's address %v are of different IP versions", to, id.local.Addr()))
	case id.groups.index(to) >= 0:
		return id.error(opJoin, verbs.Errorf(verbs.ErrBusy, "the ID is a member of %v already", to))
	}
	d, err := id.conn.Join(to, id.options.tos)
	if err != nil {
		id.report(id.failed(EventMulticastError, opJoin, statusInvalid, err))
		return nil
	}
	id.groups = append(id.groups, group{addr: to})
	if d != nil {
		id.joined(to, d)
	}
	return nil
}

// joined attaches the ID's QP to a group of which the ID is a member now. The caller holds id.mu.
func (id *ID) joined(addr netip.Addr, d *connector.Datagram) {
	i := id.groups.index(addr)
	if i < 0 { // left meanwhile
		return
	}
	g := &id.groups[i]
	if g.gid = d.AH.DGID; id.qp != nil {
		if err := id.qp.AttachMcastLID(g.gid, d.AH.DLID); err != nil {
			id.notJoined(addr, err)
			return
		}
		g.qp = id.qp
	}
	id.report(Event{Type: EventMulticastJoin, UD: UDParam(*d)})
}

// notJoined forgets a group. The caller holds id.mu.
func (id *ID) notJoined(addr netip.Addr, err error) {
	if i := id.groups.index(addr); i >= 0 {
		id.conn.Leave(addr)
		id.groups = slices.Delete(id.groups, i, i+1)
		id.report(id.failed(EventMulticastError, opJoin, statusInvalid, err))
	}
}

// index returns where a group stands, or -1.
func (gs groups) index(addr netip.Addr) int {
	return slices.IndexFunc(gs, func(g group) bool { return g.addr == addr })
}

// LeaveMulticast undoes JoinMulticast (rdma_leave_multicast).
func (id *ID) LeaveMulticast(from netip.Addr) error {
	const op = "leave multicast group"
	id.mu.Lock()
	defer id.mu.Unlock()
	from = from.Unmap().WithZone("")
	i := id.groups.index(from)
	if i < 0 {
		return id.error(op, verbs.Errorf(verbs.ErrNotFound, "the ID is no member of %v", from))
	}
	if err := id.groups[i].leave(); err != nil {
		return id.error(op, err)
	}
	id.conn.Leave(from)
	id.groups = slices.Delete(id.groups, i, i+1)
	return nil
}

func (g group) leave() error {
	if g.qp == nil {
		return nil
	}
	err := g.qp.DetachMcast(g.gid)
	if errors.Is(err, verbs.ErrClosed) { // the program may have closed it
		return nil
	}
	return err
}

// leaveGroups leaves every group. The caller holds id.mu.
func (id *ID) leaveGroups() error {
	for len(id.groups) > 0 {
		g := id.groups[0]
		if err := g.leave(); err != nil {
			return err
		}
		id.conn.Leave(g.addr)
		id.groups = id.groups[1:]
	}
	return nil
}

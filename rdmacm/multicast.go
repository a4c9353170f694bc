package rdmacm

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/verbs"
)

// group is a multicast group that an ID has joined.
type group struct {
	addr netip.Addr
	qp   *verbs.QP // attached to it, or nil
}

// groups are those that an ID has joined.
type groups []group

// JoinMulticast joins a group (rdma_join_multicast). From then on the ID's QP, if it has one,
// receives the datagrams that are sent to the group. The answer is EventMulticastJoin, whose UD
// says how to send to the group, or EventMulticastError. The ID must have a device, from BindAddr
// with an address or from ResolveAddr.
func (id *ID) JoinMulticast(to netip.Addr) error {
	const op = "join multicast group"
	id.mu.Lock()
	defer id.mu.Unlock()
	to = to.Unmap().WithZone("")
	switch {
	case id.state == stateClosed:
		return id.error(op, verbs.ErrClosed)
	case !id.ps.datagram():
		return id.error(op, verbs.Errorf(verbs.ErrUnsupported, "%v has no groups: use RDMA_PS_UDP", id.ps))
	case id.agent == nil:
		return id.error(op, verbs.Errorf(verbs.ErrState, "the ID has no device: call ResolveAddr, or BindAddr with an address of one, first"))
	case !to.IsMulticast():
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "%v is no multicast address", to))
	case to.Is4() != id.local.Addr().Is4():
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "group %v and the ID's address %v are of different IP versions", to, id.local.Addr()))
	case id.groups.index(to) >= 0:
		return id.error(op, verbs.Errorf(verbs.ErrBusy, "the ID is a member of %v already", to))
	}
	if id.qp != nil {
		if err := id.qp.AttachMcast(verbs.GIDFromAddr(to)); err != nil {
			id.report(id.failed(EventMulticastError, op, statusInvalid, err))
			return nil
		}
	}
	id.groups = append(id.groups, group{to, id.qp})
	id.report(Event{Type: EventMulticastJoin, UD: UDParam(id.conn.Group(to, id.options.tos))})
	return nil
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
	id.groups = slices.Delete(id.groups, i, i+1)
	return nil
}

func (g group) leave() error {
	if g.qp == nil {
		return nil
	}
	err := g.qp.DetachMcast(verbs.GIDFromAddr(g.addr))
	if errors.Is(err, verbs.ErrClosed) { // the program may have closed it
		return nil
	}
	return err
}

// leaveAll leaves every group.
func (gs *groups) leaveAll() error {
	for len(*gs) > 0 {
		if err := (*gs)[0].leave(); err != nil {
			return err
		}
		*gs = (*gs)[1:]
	}
	return nil
}

package rdmacm

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/verbs"
)

// multicastQPN is the QPN that datagrams to a group are sent to.
const multicastQPN verbs.QPN = 0xffffff

// group is a multicast group that an ID has joined.
type group struct {
	addr netip.Addr
	qp   *verbs.QP // attached to it, or nil
}

// JoinMulticast joins a group (rdma_join_multicast): the ID's QP, if it has one, receives what is sent
// to it from then on. The answer is EventMulticastJoin, whose UD says how to send to the group, or
// EventMulticastError. The ID must have a device, from BindAddr with an address or from ResolveAddr.
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
	case to.Is4() != id.path.Local.Is4() && id.path.Local.IsValid():
		return id.error(op, verbs.Errorf(verbs.ErrInvalid, "group %v and the ID's address %v are of different IP versions", to, id.path.Local))
	case id.group(to) >= 0:
		return id.error(op, verbs.Errorf(verbs.ErrBusy, "the ID is a member of %v already", to))
	}
	if id.qp != nil {
		if err := id.qp.AttachMcast(verbs.GIDFromAddr(to)); err != nil {
			id.report(Event{Type: EventMulticastError, Status: statusInvalid, Err: id.error(op, err)})
			return nil
		}
	}
	id.groups = append(id.groups, &group{to, id.qp})
	path := id.path
	path.Remote, path.TrafficClass = to, id.options.tos
	id.report(Event{Type: EventMulticastJoin, UD: UDParam{AH: ahAttr(path, id.sgid), QPN: multicastQPN, QKey: UDQKey}})
	return nil
}

// group returns where a group stands in id.groups, or -1.
func (id *ID) group(to netip.Addr) int {
	return slices.IndexFunc(id.groups, func(g *group) bool { return g.addr == to })
}

// LeaveMulticast undoes JoinMulticast (rdma_leave_multicast).
func (id *ID) LeaveMulticast(from netip.Addr) error {
	const op = "leave multicast group"
	id.mu.Lock()
	defer id.mu.Unlock()
	from = from.Unmap().WithZone("")
	i := id.group(from)
	if i < 0 {
		return id.error(op, verbs.Errorf(verbs.ErrNotFound, "the ID is no member of %v", from))
	}
	if err := id.groups[i].leave(); err != nil {
		return id.error(op, err)
	}
	id.groups = slices.Delete(id.groups, i, i+1)
	return nil
}

func (g *group) leave() error {
	if g.qp == nil {
		return nil
	}
	if err := g.qp.DetachMcast(verbs.GIDFromAddr(g.addr)); err != nil && !errors.Is(err, verbs.ErrClosed) { // the program may have closed it
		return err
	}
	return nil
}

// leaveAll leaves every group. The caller holds id.mu.
func (id *ID) leaveAll() error {
	for len(id.groups) > 0 {
		if err := id.groups[0].leave(); err != nil {
			return err
		}
		id.groups = id.groups[1:]
	}
	return nil
}

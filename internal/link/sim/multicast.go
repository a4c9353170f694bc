package sim

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/internal/link"
)

var _ link.Multicaster = (*Link)(nil)

// Join implements link.Multicaster. A group's datagrams take the path to the address of each
// member. They share the fates, the numbers and the partitions of that path.
func (l *Link) Join(group netip.Addr) error {
	if err := link.CheckGroup(l.addr, group); err != nil {
		return err
	}
	return l.net.change(l, func() error {
		if l.groups[group] {
			return link.GroupError("join", l.addr, group, link.ErrJoined)
		}
		l.groups[group] = true
		return nil
	}, group)
}

// Leave implements link.Multicaster.
func (l *Link) Leave(group netip.Addr) error {
	return l.net.change(l, func() error {
		if !l.groups[group] {
			return link.GroupError("leave", l.addr, group, link.ErrNotJoined)
		}
		delete(l.groups, group)
		l.left = true
		return nil
	}, group)
}

// change calls f, which changes the membership of a link in a group, and updates the group's list of members. It does
// neither if the link is closed.
func (n *Network) change(l *Link, f func() error, group netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	l.at.mu.Lock()
	defer l.at.mu.Unlock()
	if l.closed.Load() {
		return link.ErrClosed
	}
	if err := f(); err != nil {
		return err
	}
	n.list(l, group, l.groups[group])
	return nil
}

// leaveAll ends all memberships of a link that has been closed.
func (n *Network) leaveAll(l *Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l.at.mu.Lock()
	defer l.at.mu.Unlock()
	for group := range l.groups {
		n.list(l, group, false)
	}
	clear(l.groups)
}

// list makes a new list of a group's members, with or without l. Send may still read the old one,
// so it asks each link whether it is a member. The list is ordered by address, so that runs repeat.
// The caller holds n.mu.
func (n *Network) list(l *Link, group netip.Addr, member bool) {
	lists := maps.Clone(*n.members.Load())
	list := slices.DeleteFunc(slices.Clone(lists[group]), func(m *Link) bool { return m == l })
	if member {
		list = append(list, l)
		slices.SortStableFunc(list, func(a, b *Link) int { return a.addr.Compare(b.addr) })
	}
	if len(list) > 0 {
		lists[group] = list
	} else {
		delete(lists, group)
	}
	n.members.Store(&lists)
}

// multicast sends d to the members of a group.
func (l *Link) multicast(faults *Faults, d *link.Datagram, segments int) {
	for _, m := range (*l.net.members.Load())[d.Dst.Addr()] {
		w := l.way(m.addr)
		w.to.mu.Lock()
		if w.to.link == m && m.groups[d.Dst.Addr()] {
			l.pass(w.path, faults, d, segments)
		}
		w.unlock()
	}
}

// keep removes from batch the datagrams for groups that the link has left. It returns how many datagrams remain. The
// caller holds at.mu.
func (l *Link) keep(batch []link.Datagram) int {
	n := 0
	for i := range batch {
		if to := batch[i].Dst.Addr(); to.IsMulticast() && !l.groups[to] {
			continue
		}
		batch[n] = batch[i]
		n++
	}
	return n
}

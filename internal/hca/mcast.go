package hca

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/verbs"
)

// multicastQPN is the destination QPN of multicast packets.
const multicastQPN = 1<<24 - 1

// groups are the multicast groups to which QPs of a device are attached.
type groups struct {
	mu  sync.RWMutex
	by  map[netip.Addr]*group
	any atomic.Bool // there are groups: for those that send
}

// group is a multicast group. One engine has joined it, so that each datagram comes once, and one of RoCEv1 where the
// device has such GIDs.
type group struct {
	joined []member
	qps    []*qp
}

// member is an engine that has joined a group.
type member struct {
	eng  *engine
	away bool // the engine's address has been away since the engine joined
}

// of returns the address of a group for the engine.
func (m *member) of(group netip.Addr) netip.Addr { return link.Like(m.eng.addr, group) }

// AttachMcast implements verbs.ProviderQP.
func (q *qp) AttachMcast(gid verbs.GID) error { return q.AttachMcastLID(gid, 0) }

// AttachMcastLID implements verbs.ProviderMcastLID.
func (q *qp) AttachMcastLID(gid verbs.GID, lid uint16) error {
	addr := gid.Addr()
	if q.State() == verbs.QPStateReset {
		return verbs.Errorf(verbs.ErrState, "the QP is in QPS_RESET: attach it from INIT on")
	}
	return q.dev.groups.attach(addr, q, lid)
}

// attach adds q to a group. The first QP of a group has an engine join the group.
func (g *groups) attach(addr netip.Addr, q *qp, lid uint16) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q.isClosed() { // or else Close, which looks at the groups then, finds the QP there
		return verbs.ErrClosed
	}
	gr := g.by[addr]
	switch {
	case gr == nil && len(g.by) >= maxMcastGrp:
		return verbs.Errorf(verbs.ErrLimit, "QPs of the device are in %d groups (max_mcast_grp): detach from some", maxMcastGrp)
	case gr == nil:
		gr = &group{}
		m, err := q.dev.joinGroup(addr, false, lid)
		if err == nil {
			gr.joined = append(gr.joined, m)
		} else if !errors.Is(err, errNoVersion) && !link.IsGroupV1(addr) {
			return err
		}
		if m, v1 := q.dev.joinGroup(addr, true, lid); v1 == nil { // another program may have RoCEv1's address
			gr.joined = append(gr.joined, m)
		} else if err != nil {
			return err
		}
		if g.by == nil {
			g.by = map[netip.Addr]*group{}
		}
		g.by[addr] = gr
		g.any.Store(true)
	case slices.Contains(gr.qps, q):
		return nil // a QP has one copy of each message, however often it is attached
	case len(gr.qps) >= maxMcastQPAttach:
		return verbs.Errorf(verbs.ErrLimit, "%d QPs are attached (max_mcast_qp_attach)", maxMcastQPAttach)
	}
	// Deliveries walk the list without holding the lock.
	gr.qps = append(slices.Clone(gr.qps), q)
	return nil
}

// DetachMcast implements verbs.ProviderQP.
func (q *qp) DetachMcast(gid verbs.GID) error {
	if !q.dev.groups.detach(gid.Addr(), q) {
		return verbs.Errorf(verbs.ErrNotFound, "the QP is not attached to it")
	}
	return nil
}

// detach takes q out of a group, and leaves the group after its last QP.
func (g *groups) detach(addr netip.Addr, q *qp) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.remove(addr, q)
}

// detachAll takes a QP that is closed out of all groups that it was attached to while Close was under way.
func (g *groups) detachAll(q *qp) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for addr := range g.by {
		g.remove(addr, q)
	}
}

// remove is detach for a caller that holds the lock.
func (g *groups) remove(addr netip.Addr, q *qp) bool {
	gr := g.by[addr]
	if gr == nil || !slices.Contains(gr.qps, q) {
		return false
	}
	gr.qps = slices.DeleteFunc(slices.Clone(gr.qps), func(o *qp) bool { return o == q })
	if len(gr.qps) == 0 {
		for _, m := range gr.joined {
			q.dev.leave(m.eng, m.of(addr))
		}
		delete(g.by, addr)
		g.any.Store(len(g.by) > 0)
	}
	return true
}

// rejoin joins those groups anew whose engine has its address back, of the addresses that the interface has now. Linux
// takes the IPv6 addresses of an interface whose MTU falls below 1280, and ends its memberships without a word.
func (g *groups) rejoin(addrs []netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, addr := range slices.SortedFunc(maps.Keys(g.by), netip.Addr.Compare) { // so that simulations replay
		joined := g.by[addr].joined
		for i := range joined {
			m := &joined[i]
			if !slices.Contains(addrs, m.eng.addr) {
				m.away = true
			} else if m.away {
				link.Leave(m.eng.link, m.of(addr))
				m.away = link.Join(m.eng.link, m.of(addr)) != nil // then the next change of the interface is another try
			}
		}
	}
}

// attached reports whether a QP is in any group.
func (g *groups) attached(q *qp) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, gr := range g.by {
		if slices.Contains(gr.qps, q) {
			return true
		}
	}
	return false
}

// members returns the QPs of the group that a datagram is for.
func (g *groups) members(d *link.Datagram) []*qp {
	addr := d.Dst.Addr()
	if d.Dst.Port() == link.PortV1 {
		addr = link.GIDAddr(addr)
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	if gr := g.by[addr]; gr != nil {
		return gr.qps
	}
	return nil
}

// hearOwn receives the copies of datagrams that have just been sent to groups of this device. Linux puts a copy into the
// group's socket while it sends. Linux's rxe hands the copy to its QPs within the send too, and programs rely on that: a
// receive that is posted after the send has completed is for a later datagram. A network that is slower than the program
// may still deliver the copy there.
func (q *qp) hearOwn(wrs []verbs.SendWR) {
	g := &q.dev.groups
	for len(wrs) > 0 && g.any.Load() {
		e := g.engineOf(wrs[0].AH.Provider().(*ah).dst.Addr())
		n := 1
		for n < len(wrs) && wrs[n].AH == wrs[0].AH {
			n++
		}
		wrs = wrs[n:]
		if e == nil {
			continue
		}
		e.rx.Lock()                          // whoever has it may have looked before the send
		for range 2 * (1 + n/receiveBatch) { // the link's own socket and those of the groups take turns
			if _, _, err := e.receive(e.dev.now()); err != nil {
				break
			}
		}
		e.rx.Unlock()
	}
}

// engineOf returns the engine that has joined a group, or nil.
func (g *groups) engineOf(addr netip.Addr) *engine {
	if !addr.IsMulticast() {
		return nil
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	gr := g.by[link.GIDAddr(addr)]
	if gr == nil {
		return nil
	}
	for _, m := range gr.joined {
		if m.of(link.GIDAddr(addr)) == addr {
			return m.eng
		}
	}
	return nil
}

// joinGroup has an engine join a group, of RoCEv1 if v1. lid is that of a group of InfiniBand.
func (d *Device) joinGroup(group netip.Addr, v1 bool, lid uint16) (member, error) {
	e, err := d.multicastEngine(group, v1)
	if err != nil {
		return member{}, err
	}
	m := member{eng: e}
	err = d.join(e, m.of(group), lid)
	if errors.Is(err, errors.ErrUnsupported) {
		return m, verbs.Errorf(verbs.ErrUnsupported, "%w", err)
	}
	return m, err
}

// errNoVersion is the error of a group that no address of the port can join.
var errNoVersion = verbs.Errorf(verbs.ErrNotFound, "the port has no GID of the group's IP version")

// multicastEngine returns the engine that joins a group: the one of the first address of the group's
// IP version or, of RoCEv1, which has no versions, of the first address.
func (d *Device) multicastEngine(group netip.Addr, v1 bool) (*engine, error) {
	var first error
	for i := range gidTableLen {
		addr, err := d.port.addr(i)
		if err != nil || link.IsV1(addr) != v1 || !v1 && addr.Is4() != group.Is4() {
			continue
		}
		e, err := d.engine(d.shards[0], addr)
		if err == nil {
			return e, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = errNoVersion
	}
	return nil, first
}

//go:build linux && (amd64 || arm64)

package native

import (
	"slices"

	"github.com/adverb-rdma/adverb/verbs"
)

// group is a multicast group that a QP is attached to.
type group struct {
	gid verbs.GID
	lid uint16 // 0 on Ethernet
}

// index returns where a group stands in the list of the QP's, or -1. The caller holds q.mu.
func (q *qp) index(gid verbs.GID) int {
	return slices.IndexFunc(q.groups, func(g group) bool { return g.gid == gid })
}

// AttachMcast implements verbs.ProviderQP.
func (q *qp) AttachMcast(gid verbs.GID) error { return q.AttachMcastLID(gid, 0) }

// AttachMcastLID implements verbs.ProviderMcastLID.
func (q *qp) AttachMcastLID(gid verbs.GID, lid uint16) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	link, err := q.linkLayer()
	if err != nil {
		return err
	}
	g := group{gid, lid}
	switch {
	case link != verbs.LinkLayerInfiniBand:
		g.lid = 0
	case lid == 0:
		return verbs.Errorf(verbs.ErrInvalid, "a group of InfiniBand has a LID, which the subnet manager gives: join it by rdmacm, and attach the QP with the LID of that event (AttachMcastLID)")
	}
	if i := q.index(gid); i >= 0 && q.groups[i] != g {
		return verbs.Errorf(verbs.ErrInvalid, "the QP is attached to %v with LID %#04x: detach it first", gid, q.groups[i].lid)
	} else if i >= 0 {
		return nil
	}
	if err := q.d.lib.AttachMcast(q.r, gid, g.lid); err != nil {
		return fault(err)
	}
	q.groups = append(q.groups, g)
	return nil
}

// linkLayer is that of the QP's port. The caller holds q.mu.
func (q *qp) linkLayer() (verbs.LinkLayer, error) {
	if q.port == 0 {
		return 0, verbs.Errorf(verbs.ErrState, "the QP is in %v: attach it from INIT on", q.State())
	}
	a, err := q.d.QueryPort(q.port)
	return a.LinkLayer, err
}

// DetachMcast implements verbs.ProviderQP.
func (q *qp) DetachMcast(gid verbs.GID) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.index(gid)
	if i < 0 {
		return verbs.Errorf(verbs.ErrInvalid, "the QP is not attached to %v", gid)
	}
	if err := q.d.lib.DetachMcast(q.r, gid, q.groups[i].lid); err != nil && q.d.usable() == nil {
		return fault(err)
	}
	q.groups = slices.Delete(q.groups, i, i+1)
	return nil
}

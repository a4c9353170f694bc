package verbs

// multicastQPN is the QPN that datagrams to a multicast group are sent to.
const multicastQPN QPN = 1<<24 - 1

// AttachMcast makes a UD QP receive the datagrams that are sent to a multicast group
// (ibv_attach_mcast). The group is given as a GID: an IPv6 multicast address, or an IPv4 one in its
// IPv4-mapped form. The QP must be in INIT or a later state. It cannot be closed while it is
// attached. To attach it again changes nothing: it gets one copy of a message, and one DetachMcast
// detaches it. It gets the datagrams that it sends itself, too.
//
// The error is ErrInvalid if gid is no multicast address, and ErrUnsupported for other QPs. At a port of
// InfiniBand a group has a LID too: there [QP.AttachMcastLID] is needed.
func (qp *QP) AttachMcast(gid GID) error {
	return qp.mcast(attachVerb, gid, qp.p.AttachMcast)
}

// AttachMcastLID is AttachMcast for a group of InfiniBand, whose LID (MLID) the subnet manager gives to those who join:
// the event of a join by package rdmacm has it. The error is ErrInvalid for a LID that is none of groups, which are 0xc000
// to 0xfffe. On other ports the LID does not count. [QP.DetachMcast] undoes it.
func (qp *QP) AttachMcastLID(gid GID, lid uint16) error {
	return qp.mcast(attachVerb, gid, func(gid GID) error {
		if lid != 0 && (lid < firstMulticastLID || lid == permissiveLID) {
			return invalidf("LID %#04x is none of groups, which are %#04x to %#04x", lid, firstMulticastLID, permissiveLID-1)
		}
		if p, ok := qp.p.(ProviderMcastLID); ok {
			return p.AttachMcastLID(gid, lid)
		}
		return qp.p.AttachMcast(gid)
	})
}

// permissiveLID is the LID of no group.
const permissiveLID = 0xffff

const attachVerb = "attach to multicast group"

// DetachMcast undoes [QP.AttachMcast] (ibv_detach_mcast). It fails if the QP is not attached.
func (qp *QP) DetachMcast(gid GID) error {
	return qp.mcast("detach from multicast group", gid, qp.p.DetachMcast)
}

func (qp *QP) mcast(verb string, gid GID, do func(GID) error) error {
	if err := qp.check(verb); err != nil {
		return err
	}
	if qp.typ != QPTypeUD {
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "%v: multicast is for UD QPs", qp.typ))
	}
	if !gid.Addr().IsMulticast() {
		return wrap(verb, qp.name, invalidf("%v is no multicast group: use ff00::/8, or 224.0.0.0/4 IPv4-mapped", gid))
	}
	return wrap(verb, qp.name, do(gid))
}

// ProviderMcastLID is for implementers of providers: a ProviderQP implements it if its device may have ports of InfiniBand.
type ProviderMcastLID interface {
	// AttachMcastLID is that of QP. lid is 0 or that of a group.
	AttachMcastLID(gid GID, lid uint16) error
}

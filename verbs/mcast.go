package verbs

// multicastQPN is the QPN that datagrams to a multicast group are sent to.
const multicastQPN QPN = 1<<24 - 1

// AttachMcast makes a UD QP receive the datagrams that are sent to a multicast group
// (ibv_attach_mcast). The group is given as a GID: an IPv6 multicast address, or an IPv4 one in its
// IPv4-mapped form. The QP must be in INIT or a later state. It cannot be closed while it is
// attached. To attach it again changes nothing: it gets one copy of a message, and one DetachMcast
// detaches it. It gets the datagrams that it sends itself, too.
//
// The error is ErrInvalid if gid is no multicast address, and ErrUnsupported for other QPs.
func (qp *QP) AttachMcast(gid GID) error {
	return qp.mcast("attach to multicast group", gid, qp.p.AttachMcast)
}

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

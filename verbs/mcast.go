package verbs

// AttachMcast makes a UD QP receive what is sent to a multicast group (ibv_attach_mcast). The
// group is an IP multicast address as GID: IPv4 ones IPv4-mapped. The QP must be in INIT or later.
func (qp *QP) AttachMcast(gid GID) error {
	return qp.mcast("attach to multicast group", gid, qp.p.AttachMcast)
}

// DetachMcast undoes AttachMcast (ibv_detach_mcast).
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

package verbs

// ProviderSelective is for implementers of providers: a ProviderQP implements it if it can repeat selectively
// toward peers of its kind: see QP.PeerRepeatsSelectively.
type ProviderSelective interface {
	// RepeatsSelectively is QP.RepeatsSelectively.
	RepeatsSelectively() bool
	// PeerRepeatsSelectively is called for a QP that repeats selectively. The error is ErrState before RTR.
	PeerRepeatsSelectively() error
}

// RepeatsSelectively reports whether the QP can acknowledge ranges of packets and hold packets that come out of
// order, so that only lost packets go again. RC QPs of software devices that speak RoCE can, unless the device was
// told to be standard. It takes a peer that can as well.
func (qp *QP) RepeatsSelectively() bool {
	p, ok := qp.p.(ProviderSelective)
	return ok && qp.typ == QPTypeRC && p.RepeatsSelectively()
}

// PeerRepeatsSelectively tells an RC QP, from RTR on, that RepeatsSelectively holds for its peer's QP too. The QP
// then agrees with its peer at once, by a packet of an opcode that the specification leaves to manufacturers. A
// peer that does not know the opcode drops the packet, and the connection goes on as the specification has it.
//
// QPs find out about each other by themselves within some packets, so that few programs need this. It is for
// protocols whose private data tells: they make the first packets as good as those that follow. And it is for
// networks where QPs cannot find out: those of IPv6 with sockets that cannot see flow labels, as on darwin and
// Windows. Connections with packet security, of package rdmacm, and those of package rdmaio do it.
//
// The errors are ErrUnsupported where RepeatsSelectively is false, and ErrState before RTR and in ERR.
func (qp *QP) PeerRepeatsSelectively() error {
	const verb = "agree on selective repeat with the peer of"
	if err := qp.check(verb); err != nil {
		return err
	}
	if !qp.RepeatsSelectively() {
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "the QP does not repeat selectively: RC QPs of software devices that speak RoCE do"))
	}
	return wrap(verb, qp.name, qp.p.(ProviderSelective).PeerRepeatsSelectively())
}

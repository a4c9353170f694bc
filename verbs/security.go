package verbs

// PacketSecurity has a connected QP authenticate and encrypt each packet: see [QP.SetSecurity]. Each end
// draws its SendSecret from crypto/rand for this one connection, and gives it to its peer, whose
// RecvSecret it is. It does so over a channel that is authenticated and encrypted itself, such as TLS,
// beside its QPN, PSN and GID. Somebody who reads along there reads the connection, and a secret
// that is used again gives both connections away.
type PacketSecurity struct {
	SendSecret [32]byte // what this QP sends is under keys made of it
	RecvSecret [32]byte // the peer's SendSecret
}

// ProviderSecurity is what a ProviderQP implements if it can authenticate and encrypt packets: see
// QP.SetSecurity.
type ProviderSecurity interface {
	// SetSecurity keeps the secrets until the QP goes to RTR, and from then on, until RESET. The QP is
	// connected, in RESET or INIT. The secrets are not zero, and not alike.
	SetSecurity(s PacketSecurity) error
	// SecuredMTU is the largest path MTU that such a QP may have.
	SecuredMTU() MTU
}

// SetSecurity has an RC or UC QP encrypt each packet by AES-256-GCM, and drop each that does not come
// from its peer or has come before. It is for two software devices. Others drop the packets: to cards and
// to Linux they are of an unknown kind. Both ends call it, with the secrets crossed, before RTR. RESET
// forgets the secrets. Package rdmacm agrees on them by itself: see its Security.
//
// A packet grows by 28 bytes, so the path MTU may have to be smaller: see [QP.SecuredMTU]. Modify says so.
// What is dropped is counted: see sec_forged_pkts, sec_replayed_pkts, sec_plain_pkts and sec_no_key_pkts
// of [QP.Counters]. docs/SECURITY.md says what is protected and what is not.
//
// The errors are ErrUnsupported for a UD QP and for a device that cannot, ErrState from RTR on, and
// ErrInvalid for secrets that are zero, alike, or those that the QP had before.
func (qp *QP) SetSecurity(s PacketSecurity) error {
	const verb = "set security of"
	if err := qp.check(verb); err != nil {
		return err
	}
	p, err := qp.security()
	switch {
	case err != nil:
	case s.SendSecret == [32]byte{} || s.RecvSecret == [32]byte{}:
		err = invalidf("a secret is zero: draw SendSecret from crypto/rand, and take the peer's for RecvSecret")
	case s.SendSecret == s.RecvSecret:
		err = invalidf("the secrets of both directions are the same: each end draws one of its own")
	default:
		err = p.SetSecurity(s)
	}
	return wrap(verb, qp.name, err)
}

// SecuredMTU returns the largest path MTU that a QP with SetSecurity may have: the port's active MTU or,
// where 28 bytes more do not fit, the next smaller one. The error is ErrUnsupported as for SetSecurity.
func (qp *QP) SecuredMTU() (MTU, error) {
	const verb = "find the secured mtu of"
	if err := qp.check(verb); err != nil {
		return 0, err
	}
	p, err := qp.security()
	if err != nil {
		return 0, wrap(verb, qp.name, err)
	}
	return p.SecuredMTU(), nil
}

func (qp *QP) security() (ProviderSecurity, error) {
	p, ok := qp.p.(ProviderSecurity)
	switch {
	case qp.typ == QPTypeUD:
		return nil, Errorf(ErrUnsupported, "datagrams come from anybody, so no two ends have keys for them: use RC or UC")
	case !ok:
		return nil, Errorf(ErrUnsupported, "the device cannot encrypt packets; software devices that speak RoCE can")
	}
	return p, nil
}

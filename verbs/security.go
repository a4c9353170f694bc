package verbs

// SecurityKey is a QP's key for packet security, which its peer needs: an X25519 public key. The key is no secret.
// But whoever can replace it on the way reads and writes the connection in the peer's place, unless both ends have a
// PSK. So the key goes over a channel that is authenticated, such as TLS or SSH, beside QPN, PSN and GID.
type SecurityKey [32]byte

// PacketSecurity has a connected QP authenticate and encrypt each packet: see [QP.SetSecurity].
type PacketSecurity struct {
	Peer SecurityKey // the result of [QP.NewSecurityKey] at the peer
	PSK  []byte      // a pre-shared key that both ends have: 16 bytes at least, better 32 of crypto/rand, or nil
}

// ProviderSecurity is for implementers of providers: a ProviderQP implements it if it can authenticate and encrypt
// packets: see QP.SetSecurity.
type ProviderSecurity interface {
	// NewSecurityKey draws the QP's key for its next connection. The QP is connected, in RESET or INIT.
	NewSecurityKey() (SecurityKey, error)
	// SetSecurity agrees with the peer. It holds from RTR until RESET.
	SetSecurity(s PacketSecurity) error
	// SecuredMTU is the largest path MTU that such a QP may have.
	SecuredMTU() MTU
}

// NewSecurityKey draws a key for the QP's next connection from crypto/rand, and returns its public part for the
// peer. The latest call counts. A key serves one connection: RTR uses it up, and RESET forgets it.
//
// The errors are ErrUnsupported for a UD QP and for a device that cannot, and ErrState from RTR on.
func (qp *QP) NewSecurityKey() (SecurityKey, error) {
	const verb = "draw the security key of"
	if err := qp.check(verb); err != nil {
		return SecurityKey{}, err
	}
	p, err := qp.security()
	var key SecurityKey
	if err == nil {
		key, err = p.NewSecurityKey()
	}
	return key, wrap(verb, qp.name, err)
}

// SetSecurity has an RC or UC QP encrypt each packet by AES-256-GCM, and drop each that does not come
// from its peer or has come before. It is for two software devices. Others drop the packets: to cards and
// to Linux they are of an unknown kind. Each end calls NewSecurityKey, tells its peer, and then calls SetSecurity
// with the peer's key, before RTR. Package rdmacm does so by itself: see its Security.
//
// The keys of packets are made of both ends' keys. Each end has drawn its own for this connection alone, so no
// two connections have the same, and no nonce is used twice: not after RESET either, nor with another QP, nor in
// another process, whatever a program repeats.
//
// A packet grows by 28 bytes, so the path MTU may have to be smaller: see [QP.SecuredMTU]. Modify says so.
// Packets that are dropped are counted: see sec_forged_pkts, sec_replayed_pkts, sec_plain_pkts and
// sec_no_key_pkts of [QP.Counters]. docs/SECURITY.md has the threats against which packets are protected,
// and the others.
//
// The errors are ErrUnsupported for a UD QP and for a device that cannot, ErrState from RTR on and without
// NewSecurityKey, and ErrInvalid for a Peer that is this QP's own key, or nobody's, and a PSK that is too short.
func (qp *QP) SetSecurity(s PacketSecurity) error {
	const verb = "set security of"
	if err := qp.check(verb); err != nil {
		return err
	}
	p, err := qp.security()
	if err == nil {
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

package hca

// A QP with keys sends and takes secured packets only, whose format is in package secure. The
// packets inside are the transport's, which knows nothing of security. A packet is sealed after the transport has
// written it and before it gets its ICRC. It is opened once its ICRC and P_Key are right, and from then on
// is as any other packet, but for its UDP port: whoever has the key is the peer, whatever port the packet is from.

import (
	"errors"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// security holds the keys of a QP that has agreed with its peer, from RTR on.
type security struct {
	seal *secure.Sealer
	open *secure.Opener
}

// protection is a QP's packet security. The QP's lock guards it.
type protection struct {
	security *security        // nil while packets are as RoCEv2 has them
	exchange *secure.Exchange // of the QP's next connection, or nil
}

var _ verbs.ProviderSecurity = (*qp)(nil)

// NewSecurityKey implements verbs.ProviderSecurity.
func (q *qp) NewSecurityKey() (verbs.SecurityKey, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.checkSecurable(); err != nil {
		return verbs.SecurityKey{}, err
	}
	e, err := secure.NewExchange()
	if err != nil {
		return verbs.SecurityKey{}, err
	}
	q.exchange = e
	return e.Public(), nil
}

// SetSecurity implements verbs.ProviderSecurity.
func (q *qp) SetSecurity(s verbs.PacketSecurity) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.checkSecurable(); err != nil {
		return err
	}
	if n := len(s.PSK); n > 0 && n < secure.MinPSK {
		return verbs.Errorf(verbs.ErrInvalid, "PSK has %d bytes: %d at least, better 32 of crypto/rand, or none", n, secure.MinPSK)
	}
	if q.exchange == nil {
		return verbs.Errorf(verbs.ErrState, "the QP has no key of its own, or has used it: call NewSecurityKey for each connection, and tell the peer")
	}
	switch err := q.exchange.Agree(s.Peer, s.PSK); {
	case errors.Is(err, secure.ErrOwnPublic):
		return verbs.Errorf(verbs.ErrInvalid, "Peer is this QP's own key: take what NewSecurityKey of the peer's QP has returned")
	case err != nil:
		return verbs.Errorf(verbs.ErrInvalid, "Peer: %v: take what NewSecurityKey of the peer's QP has returned", err)
	}
	return nil
}

// checkSecurable fails unless the QP may still agree on keys.
func (q *qp) checkSecurable() error {
	switch state := q.t.State(); {
	case q.closed:
		return verbs.ErrClosed
	case state != verbs.QPStateReset && state != verbs.QPStateInit:
		return verbs.Errorf(verbs.ErrState, "the QP is in %v: packets are secured from RTR on, so set it in QPS_RESET or QPS_INIT", state)
	}
	return nil
}

// SecuredMTU implements verbs.ProviderSecurity.
func (q *qp) SecuredMTU() verbs.MTU { return q.dev.port.securedMTU() }

// securedMTU is the largest path MTU of secured packets that fits the interface's MTU.
func (p *port) securedMTU() verbs.MTU {
	p.mu.Lock()
	defer p.mu.Unlock()
	return activeMTU(p.state.MTU - secure.Overhead)
}

// checkSecuredMTU refuses a path MTU that secured packets have no room for.
func (q *qp) checkSecuredMTU(mtu verbs.MTU) error {
	if most := q.SecuredMTU(); q.exchange.Agreed() && mtu > most {
		return verbs.Errorf(verbs.ErrInvalid, "PATH_MTU %v and the %d bytes of packet security do not fit network interface %s: "+
			"use %v at both ends, or raise its MTU", mtu, secure.Overhead, q.dev.Netdev.Name(), most)
	}
	return nil
}

// beginSecurity makes the keys of the connection that RTR has begun.
func (q *qp) beginSecurity() {
	if q.exchange.Agreed() {
		seal, open := q.exchange.Begin(q.num, uint32(q.t.Attr().DestQPN))
		q.security = &security{seal, open}
	}
	q.exchange = nil
}

// forgetSecurity takes the keys from a QP that goes to RESET, or is closed.
func (q *qp) forgetSecurity() { q.protection = protection{} }

// acceptSecured is accept for a QP with keys, once ICRC and P_Key are right.
func (e *engine) acceptSecured(now time.Duration, q *qp, d *link.Datagram, payload []byte) {
	p := &e.packet
	if p.Opcode != wire.Secured {
		e.drop(dropPlain, q, d)
		return
	}
	plain, verdict := q.security.open.Open(e.plain[:], payload)
	switch {
	case verdict == secure.Replayed:
		e.drop(dropReplayed, q, d)
		return
	case verdict != secure.Genuine:
		e.drop(dropForged, q, d)
		return
	case p.Decode(plain) != nil: // the peer's mistake
		e.drop(dropMalformed, q, d)
		return
	}
	q.traffic.receives(len(payload))
	if q.t.HandlePacket(now, p, transport.ECN(d.TrafficClass&ecnMask)) {
		q.peer.Progressed(p)
		q.t.PeerIsOurs() // no card seals packets so
	}
}

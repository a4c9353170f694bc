package hca

// A QP with keys sends and takes secured packets only: package secure says what they look like. The
// packets inside are the transport's, which knows nothing of it. A packet is sealed when the transport has
// written it and before it gets its ICRC. It is opened once its ICRC and P_Key are right, and from then on
// is any other packet, but for its UDP port: whoever has the key is the peer, whatever port it sends from.

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// security is what a QP with secrets has from RTR on.
type security struct {
	seal *secure.Sealer
	open *secure.Opener
}

// protection is what a QP has of packet security. The QP's lock guards it.
type protection struct {
	security *security // nil while packets are as RoCEv2 has them
	secrets  secrets
}

// secrets are those of a QP's next connection, or nil, and what it sent its latest one's packets by.
type secrets struct {
	next *verbs.PacketSecurity
	used [secure.SecretSize]byte
}

var _ verbs.ProviderSecurity = (*qp)(nil)

// SetSecurity implements verbs.ProviderSecurity.
func (q *qp) SetSecurity(s verbs.PacketSecurity) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch state := q.t.State(); {
	case q.closed:
		return verbs.ErrClosed
	case state != verbs.QPStateReset && state != verbs.QPStateInit:
		return verbs.Errorf(verbs.ErrState, "the QP is in %v: packets are secured from RTR on, so set it in QPS_RESET or QPS_INIT", state)
	case s.SendSecret == q.secrets.used:
		return verbs.Errorf(verbs.ErrInvalid, "the QP had this SendSecret before, and used twice it protects nothing: draw a new one from crypto/rand")
	}
	q.secrets.next = &s
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
	if most := q.SecuredMTU(); q.secrets.next != nil && mtu > most {
		return verbs.Errorf(verbs.ErrInvalid, "PATH_MTU %v and the %d bytes of packet security do not fit network interface %s: "+
			"use %v at both ends, or raise its MTU", mtu, secure.Overhead, q.dev.netdev.Name(), most)
	}
	return nil
}

// begin makes the keys of the connection that RTR has begun.
func (s *secrets) begin(q *qp) {
	if s.next == nil {
		return
	}
	own, peer := q.num, uint32(q.t.Attr().DestQPN)
	q.security = &security{
		seal: secure.NewSealer(s.next.SendSecret[:], own, peer),
		open: secure.NewOpener(s.next.RecvSecret[:], peer, own),
	}
	*s = secrets{used: s.next.SendSecret}
}

// forgetSecurity takes the keys from a QP that goes to RESET, or is closed.
func (q *qp) forgetSecurity() { q.security, q.secrets.next = nil, nil }

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
	q.traffic.rcvd++
	q.traffic.rcvdBytes += uint64(len(payload))
	if q.t.HandlePacket(now, p, transport.ECN(d.TrafficClass&ecnMask)) {
		q.in.progressed(now, p)
		q.t.PeerIsOurs() // no card seals packets so
	}
}

package rdmacm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Security has the packets of RC and UC connections authenticated and encrypted: see
// [verbs.QP.SetSecurity]. Both ends have it, with the same key, and their devices are software devices.
// An end with Security never goes on without: there is no connection if the peer has none or another key,
// or if somebody on the way changes their messages. The keys of each connection are new, by an exchange
// (X25519) that PSK authenticates. So whoever learns PSK later cannot read a recording.
//
// The exchange takes room in private data: SecuredConnectData and SecuredAcceptData bytes are left. They
// are authenticated, and not encrypted. docs/SECURITY.md has the threats against which packets are
// protected, and the others.
type Security struct {
	// PSK is the pre-shared key: 16 bytes at least, better 32 of crypto/rand. It is no password: who
	// records a request can try keys on it.
	PSK []byte

	// Optional has a listener take peers too that offer no security, without it. It is for the time in
	// which the ends are changed over. Dial refuses it.
	Optional bool
}

// The room for the programs' private data in bytes where Security is on.
const (
	SecuredConnectData = secure.RequestData // of Dial
	SecuredAcceptData  = secure.AnswerData  // of Request.Accept
)

// ErrSecurity says that an end demands packet security, and the two do not agree on it.
var ErrSecurity = errors.New("no agreement on packet security")

// check reports the fault of a value of the program's.
func (s *Security) check() error {
	if s != nil && len(s.PSK) < secure.MinPSK {
		return verbs.Errorf(verbs.ErrInvalid, "Security.PSK has %d bytes: %d at least, better 32 of crypto/rand", len(s.PSK), secure.MinPSK)
	}
	return nil
}

// SetSecurity has the ID demand packet security of its peer: before Connect or, for all that a listener
// takes, before Listen. nil turns it off, as it is in a new ID. The error is ErrUnsupported in
// PortSpaceUDP, and ErrInvalid for a key that is too short.
func (id *ID) SetSecurity(s *Security) error {
	return id.set("set security", func() error {
		switch {
		case s == nil:
			id.options.security = nil
			return nil
		case id.ps.datagram():
			return verbs.Errorf(verbs.ErrUnsupported, "datagrams come from anybody, so no two ends have keys for them: use %v", PortSpaceTCP)
		case id.state >= stateConnecting:
			return verbs.Errorf(verbs.ErrState, "the ID is %v: set it before Connect or Listen", id.state)
		}
		if err := s.check(); err != nil {
			return err
		}
		own := Security{PSK: bytes.Clone(s.PSK), Optional: s.Optional}
		id.options.security = &own
		return nil
	})
}

// agreement is how far the ends of an ID with security have come.
type agreement struct {
	caller  *secure.Caller    // of the connecting end
	request []byte            // the private data of the REQ, at the accepting end
	reached *secure.Agreement // once there is one
}

// confirmation returns the private data of the RTU.
func (a *agreement) confirmation() []byte {
	if a.reached == nil {
		return nil
	}
	return a.reached.Confirmation()
}

// aboutRequest returns the facts that both ends know when the REQ comes, beside its private data.
func aboutRequest(ps PortSpace, typ verbs.QPType, caller, listener netip.AddrPort, qpn verbs.QPN) []byte {
	bare := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
	}
	return fmt.Appendf(nil, "%d %d %v %v %d", ps, typ, bare(caller), bare(listener), qpn)
}

// aboutReply returns the facts that both ends know in addition when they have named their QPs. The caller holds id.mu.
func (id *ID) aboutReply() ([]byte, error) {
	rtr, _, err := id.qpAttr(verbs.QPStateRTR)
	if err != nil {
		return nil, err
	}
	rts, _, err := id.qpAttr(verbs.QPStateRTS)
	if err != nil {
		return nil, err
	}
	callerPSN, listenerPSN, listener := rtr.RQPSN, rts.SQPSN, rtr.DestQPN
	if id.listener != nil {
		callerPSN, listenerPSN, listener = rts.SQPSN, rtr.RQPSN, id.qp.QPN()
	}
	return fmt.Appendf(nil, "%d %d %d %d", listener, callerPSN, listenerPSN, rtr.PathMTU), nil
}

// offer makes the connecting end's private data of the program's. The caller holds id.mu.
func (id *ID) offer(call *connector.Call) (err error) {
	s := id.options.security
	if s == nil {
		return nil
	}
	if s.Optional {
		return verbs.Errorf(verbs.ErrInvalid, "Security.Optional is for listeners: the end that connects asks for security, or does not")
	}
	if err := checkPrivateData(call.Params.PrivateData, SecuredConnectData); err != nil {
		return err
	}
	if err := id.needQP(); err != nil {
		return err
	}
	if call.MTU, err = id.qp.SecuredMTU(); err != nil {
		return err
	}
	key, err := id.qp.NewSecurityKey()
	if err != nil {
		return err
	}
	about := aboutRequest(id.ps, id.qpType, id.local, id.remote, id.qp.QPN())
	id.agreement.caller = secure.NewCaller(s.PSK, key, about, call.Params.PrivateData)
	call.Params.PrivateData = id.agreement.caller.Request()
	return nil
}

// needQP refuses an ID with security that has no QP of its own. The caller holds id.mu.
func (id *ID) needQP() error {
	if id.qp == nil {
		return verbs.Errorf(verbs.ErrUnsupported, "with Security the ID needs a QP of its own, by CreateQP")
	}
	return nil
}

// agree takes the peer's answer, and gives the QP its keys. The caller holds id.mu.
func (id *ID) agree() error {
	a := &id.agreement
	if a.caller == nil {
		return nil
	}
	about, err := id.aboutReply()
	if err != nil {
		return err
	}
	reached, data, err := a.caller.Finish(about, id.peer.PrivateData)
	if err != nil {
		return disagree(err)
	}
	id.peer.PrivateData = data
	return id.reach(reached)
}

// reach has the QP agree with its peer's. The caller holds id.mu.
func (id *ID) reach(a *secure.Agreement) error {
	id.agreement.reached = a
	return id.qp.SetSecurity(verbs.PacketSecurity{Peer: a.Peer, PSK: a.Key})
}

// disagree says why the ends have not agreed.
func disagree(err error) error {
	return verbs.Errorf(ErrSecurity, "%v: both ends need Security with the same PSK, and software devices", err)
}

// wants returns the security that the ID demands of peers, or nil.
func (id *ID) wants() *Security {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.options.security
}

// screen takes a request's private data apart, for a new ID at the accepting end whose listener demands s, or nothing if
// s is nil. It refuses a peer that has not the key, and then returns false.
func (id *ID) screen(s *Security, r *connector.Request) bool {
	if s == nil {
		return true
	}
	data, err := secure.Screen(s.PSK, aboutRequest(id.ps, r.Type, r.Remote, r.Local, r.Params.QPN), r.Params.PrivateData)
	switch {
	case err == nil:
		id.agreement.request = r.Params.PrivateData
		id.options.security = s
		id.peer.PrivateData = data
		return true
	case errors.Is(err, secure.ErrPlain) && s.Optional:
		return true
	}
	code := refusedKey
	switch {
	case errors.Is(err, secure.ErrPlain):
		code = refusedPlain
	case errors.Is(err, secure.ErrVersion):
		code = refusedVersion
	}
	_ = r.Conn.RejectFor(wire.RejConsumerDefined, code.info()) // it fails if the peer has given up
	return false
}

// answerSecured gives the accepting end's QP its keys, and makes the private data of the answer of the
// program's. The caller holds id.mu.
func (id *ID) answerSecured(param *ConnParam) (err error) {
	a := &id.agreement
	if a.request == nil {
		return nil
	}
	if err := id.needQP(); err != nil {
		return err
	}
	about, err := id.aboutReply()
	if err != nil {
		return err
	}
	request := aboutRequest(id.ps, id.qpType, id.remote, id.local, id.peer.QPN)
	key, err := id.qp.NewSecurityKey()
	if err != nil {
		return err
	}
	answer, reached := secure.Answer(id.options.security.PSK, key, request, a.request, about, param.PrivateData)
	param.PrivateData = answer
	return id.reach(reached)
}

// tellQPOfPeer has the QP know its peer from the first packet on: a peer with keys is a software device. The caller
// holds id.mu.
func (id *ID) tellQPOfPeer() {
	if id.agreement.reached != nil && id.qp != nil { // the program may have destroyed it since it accepted
		_ = id.qp.PeerRepeatsSelectively() // it fails for UC, for a device that was told to be standard, and where the QP has failed
	}
}

// confirmed reports whether the peer has shown that it has the keys: by the RTU or, if something else
// has established the connection, by a packet. The caller holds id.mu.
func (id *ID) confirmed(rtu []byte) bool {
	return id.listener == nil || id.agreement.reached == nil || rtu == nil || id.agreement.reached.Confirms(rtu)
}

// unconfirmed ends a connection whose peer has not shown that it has the keys. The caller holds id.mu.
func (id *ID) unconfirmed() {
	_ = id.conn.Disconnect() // it fails where the device has gone
	id.end(stateDisconnected)
	id.report(id.failed(EventConnectError, "accept", statusInvalid, disagree(errors.New("the peer has not confirmed the keys"))))
}

// securityRefusal is why a listener with security refuses a request. It is in the reject information.
type securityRefusal uint8

const (
	refusedPlain securityRefusal = iota + 1
	refusedKey
	refusedVersion
)

const refusalMagic = 0xad5ec0ff

func (r securityRefusal) info() []byte {
	return append(binary.BigEndian.AppendUint32(nil, refusalMagic), byte(r))
}

// securityRefusalOf returns the refusal in a reject information, or 0.
func securityRefusalOf(info []byte) securityRefusal {
	if len(info) < 5 || binary.BigEndian.Uint32(info) != refusalMagic {
		return 0
	}
	return securityRefusal(info[4])
}

func (r securityRefusal) String() string {
	switch r {
	case refusedPlain:
		return "the listener demands packet security: set Config.Security, with its pre-shared key"
	case refusedKey:
		return "the listener has another pre-shared key (Security.PSK), or the request was changed on the way"
	}
	return "the listener has another version of packet security"
}

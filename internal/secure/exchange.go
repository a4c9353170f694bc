package secure

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// PublicSize is the length of an Exchange's public key.
const PublicSize = 32

// Why a public key is refused.
var (
	ErrOwnPublic = errors.New("the public key is this end's own")
	ErrBadPublic = errors.New("no end has such a public key")
)

// An Exchange makes the keys of one connection at one end, by X25519 with the Exchange of the peer.
//
// An Exchange draws its private key itself, tells nobody, and begins one connection. The keys of each
// direction are made of both public keys beside all else. So no two connections have the same keys, in this
// process or any other, whatever programs repeat: a pre-shared key, the peer's public key, QPNs, PSNs. A
// packet's number begins at 0 in each, and no nonce comes twice under one key.
type Exchange struct {
	private *ecdh.PrivateKey // nil once the connection has begun
	public  [PublicSize]byte
	peer    [PublicSize]byte
	agreed  []byte // the keys are expanded from it, once the peer's public key is known
}

// NewExchange begins, with a new private key.
func NewExchange() (*Exchange, error) {
	private, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Exchange{private: private, public: [PublicSize]byte(private.PublicKey().Bytes())}, nil
}

// Public returns the public key, which the peer must know. It is no secret, but has to reach the peer unchanged: an
// attacker who can replace it becomes the peer, unless both have a pre-shared key.
func (e *Exchange) Public() [PublicSize]byte { return e.public }

// Agree takes the peer's public key, and a pre-shared key, which may be empty. The errors are ErrOwnPublic and
// ErrBadPublic. The latest call counts.
func (e *Exchange) Agree(peer [PublicSize]byte, psk []byte) error {
	if peer == e.public {
		return ErrOwnPublic
	}
	public, err := ecdh.X25519().NewPublicKey(peer[:])
	if err != nil {
		return ErrBadPublic
	}
	shared, err := e.private.ECDH(public)
	if err != nil { // a point of low order
		return ErrBadPublic
	}
	e.peer, e.agreed = peer, must(hkdf.Extract(sha256.New, shared, psk))
	return nil
}

// Agreed reports whether Agree has succeeded, and the connection has not begun. It is false of nil.
func (e *Exchange) Agreed() bool { return e != nil && e.agreed != nil }

// Begin returns the protection of the connection from QP own to the peer's. An Exchange that has agreed begins one
// connection: after Begin it keeps no secret.
func (e *Exchange) Begin(own, peer uint32) (*Sealer, *Opener) {
	if !e.Agreed() {
		panic("secure: an exchange begins one connection, once it has agreed")
	}
	seal := newSealer(direction(e.agreed, e.public, e.peer, own, peer))
	open := newOpener(direction(e.agreed, e.peer, e.public, peer, own))
	clear(e.agreed)
	e.private, e.agreed = nil, nil
	return seal, open
}

// direction returns the secret of one direction.
func direction(agreed []byte, from, to [PublicSize]byte, fromQP, toQP uint32) []byte {
	info := append([]byte("adverb secure 2 direction "), from[:]...)
	info = append(info, to[:]...)
	info = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(info, fromQP), toQP)
	return expand(agreed, string(info), secretSize)
}

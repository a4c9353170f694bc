package secure

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// The ends of a connection agree on keys in the private data of the messages by which the connection
// manager connects them:
//
//	REQ  magic, X25519 key, 8 bytes of HMAC by the pre-shared key; then 12 bytes of the program
//	REP  magic, X25519 key, 16 bytes of HMAC by the keys agreed on; then 144 bytes of the program
//	RTU  magic, 16 bytes of HMAC by the keys agreed on
//
// Secrets follow by HKDF-SHA256 from what X25519 yields and, as salt, the pre-shared key: who has one of
// the two alone has nothing. They are bound to all that the ends have told each other. The HMAC of the
// REQ keeps strangers from the program. It proves nothing of when it was made; the RTU does, and so does
// the first packet that is genuine.
const (
	requestSpace = wire.REQPrivateDataSize - wire.IPCMHeaderSize
	answerSpace  = wire.REPPrivateDataSize

	publicSize    = 32
	magicSize     = 4
	requestMAC    = 8
	answerMAC     = 16
	requestBlock  = magicSize + publicSize + requestMAC
	answerBlock   = magicSize + publicSize + answerMAC
	confirmSize   = magicSize + answerMAC
	requestMACAt  = magicSize + publicSize
	answerMACAt   = requestMACAt
	confirmMACAt  = magicSize
	minPSK        = 16
	magic         = 0xad5ec001 // its last byte is the version
	versionMask   = 0xff
	labelRequest  = "adverb secure 1 request"
	labelCaller   = "adverb secure 1 caller"
	labelListener = "adverb secure 1 listener"
	labelAnswer   = "adverb secure 1 answer"
	labelConfirm  = "adverb secure 1 confirm"
)

// How much private data is left to programs, in bytes.
const (
	RequestData = requestSpace - requestBlock
	AnswerData  = answerSpace - answerBlock
)

// MinPSK is the shortest pre-shared key, in bytes. It is a key and no password: who sees a REQ can try
// keys on it.
const MinPSK = minPSK

// Why the ends do not agree.
var (
	ErrPlain   = errors.New("the peer does not offer packet security")
	ErrVersion = errors.New("the peer offers another version of packet security")
	ErrKey     = errors.New("the peer has another pre-shared key, or messages were changed on the way")
)

// Secrets are what the ends have agreed on: a secret for each direction, and the proof that the calling
// end has it.
type Secrets struct {
	Send, Recv [SecretSize]byte
	confirm    [answerMAC]byte
}

// Confirmation is what the calling end puts into the RTU.
func (s *Secrets) Confirmation() []byte {
	return append(binary.BigEndian.AppendUint32(nil, magic), s.confirm[:]...)
}

// Confirms reports whether a private data of an RTU is the Confirmation of the calling end.
func (s *Secrets) Confirms(private []byte) bool {
	return checkMagic(private, confirmSize) == nil && hmac.Equal(private[confirmMACAt:confirmSize], s.confirm[:])
}

// Caller is the end that asks for a connection.
type Caller struct {
	psk     []byte
	key     *ecdh.PrivateKey
	request [requestSpace]byte
	about   []byte
}

// NewCaller begins, with a new key. about is what both ends know of the connection when the REQ comes. data
// has at most RequestData bytes.
func NewCaller(psk, about, data []byte) (*Caller, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	c := &Caller{psk: psk, key: key, about: about}
	b := c.request[:]
	binary.BigEndian.PutUint32(b, magic)
	copy(b[magicSize:], key.PublicKey().Bytes())
	copy(b[requestBlock:], data)
	copy(b[requestMACAt:], macOfRequest(psk, about, b))
	return c, nil
}

// Request returns the REQ's private data.
func (c *Caller) Request() []byte { return c.request[:] }

// Finish takes the private data of the REP. about is what both ends know by then. data is what the peer's
// program says.
func (c *Caller) Finish(about, answer []byte) (s *Secrets, data []byte, err error) {
	if err := checkMagic(answer, answerSpace); err != nil {
		return nil, nil, err
	}
	prk, err := agree(c.psk, c.key, answer[magicSize:answerMACAt])
	if err != nil {
		return nil, nil, err
	}
	mac, caller, listener, confirm := derive(prk, c.about, c.request[:], about, answer)
	if !hmac.Equal(mac, answer[answerMACAt:answerBlock]) {
		return nil, nil, ErrKey
	}
	return &Secrets{Send: caller, Recv: listener, confirm: confirm}, answer[answerBlock:], nil
}

// Screen checks the private data of a REQ, and returns what the peer's program says. It costs one HMAC.
// The error is ErrPlain for a peer that offers nothing.
func Screen(psk, about, request []byte) (data []byte, err error) {
	if err := checkMagic(request, requestSpace); err != nil {
		return nil, err
	}
	if !hmac.Equal(macOfRequest(psk, about, request), request[requestMACAt:requestBlock]) {
		return nil, ErrKey
	}
	return request[requestBlock:requestSpace], nil
}

// Answer agrees to a REQ that Screen has passed. It returns the REP's private data. aboutReply is what both
// ends know by then, and data has at most AnswerData bytes.
func Answer(psk, about, request, aboutReply, data []byte) (answer []byte, s *Secrets, err error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	prk, err := agree(psk, key, request[magicSize:requestMACAt])
	if err != nil {
		return nil, nil, err
	}
	b := make([]byte, answerSpace)
	binary.BigEndian.PutUint32(b, magic)
	copy(b[magicSize:], key.PublicKey().Bytes())
	copy(b[answerBlock:], data)
	mac, caller, listener, confirm := derive(prk, about, request, aboutReply, b)
	copy(b[answerMACAt:], mac)
	return b, &Secrets{Send: listener, Recv: caller, confirm: confirm}, nil
}

// checkMagic reports what is wrong with private data that should begin with a block of n bytes.
func checkMagic(b []byte, n int) error {
	if len(b) < n {
		return ErrPlain
	}
	switch v := binary.BigEndian.Uint32(b); {
	case v == magic:
		return nil
	case v&^versionMask == magic&^versionMask:
		return ErrVersion
	}
	return ErrPlain
}

// macOfRequest authenticates a REQ. The place of the MAC itself is left out.
func macOfRequest(psk, about, request []byte) []byte {
	h := hmac.New(sha256.New, must(hkdf.Key(sha256.New, psk, nil, labelRequest, sha256.Size)))
	part(h, about)
	part(h, request[:requestMACAt])
	part(h, request[requestBlock:requestSpace])
	return h.Sum(nil)[:requestMAC]
}

// agree returns what the secrets are expanded from.
func agree(psk []byte, key *ecdh.PrivateKey, peer []byte) ([]byte, error) {
	public, err := ecdh.X25519().NewPublicKey(peer)
	if err != nil {
		return nil, ErrKey
	}
	shared, err := key.ECDH(public)
	if err != nil { // a point of low order: nobody's honest key
		return nil, ErrKey
	}
	return must(hkdf.Extract(sha256.New, shared, psk)), nil
}

// derive makes the secrets, bound to all that was said before the answer's MAC.
func derive(prk, about, request, aboutReply, answer []byte) (mac []byte, caller, listener [SecretSize]byte, confirm [answerMAC]byte) {
	h := sha256.New()
	part(h, about)
	part(h, request[:requestSpace])
	part(h, aboutReply)
	part(h, answer[:answerMACAt])
	part(h, answer[answerBlock:answerSpace])
	said := string(h.Sum(nil))
	mac = expand(prk, labelAnswer+said, answerMAC)
	copy(caller[:], expand(prk, labelCaller+said, SecretSize))
	copy(listener[:], expand(prk, labelListener+said, SecretSize))
	copy(confirm[:], expand(prk, labelConfirm+said, answerMAC))
	return mac, caller, listener, confirm
}

// part writes a part of what is authenticated, with its length, so that no two lists of parts are alike.
func part(h interface{ Write([]byte) (int, error) }, b []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(b)))
	_, _ = h.Write(n[:])
	_, _ = h.Write(b)
}

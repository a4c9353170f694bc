package secure

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// The ends of a connection tell each other the public keys of their Exchanges in the private data of the connection
// manager's messages, authenticated by a pre-shared key:
//
//	REQ  magic, public key, 8 bytes of HMAC of all bytes so far; then 12 bytes of the program
//	REP  magic, public key, 16 bytes of MAC of the transcript; then 144 bytes of the program
//	RTU  magic, 16 bytes of another MAC of the transcript
//
// The transcript is all that both ends have said. The HMAC of the REQ keeps strangers from the program. It does not
// prove that the REQ is new. The MACs of REP and RTU do, since they cover both public keys, and so does the first
// packet that is genuine. The Exchanges take a key for the pre-shared key that is made of that key and of the
// transcript too.
const (
	requestSpace = wire.REQPrivateDataSize - wire.IPCMHeaderSize
	answerSpace  = wire.REPPrivateDataSize

	magicSize    = 4
	requestMAC   = 8
	answerMAC    = 16
	requestBlock = magicSize + PublicSize + requestMAC
	answerBlock  = magicSize + PublicSize + answerMAC
	confirmSize  = magicSize + answerMAC
	requestMACAt = magicSize + PublicSize
	answerMACAt  = requestMACAt
	confirmMACAt = magicSize
	minPSK       = 16
	magic        = 0xad5ec002 // its last byte is the version
	versionMask  = 0xff
	labelRequest = "adverb secure 2 request"
	labelAnswer  = "adverb secure 2 answer"
	labelConfirm = "adverb secure 2 confirm"
	labelKey     = "adverb secure 2 key"
)

// How much private data is left to programs, in bytes.
const (
	RequestData = requestSpace - requestBlock
	AnswerData  = answerSpace - answerBlock
)

// MinPSK is the shortest pre-shared key, in bytes. A pre-shared key is a key and no password: an attacker who sees a
// REQ can try keys on it.
const MinPSK = minPSK

// Why the ends do not agree.
var (
	ErrPlain   = errors.New("the peer does not offer packet security")
	ErrVersion = errors.New("the peer offers another version of packet security")
	ErrKey     = errors.New("the peer has another pre-shared key, or messages were changed on the way")
)

// Agreement is the secret for an end's Exchange to agree on, and the proof that the calling end has it too.
type Agreement struct {
	Peer    [PublicSize]byte
	Key     []byte
	confirm [answerMAC]byte
}

// Confirmation is the calling end's part of the RTU.
func (a *Agreement) Confirmation() []byte {
	return append(binary.BigEndian.AppendUint32(nil, magic), a.confirm[:]...)
}

// Confirms reports whether a private data of an RTU is the Confirmation of the calling end.
func (a *Agreement) Confirms(private []byte) bool {
	return checkMagic(private, confirmSize) == nil && hmac.Equal(private[confirmMACAt:confirmSize], a.confirm[:])
}

// Caller is the end that asks for a connection.
type Caller struct {
	psk     []byte
	request [requestSpace]byte
	about   []byte
}

// NewCaller begins. public is the public key of the end's Exchange, and about is the data on the connection that both
// ends know when the REQ comes. data has at most RequestData bytes.
func NewCaller(psk []byte, public [PublicSize]byte, about, data []byte) *Caller {
	c := &Caller{psk: psk, about: about}
	b := c.request[:]
	binary.BigEndian.PutUint32(b, magic)
	copy(b[magicSize:], public[:])
	copy(b[requestBlock:], data)
	copy(b[requestMACAt:], macOfRequest(psk, about, b))
	return c
}

// Request returns the REQ's private data.
func (c *Caller) Request() []byte { return c.request[:] }

// Finish takes the private data of the REP. about is the data that both ends know by then. data is the private data
// of the peer's program.
func (c *Caller) Finish(about, answer []byte) (a *Agreement, data []byte, err error) {
	if err := checkMagic(answer, answerSpace); err != nil {
		return nil, nil, err
	}
	mac, a := agree(c.psk, c.about, c.request[:], about, answer)
	if !hmac.Equal(mac, answer[answerMACAt:answerBlock]) {
		return nil, nil, ErrKey
	}
	a.Peer = [PublicSize]byte(answer[magicSize:answerMACAt])
	return a, answer[answerBlock:], nil
}

// Screen checks the private data of a REQ, and returns the private data of the peer's program. It costs one HMAC. The
// error is ErrPlain for a peer that offers nothing.
func Screen(psk, about, request []byte) (data []byte, err error) {
	if err := checkMagic(request, requestSpace); err != nil {
		return nil, err
	}
	if !hmac.Equal(macOfRequest(psk, about, request), request[requestMACAt:requestBlock]) {
		return nil, ErrKey
	}
	return request[requestBlock:requestSpace], nil
}

// Answer agrees to a REQ that Screen has passed. It returns the REP's private data. public is the public key of the
// end's Exchange, aboutReply the data that both ends know by then, and data has at most AnswerData bytes.
func Answer(psk []byte, public [PublicSize]byte, about, request, aboutReply, data []byte) (answer []byte, a *Agreement) {
	b := make([]byte, answerSpace)
	binary.BigEndian.PutUint32(b, magic)
	copy(b[magicSize:], public[:])
	copy(b[answerBlock:], data)
	mac, a := agree(psk, about, request, aboutReply, b)
	copy(b[answerMACAt:], mac)
	a.Peer = [PublicSize]byte(request[magicSize:requestMACAt])
	return b, a
}

// checkMagic returns the error of private data that should begin with a block of n bytes.
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

// agree makes the answer's MAC, and the secret that both ends agree on, of the transcript before that MAC.
func agree(psk, about, request, aboutReply, answer []byte) (mac []byte, a *Agreement) {
	h := sha256.New()
	part(h, about)
	part(h, request[:requestSpace])
	part(h, aboutReply)
	part(h, answer[:answerMACAt])
	part(h, answer[answerBlock:answerSpace])
	prk := must(hkdf.Extract(sha256.New, psk, h.Sum(nil)))
	return expand(prk, labelAnswer, answerMAC), &Agreement{
		Key:     expand(prk, labelKey, secretSize),
		confirm: [answerMAC]byte(expand(prk, labelConfirm, answerMAC)),
	}
}

// part writes an authenticated part, with its length, so that no two lists of parts are alike.
func part(h interface{ Write([]byte) (int, error) }, b []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(b)))
	_, _ = h.Write(n[:])
	_, _ = h.Write(b)
}

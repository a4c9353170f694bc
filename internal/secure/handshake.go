package secure

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// The ends of a connection tell each other the public keys of their Exchanges in the private data of the
// messages by which the connection manager connects them, authenticated by a pre-shared key:
//
//	REQ  magic, public key, 8 bytes of HMAC of what is said so far; then 12 bytes of the program
//	REP  magic, public key, 16 bytes of MAC of all that was said; then 144 bytes of the program
//	RTU  magic, 16 bytes of another MAC of all that was said
//
// The HMAC of the REQ keeps strangers from the program. It proves nothing of when it was made. The MACs of REP
// and RTU do, since they are of both public keys, and so does the first packet that is genuine. What both
// Exchanges take for the pre-shared key is made of that and of all that was said too.
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

// MinPSK is the shortest pre-shared key, in bytes. It is a key and no password: who sees a REQ can try
// keys on it.
const MinPSK = minPSK

// Why the ends do not agree.
var (
	ErrPlain   = errors.New("the peer does not offer packet security")
	ErrVersion = errors.New("the peer offers another version of packet security")
	ErrKey     = errors.New("the peer has another pre-shared key, or messages were changed on the way")
)

// Agreement is what an end has for its Exchange to agree on, and the proof that the calling end has it too.
type Agreement struct {
	Peer    [PublicSize]byte
	Key     []byte
	confirm [answerMAC]byte
}

// Confirmation is what the calling end puts into the RTU.
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

// NewCaller begins. public is that of the end's Exchange, and about what both ends know of the connection when the
// REQ comes. data has at most RequestData bytes.
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

// Finish takes the private data of the REP. about is what both ends know by then. data is what the peer's
// program says.
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

// Answer agrees to a REQ that Screen has passed. It returns the REP's private data. public is that of the end's
// Exchange, aboutReply what both ends know by then, and data has at most AnswerData bytes.
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

// agree makes the answer's MAC, and what both ends agree on, of all that was said before that MAC.
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

// part writes a part of what is authenticated, with its length, so that no two lists of parts are alike.
func part(h interface{ Write([]byte) (int, error) }, b []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(b)))
	_, _ = h.Write(n[:])
	_, _ = h.Write(b)
}

package rdmamsg

import (
	"encoding/binary"
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// frameType is the kind of a SEND between two channels.
type frameType uint8

const (
	frameHello  frameType = 1 // the first of each end: how much the end grants
	frameData   frameType = 2 // a small message follows the header
	frameOffer  frameType = 3 // a large message lies at remote, to be read
	frameDone   frameType = 4 // the large message has been read
	frameCredit frameType = 5 // nothing but credits
	frameBye    frameType = 6 // no more messages follow
)

const (
	headerSize = 32
	version    = 1
)

// header opens every frame. Its fields are in network order on the wire:
//
//	0 type, 1 version, 4 credits, 8 length, 16 address, 24 key, 28 id
type header struct {
	typ     frameType
	version uint8
	credits uint32           // receives that the sender has posted again since its last frame
	length  uint64           // of the message; in a hello the longest message that is taken
	remote  verbs.RemoteAddr // of a large message; in a hello VA is depth<<32 | eager size
	id      uint32           // of a large message, chosen by its sender
}

// put writes the header to the start of b.
func (h *header) put(b []byte) {
	_ = b[headerSize-1]
	b[0], b[1], b[2], b[3] = byte(h.typ), h.version, 0, 0
	binary.BigEndian.PutUint32(b[4:], h.credits)
	binary.BigEndian.PutUint64(b[8:], h.length)
	_, _ = h.remote.AppendBinary(b[16:16]) // which cannot fail
	binary.BigEndian.PutUint32(b[28:], h.id)
}

// parse reads the header of a frame, and checks that the frame is whole.
func parse(b []byte) (header, error) {
	if len(b) < headerSize {
		return header{}, fmt.Errorf("%w: a frame of %d bytes", ErrProtocol, len(b))
	}
	h := header{
		typ: frameType(b[0]), version: b[1],
		credits: binary.BigEndian.Uint32(b[4:]),
		length:  binary.BigEndian.Uint64(b[8:]),
		id:      binary.BigEndian.Uint32(b[28:]),
	}
	_ = h.remote.UnmarshalBinary(b[16:][:verbs.RemoteAddrSize]) // of the right length
	payload := len(b) - headerSize
	switch {
	case h.version != version:
		return header{}, fmt.Errorf("%w: version %d of the protocol, ours is %d", ErrProtocol, h.version, version)
	case h.typ < frameHello || h.typ > frameBye:
		return header{}, fmt.Errorf("%w: a frame of type %d", ErrProtocol, h.typ)
	case h.typ == frameData && h.length != uint64(payload):
		return header{}, fmt.Errorf("%w: a message of %d bytes in a frame with room for %d", ErrProtocol, h.length, payload)
	case h.typ != frameData && payload != 0:
		return header{}, fmt.Errorf("%w: %d bytes after a frame of type %d", ErrProtocol, payload, h.typ)
	}
	return h, nil
}

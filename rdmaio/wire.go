package rdmaio

import (
	"encoding/binary"
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// A connection has as many slots as both ends allow, and a call has one of them until its answer has come.
// So each end knows how many messages the other may send, and has a receive for each.
//
// The private data of both ends is a hello: "aio1", slots (4), the longest message (4), flags (4). A message is
//
//	call:    kind (1), length of the method's name (1), 0 (2), slot (4), number (4), in (20), out (20), name, argument
//	cancel:  kind (1), 0 (3), slot (4), number (4)
//	answer:  kind (1), 0 (3), slot (4), number (4), answer or error's text
//
// in network order. The number tells the calls of a slot apart.
const (
	magic     = "aio1"
	helloSize = 16
	headSize  = 12
	callSize  = headSize + 2*SpanSize

	flagSelective = 1 << 0 // the QP repeats selectively: verbs.QP.RepeatsSelectively

	kindCall   = 1
	kindCancel = 2
	kindAnswer = 3
	kindError  = 4
)

// hello is an end's description of itself.
type hello struct {
	slots, longest int
	selective      bool
}

func appendHello(b []byte, h hello) []byte {
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint32(b, uint32(h.slots))
	b = binary.BigEndian.AppendUint32(b, uint32(h.longest))
	var flags uint32
	if h.selective {
		flags |= flagSelective
	}
	return binary.BigEndian.AppendUint32(b, flags)
}

// parseHello takes private data, which is filled up with zeros.
func parseHello(b []byte) (hello, error) {
	if len(b) < helloSize || string(b[:len(magic)]) != magic {
		return hello{}, fmt.Errorf("%w: the peer does not speak this package's protocol", ErrProtocol)
	}
	slots, longest := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	if slots < 1 || slots > maxSlots || longest < minMessage || longest > maxMessage {
		return hello{}, fmt.Errorf("%w: a hello with %d calls and messages of %d bytes", ErrProtocol, slots, longest)
	}
	return hello{int(slots), int(longest), binary.BigEndian.Uint32(b[12:])&flagSelective != 0}, nil
}

// message is a message. The message's slices are of the receive's memory, or of the sender's.
type message struct {
	kind    byte
	slot    int
	number  uint32
	in, out Span
	method  string
	body    []byte
}

func appendMessage(b []byte, m *message) []byte {
	b = append(b, m.kind, byte(len(m.method)), 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(m.slot))
	b = binary.BigEndian.AppendUint32(b, m.number)
	if m.kind == kindCall {
		b, _ = m.in.AppendBinary(b)
		b, _ = m.out.AppendBinary(b)
		b = append(b, m.method...)
	}
	return append(b, m.body...)
}

// size returns the length of a message.
func (m *message) size() int {
	if m.kind == kindCall {
		return callSize + len(m.method) + len(m.body)
	}
	return headSize + len(m.body)
}

// parseMessage takes a message apart.
func parseMessage(b []byte) (m message, err error) {
	if len(b) < headSize {
		return m, fmt.Errorf("%w: a message of %d bytes", ErrProtocol, len(b))
	}
	slot := binary.BigEndian.Uint32(b[4:])
	if slot >= maxSlots {
		return m, fmt.Errorf("%w: slot %d of %d", ErrProtocol, slot, maxSlots)
	}
	m = message{kind: b[0], slot: int(slot), number: binary.BigEndian.Uint32(b[8:]), body: b[headSize:]}
	switch m.kind {
	case kindCall:
		name := int(b[1])
		if len(b) < callSize+name {
			return m, fmt.Errorf("%w: a call of %d bytes", ErrProtocol, len(b))
		}
		for i, s := range []*Span{&m.in, &m.out} {
			if err := s.UnmarshalBinary(b[headSize+i*SpanSize:][:SpanSize]); err != nil {
				return m, fmt.Errorf("%w: %w", ErrProtocol, err)
			}
		}
		m.method, m.body = string(b[callSize:callSize+name]), b[callSize+name:]
	case kindCancel, kindAnswer, kindError:
	default:
		return m, fmt.Errorf("%w: a message of kind %d", ErrProtocol, m.kind)
	}
	return m, nil
}

// ErrProtocol is the cause of the end of a connection whose peer has broken the protocol.
var ErrProtocol = verbs.Errorf(verbs.ErrInvalid, "the peer breaks the protocol")

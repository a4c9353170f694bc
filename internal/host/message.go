package host

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
)

// A message goes from one process to another process's unix socket.
//
//	byte 0      kind
//	byte 1      version
//	bytes 2-3   block of the sender, whose mailbox gets the answer
//	bytes 4-11  nonce; of a datagram its IPv6 flow label, 0 if that is not known
//	then        datagram: address (16), source (16), source port (2), traffic class (1), payload
//	            here:     address (16), index (2), blocks (2 each)
type message struct {
	kind    kind
	from    uint32 // block
	nonce   uint64
	addr    netip.Addr // the local address that the message is about
	source  netip.AddrPort
	class   uint8
	label   uint32
	payload []byte
	index   int
	blocks  []uint32
}

type kind uint8

const (
	whoMessage      kind = 1 // asks for proof that the receiver is of the same user
	meMessage       kind = 2 // answers a whoMessage; the credentials are the proof
	datagramMessage kind = 3 // carries a datagram for the receiver
	hereMessage     kind = 4 // answers a probe: which blocks the process behind the socket has claimed
)

const (
	messageVersion = 1
	messageHeader  = 12
	flowLabelMask  = 1<<20 - 1
	datagramHeader = messageHeader + 16 + 16 + 2 + 1
	hereHeader     = messageHeader + 16 + 2

	// maxMessage is the length of the longest message: a hereMessage with all blocks.
	maxMessage = max(datagramHeader+maxDatagram, hereHeader+2*numBlocks)
)

var errMessage = errors.New("malformed message")

func (m *message) appendTo(b []byte) []byte {
	b = append(b, byte(m.kind), messageVersion)
	b = binary.BigEndian.AppendUint16(b, uint16(m.from))
	nonce := m.nonce
	if m.kind == datagramMessage {
		nonce = uint64(m.label)
	}
	b = binary.BigEndian.AppendUint64(b, nonce)
	switch m.kind {
	case datagramMessage:
		b = appendAddr(b, m.addr)
		b = appendAddr(b, m.source.Addr())
		b = binary.BigEndian.AppendUint16(b, m.source.Port())
		b = append(b, m.class)
		b = append(b, m.payload...)
	case hereMessage:
		b = appendAddr(b, m.addr)
		b = binary.BigEndian.AppendUint16(b, uint16(m.index))
		for _, block := range m.blocks {
			b = binary.BigEndian.AppendUint16(b, uint16(block))
		}
	}
	return b
}

func appendAddr(b []byte, a netip.Addr) []byte {
	a16 := a.As16()
	return append(b, a16[:]...)
}

func addrAt(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)).Unmap() }

// decode decodes b. The message's payload is a part of b, not a copy.
func (m *message) decode(b []byte) error {
	if len(b) < messageHeader || b[1] != messageVersion {
		return errMessage
	}
	*m = message{kind: kind(b[0]), from: uint32(binary.BigEndian.Uint16(b[2:])), nonce: binary.BigEndian.Uint64(b[4:])}
	if m.from >= numBlocks {
		return errMessage
	}
	switch m.kind {
	case whoMessage, meMessage:
		return nil
	case datagramMessage:
		if len(b) < datagramHeader || len(b) > datagramHeader+maxDatagram {
			return errMessage
		}
		m.addr = addrAt(b[messageHeader:])
		m.source = netip.AddrPortFrom(addrAt(b[messageHeader+16:]), binary.BigEndian.Uint16(b[messageHeader+32:]))
		m.class = b[datagramHeader-1]
		m.label, m.nonce = uint32(m.nonce)&flowLabelMask, 0
		m.payload = b[datagramHeader:]
		return nil
	case hereMessage:
		if len(b) < hereHeader || len(b) > maxMessage || (len(b)-hereHeader)%2 != 0 {
			return errMessage
		}
		m.addr = addrAt(b[messageHeader:])
		m.index = int(binary.BigEndian.Uint16(b[messageHeader+16:]))
		for b := range slices.Chunk(b[hereHeader:], 2) {
			block := uint32(binary.BigEndian.Uint16(b))
			if block >= numBlocks {
				return errMessage
			}
			m.blocks = append(m.blocks, block)
		}
		return nil
	}
	return errMessage
}

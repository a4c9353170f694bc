package mpa

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Values that RFC 5044 and RFC 6581 fix.
const (
	keySize      = 16
	headerSize   = keySize + 4
	enhancedSize = 4 // IRD and ORD, before the program's private data

	// MaxPrivateData is how many bytes of private data a frame takes at most, those of the enhanced
	// set-up included.
	MaxPrivateData = 512
	// MaxProgramData is the room for the program's private data in an enhanced frame.
	MaxProgramData = MaxPrivateData - enhancedSize
	// MaxFrame is the size of the largest frame.
	MaxFrame = headerSize + MaxPrivateData
	// MaxDepth is the largest number that an IRD or ORD can say.
	MaxDepth = 1<<14 - 1

	// Revision1 is that of RFC 5044, and Revision2 that of RFC 6581.
	Revision1 = 1
	Revision2 = 2
)

const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
)

// The flags of the header, and those beside IRD and ORD.
const (
	flagMarkers  = 0x80
	flagCRC      = 0x40
	flagReject   = 0x20
	flagEnhanced = 0x10

	highPeerToPeer = 0x8000 // beside the IRD
	highFPDU       = 0x4000
	highWrite      = 0x8000 // beside the ORD
	highRead       = 0x4000
)

// RTR is a set of messages by which an initiator can show that it is ready to receive, so that the
// responder may send first.
type RTR uint8

// The messages. All are empty.
const (
	RTRFPDU RTR = 1 << iota
	RTRWrite
	RTRRead
)

// Frame is an MPA request or reply.
type Frame struct {
	Reply    bool
	Markers  bool // the sender of the frame wants markers in the stream that it receives
	CRC      bool // wants CRCs in both directions
	Reject   bool // of a reply
	Revision uint8

	Enhanced bool   // IRD, ORD, PeerToPeer and RTR are there
	IRD, ORD uint16 // READs that the sender answers at a time, and has outstanding; at most MaxDepth
	// PeerToPeer asks for an RTR message by the initiator, one of RTR.
	PeerToPeer bool
	RTR        RTR

	PrivateData []byte // the program's
}

// ErrShort is the error of a frame of which not all bytes are there.
var ErrShort = errors.New("the frame goes on")

// AppendTo appends the frame to b. Private data for which the frame has no room is a caller's mistake.
func (f *Frame) AppendTo(b []byte) []byte {
	key, length := requestKey, len(f.PrivateData)
	if f.Reply {
		key = replyKey
	}
	flags := byte(0)
	for _, s := range []struct {
		on   bool
		flag byte
	}{{f.Markers, flagMarkers}, {f.CRC, flagCRC}, {f.Reject, flagReject}, {f.Enhanced, flagEnhanced}} {
		if s.on {
			flags |= s.flag
		}
	}
	if f.Enhanced {
		length += enhancedSize
	}
	if length > MaxPrivateData {
		panic(fmt.Sprintf("mpa: %d bytes of private data", len(f.PrivateData)))
	}
	b = append(b, key...)
	b = append(b, flags, f.Revision)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	if f.Enhanced {
		ird, ord := f.IRD&MaxDepth, f.ORD&MaxDepth
		if f.PeerToPeer {
			ird |= highPeerToPeer
		}
		if f.RTR&RTRFPDU != 0 {
			ird |= highFPDU
		}
		if f.RTR&RTRWrite != 0 {
			ord |= highWrite
		}
		if f.RTR&RTRRead != 0 {
			ord |= highRead
		}
		b = binary.BigEndian.AppendUint16(b, ird)
		b = binary.BigEndian.AppendUint16(b, ord)
	}
	return append(b, f.PrivateData...)
}

// DecodeFrame decodes the frame at the beginning of b, and returns how many bytes it has. The error
// is ErrShort while bytes are missing, and another as soon as they cannot become a frame. The frame's
// private data are part of b.
func DecodeFrame(b []byte) (f Frame, n int, err error) {
	key := b[:min(len(b), keySize)]
	switch {
	case bytes.HasPrefix([]byte(requestKey), key):
	case bytes.HasPrefix([]byte(replyKey), key):
		f.Reply = true
	default:
		return Frame{}, 0, fmt.Errorf("it begins with %q: no MPA frame, so the peer does not speak iWARP", key)
	}
	if len(b) < headerSize {
		return Frame{}, 0, ErrShort
	}
	flags, length := b[keySize], int(binary.BigEndian.Uint16(b[keySize+2:]))
	f.Markers, f.CRC, f.Reject = flags&flagMarkers != 0, flags&flagCRC != 0, flags&flagReject != 0
	f.Revision = b[keySize+1]
	f.Enhanced = flags&flagEnhanced != 0 && f.Revision >= Revision2
	switch {
	case length > MaxPrivateData:
		return Frame{}, 0, fmt.Errorf("%d bytes of private data: at most %d", length, MaxPrivateData)
	case f.Enhanced && length < enhancedSize:
		return Frame{}, 0, fmt.Errorf("%d bytes of private data: an enhanced frame has %d at least", length, enhancedSize)
	case len(b) < headerSize+length:
		return Frame{}, 0, ErrShort
	}
	data := b[headerSize:][:length:length]
	if f.Enhanced {
		ird, ord := binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:])
		f.IRD, f.ORD = ird&MaxDepth, ord&MaxDepth
		f.PeerToPeer = ird&highPeerToPeer != 0
		if ird&highFPDU != 0 {
			f.RTR |= RTRFPDU
		}
		if ord&highWrite != 0 {
			f.RTR |= RTRWrite
		}
		if ord&highRead != 0 {
			f.RTR |= RTRRead
		}
		data = data[enhancedSize:]
	}
	f.PrivateData = data
	return f, headerSize + length, nil
}

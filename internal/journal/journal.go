// Package journal has what a software device writes into captures beside packets: what programs post, what completes, the
// states of queue pairs, and registered memory.
package journal

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// BlockType is the type of a record's block in pcapng, of those for local use. Programs that do not know it skip the
// block, and its frames keep their numbers.
const BlockType = 0x80616476

// Kind says what an Event is.
type Kind uint8

// The kinds.
const (
	KindState    Kind = iota + 1 // a QP has another state
	KindSend                     // a send work request was posted
	KindReceive                  // a receive was posted
	KindDone                     // a send work request has completed
	KindReceived                 // a receive has completed
	KindRegion                   // memory was registered
)

var names = [...]string{KindState: "state", KindSend: "WQE", KindReceive: "receive WQE", KindDone: "CQE", KindReceived: "CQE", KindRegion: "MR"}

// String names the kind as ladders do.
func (k Kind) String() string {
	if int(k) < len(names) && names[k] != "" {
		return names[k]
	}
	return "record"
}

// Event is what a device did.
type Event struct {
	Time  int64 // ns since 1970
	Kind  Kind
	QPN   uint32     // 0 for KindRegion
	Addr  netip.Addr // the QP's own; invalid before RTR
	ID    uint64     // wr_id; of KindRegion the address
	Len   uint64     // bytes: of the message, or of the region
	Key   uint32     // KindRegion: the rkey; KindDone and KindReceived: the status, 0 for success
	Words string     // the event in words, below 64 KiB
}

// Sizes of the encoding: version, kind, the length of the address and a reserved byte; then the fields.
const (
	version   = 1
	fixedSize = 4 + 8 + 4 + 8 + 8 + 4 + 2
	maxWords  = 1<<16 - 1
)

// AppendTo appends the encoded event.
func (e *Event) AppendTo(b []byte) []byte {
	le := binary.LittleEndian
	addr := e.Addr.AsSlice()
	words := e.Words[:min(len(e.Words), maxWords)]
	b = append(b, version, byte(e.Kind), byte(len(addr)), 0)
	b = le.AppendUint64(b, uint64(e.Time))
	b = le.AppendUint32(b, e.QPN)
	b = le.AppendUint64(b, e.ID)
	b = le.AppendUint64(b, e.Len)
	b = le.AppendUint32(b, e.Key)
	b = le.AppendUint16(b, uint16(len(words)))
	b = append(b, addr...)
	return append(b, words...)
}

// ErrFormat is the error of Decode.
var ErrFormat = errors.New("not a record that this version knows")

// Decode decodes an event. Bytes behind it are ignored, such as a block's padding.
func Decode(b []byte) (e Event, err error) {
	if len(b) < fixedSize || b[0] != version {
		return e, ErrFormat
	}
	le := binary.LittleEndian
	addrLen, words := int(b[2]), int(le.Uint16(b[fixedSize-2:]))
	e = Event{Kind: Kind(b[1]), Time: int64(le.Uint64(b[4:])), QPN: le.Uint32(b[12:]), ID: le.Uint64(b[16:]), Len: le.Uint64(b[24:]), Key: le.Uint32(b[32:])}
	rest := b[fixedSize:]
	if len(rest) < addrLen+words {
		return Event{}, ErrFormat
	}
	if addrLen > 0 {
		addr, ok := netip.AddrFromSlice(rest[:addrLen])
		if !ok {
			return Event{}, ErrFormat
		}
		e.Addr = addr
	}
	e.Words = string(rest[addrLen : addrLen+words])
	return e, nil
}

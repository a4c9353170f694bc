// Package rwdemo has the agreement of the read/write demonstration's two ends: the message that they send each other,
// and the steps of each mode. The commands rdma-server and rdma-client play it over the connection manager, and the
// command demo plays both ends in one process.
package rwdemo

import (
	"encoding/binary"
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// The C programs fix these, in bytes.
const (
	MessageSize = 56
	BufferSize  = 1024 // of the regions that the texts are in
)

// MessageType is the kind of a message.
type MessageType uint32

// The types of messages.
const (
	MsgMR   MessageType = 0 // MSG_MR: where the sender's region is
	MsgDone MessageType = 1 // MSG_DONE: the sender has posted its operation
)

func (t MessageType) String() string {
	switch t {
	case MsgMR:
		return "MSG_MR"
	case MsgDone:
		return "MSG_DONE"
	}
	return fmt.Sprintf("message type %d", uint32(t))
}

// Message is the message of the two programs. It is the type and behind it a struct ibv_mr, as that
// struct lies in the memory of a little-endian machine with pointers of 8 bytes. Such a message is
// no protocol between two kinds of machines. It is the same on all machines here, since the C
// programs expect it so. The receiver needs only the address and the R_Key.
//
//	 0  type    8  context  16  pd    24  addr  32  length
//	40  handle 44  lkey     48  rkey  52  padding
type Message struct {
	Type    MessageType
	Padding uint32 // the bytes that the C program's memory had there
	Context uint64 // a pointer, of use to its owner only
	PD      uint64 // another one
	Addr    uint64
	Length  uint64
	Handle  uint32
	LKey    verbs.LKey
	RKey    verbs.RKey
}

// RegionMessage is the message of type t about the region mr.
func RegionMessage(t MessageType, mr *verbs.MR) *Message {
	return &Message{Type: t, Addr: mr.Addr(), Length: uint64(mr.Len()), LKey: mr.LKey(), RKey: mr.RKey()}
}

// Remote is the region that the message describes.
func (m *Message) Remote() verbs.RemoteAddr { return verbs.RemoteAddr{VA: m.Addr, RKey: m.RKey} }

// String is for a reader of the demonstration: MSG_MR with the region, MSG_DONE without.
func (m *Message) String() string {
	if m.Type == MsgMR {
		return fmt.Sprintf("MSG_MR {addr %#x, length %d, rkey %v}", m.Addr, m.Length, m.RKey)
	}
	return m.Type.String()
}

// AppendTo appends the message to b.
func (m *Message) AppendTo(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(m.Type))
	b = le.AppendUint32(b, m.Padding)
	for _, v := range []uint64{m.Context, m.PD, m.Addr, m.Length} {
		b = le.AppendUint64(b, v)
	}
	for _, v := range []uint32{m.Handle, uint32(m.LKey), uint32(m.RKey), 0} {
		b = le.AppendUint32(b, v)
	}
	return b
}

// DecodeMessage decodes a message. It refuses a message of another size or type.
func DecodeMessage(b []byte) (m Message, err error) {
	if len(b) != MessageSize {
		return m, fmt.Errorf("the peer's message has %d bytes, and one of rdma-server and rdma-client %d: the peer is another program, or built for another kind of machine",
			len(b), MessageSize)
	}
	le := binary.LittleEndian
	m = Message{
		Type: MessageType(le.Uint32(b)), Padding: le.Uint32(b[4:]),
		Context: le.Uint64(b[8:]), PD: le.Uint64(b[16:]), Addr: le.Uint64(b[24:]), Length: le.Uint64(b[32:]),
		Handle: le.Uint32(b[40:]), LKey: verbs.LKey(le.Uint32(b[44:])), RKey: verbs.RKey(le.Uint32(b[48:])),
	}
	if m.Type != MsgMR && m.Type != MsgDone {
		return m, fmt.Errorf("the peer sent a message of type %d, where MSG_MR is 0 and MSG_DONE 1: the peer is another program", uint32(m.Type))
	}
	return m, nil
}

package main

import (
	"encoding/binary"
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// What the C programs fix.
const (
	rdmaDemoMessageSize = 56
	rdmaDemoBufferSize  = 1024 // of the regions that the texts are in
)

// rdmaDemoMessageType says what a message is for.
type rdmaDemoMessageType uint32

const (
	rdmaDemoMR   rdmaDemoMessageType = 0 // MSG_MR: where the sender's region is
	rdmaDemoDone rdmaDemoMessageType = 1 // MSG_DONE: the sender has posted its operation
)

func (t rdmaDemoMessageType) String() string {
	switch t {
	case rdmaDemoMR:
		return "MSG_MR"
	case rdmaDemoDone:
		return "MSG_DONE"
	}
	return fmt.Sprintf("message type %d", uint32(t))
}

// rdmaDemoMessage is the message of the two programs: a struct ibv_mr as it lies in the memory of
// a little-endian machine with pointers of 8 bytes, behind the type. That is no protocol for two
// kinds of machines; here it is written so on all, since the C programs expect it. Of the fields
// the receiver needs the address and the R_Key.
//
//	 0  type    8  context  16  pd    24  addr  32  length
//	40  handle 44  lkey     48  rkey  52  padding
type rdmaDemoMessage struct {
	Type    rdmaDemoMessageType
	Padding uint32 // what the C program's memory had there
	Context uint64 // pointers, of use to nobody else
	PD      uint64
	Addr    uint64
	Length  uint64
	Handle  uint32
	LKey    verbs.LKey
	RKey    verbs.RKey
}

// AppendTo appends the message.
func (m *rdmaDemoMessage) AppendTo(b []byte) []byte {
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

// decodeRDMADemoMessage takes apart a message, and refuses what is none.
func decodeRDMADemoMessage(b []byte) (m rdmaDemoMessage, err error) {
	if len(b) != rdmaDemoMessageSize {
		return m, fmt.Errorf("the peer's message has %d bytes, and one of rdma-server and rdma-client %d: the peer is another program, or built for another kind of machine",
			len(b), rdmaDemoMessageSize)
	}
	le := binary.LittleEndian
	m = rdmaDemoMessage{
		Type: rdmaDemoMessageType(le.Uint32(b)), Padding: le.Uint32(b[4:]),
		Context: le.Uint64(b[8:]), PD: le.Uint64(b[16:]), Addr: le.Uint64(b[24:]), Length: le.Uint64(b[32:]),
		Handle: le.Uint32(b[40:]), LKey: verbs.LKey(le.Uint32(b[44:])), RKey: verbs.RKey(le.Uint32(b[48:])),
	}
	if m.Type != rdmaDemoMR && m.Type != rdmaDemoDone {
		return m, fmt.Errorf("the peer sent a message of type %d, where MSG_MR is 0 and MSG_DONE 1: the peer is another program", uint32(m.Type))
	}
	return m, nil
}

package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// demoMessage is what the demonstration's programs send each other: the key of a memory region
// (MSG_MR), or that all is done (MSG_DONE).
type demoMessage struct {
	kind demoKind
	addr uint64
	size uint64
	lkey verbs.LKey
	rkey verbs.RKey
}

type demoKind uint32

const (
	demoMR   demoKind = 0
	demoDone demoKind = 1
)

func (k demoKind) String() string {
	switch k {
	case demoMR:
		return "MSG_MR"
	case demoDone:
		return "MSG_DONE"
	}
	return fmt.Sprintf("message type %d", uint32(k))
}

// The message is a struct of the C programs, which hold a whole struct ibv_mr in it, as a
// 64-bit little-endian machine lays it out.
const (
	demoMessageSize = 56
	demoOffKind     = 0
	demoOffAddr     = 24
	demoOffSize     = 32
	demoOffLKey     = 44
	demoOffRKey     = 48
)

func (m demoMessage) put(b []byte) {
	clear(b[:demoMessageSize])
	binary.LittleEndian.PutUint32(b[demoOffKind:], uint32(m.kind))
	binary.LittleEndian.PutUint64(b[demoOffAddr:], m.addr)
	binary.LittleEndian.PutUint64(b[demoOffSize:], m.size)
	binary.LittleEndian.PutUint32(b[demoOffLKey:], uint32(m.lkey))
	binary.LittleEndian.PutUint32(b[demoOffRKey:], uint32(m.rkey))
}

var errShortMessage = errors.New("the peer's message is too short")

func parseDemoMessage(b []byte) (demoMessage, error) {
	if len(b) < demoMessageSize {
		return demoMessage{}, errShortMessage
	}
	m := demoMessage{
		kind: demoKind(binary.LittleEndian.Uint32(b[demoOffKind:])),
		addr: binary.LittleEndian.Uint64(b[demoOffAddr:]),
		size: binary.LittleEndian.Uint64(b[demoOffSize:]),
		lkey: verbs.LKey(binary.LittleEndian.Uint32(b[demoOffLKey:])),
		rkey: verbs.RKey(binary.LittleEndian.Uint32(b[demoOffRKey:])),
	}
	if m.kind != demoMR && m.kind != demoDone {
		return demoMessage{}, fmt.Errorf("the peer sent a %v; there are MSG_MR and MSG_DONE", m.kind)
	}
	return m, nil
}

func (m demoMessage) String() string {
	if m.kind == demoMR {
		return fmt.Sprintf("MSG_MR {addr %#x, length %d, rkey %v}", m.addr, m.size, m.rkey)
	}
	return m.kind.String()
}
